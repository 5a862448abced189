"""The reference pages, served by the service itself, so that the `type` of a problem leads somewhere.

The dashboard: pages that the browser draws from the API, and the files that they are made of.
"""

from __future__ import annotations

import gzip
import mimetypes
from functools import cache
from http import HTTPStatus
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from fastapi import Request, Response

from holdfast.api.routing import Router
from holdfast.errors import NotFound

pages_router = Router(prefix="/docs", tags=["docs"])


@pages_router.get(
    "/{name}", response_class=Response, responses={200: {"content": {"text/markdown": {}}}}
)
def read_page(name: str) -> Response:
    """A page of the reference as Markdown: errors, events, settings, ..."""
    pages = {page.name.removesuffix(".md"): page for page in _folder().iterdir()}
    name = name.removesuffix(".md")  # As the pages link to one another.
    if name not in pages:
        raise NotFound(f"there is no page {name}; there are {', '.join(sorted(pages))}")
    return Response(pages[name].read_bytes(), media_type="text/markdown; charset=utf-8")


def _folder() -> Traversable:
    """`docs/reference` of an installed wheel, or of the checkout in an editable install."""
    packaged = resources.files("holdfast") / "_docs"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "docs" / "reference"


web_router = Router(include_in_schema=False)

_FOR_GOOD: Final = "public, max-age=31536000, immutable"
"""For files whose names change with what is in them."""
_ASK_ANEW: Final = "no-cache"
"""For the page itself: it names these files, and has to be of the same version."""


@web_router.get("/")
@web_router.get("/jobs/{job_id}")
@web_router.get("/preemptions")
@web_router.get("/prices")
@web_router.get("/submit")
@web_router.get("/team")
def show_page(request: Request) -> Response:
    """The one page that there is. Which view it shows, the browser reads from the address.

    An address that no view has is a 404 of the API like any other; so a new view is a line here, and one in `access`.
    """
    return _send(request, "index.html", _ASK_ANEW)


@web_router.get("/assets/{name}")
def read_asset(name: str, request: Request) -> Response:
    """A script, style sheet or picture of the page."""
    return _send(request, f"assets/{name}", _FOR_GOOD)


def missing_page(request: Request) -> Response | None:
    """The page that says there is no such page, for a person in a browser; None for programs and files."""
    is_of_program = request.url.path.startswith(("/v1/", "/assets/"))
    is_read_by_person = "text/html" in request.headers.get("accept", "")
    if request.method != "GET" or is_of_program or not is_read_by_person or not _files():
        return None
    return _send(request, "index.html", _ASK_ANEW, HTTPStatus.NOT_FOUND)


def _send(request: Request, name: str, keep: str, status: HTTPStatus = HTTPStatus.OK) -> Response:
    if (body := _files().get(name)) is None:
        raise NotFound(
            f"the dashboard has no file {name}"
            if _files()
            else "the dashboard is not built in this checkout; run make setup"
        )
    headers = {"Cache-Control": keep, "Vary": "Accept-Encoding"}
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    if "gzip" in request.headers.get("accept-encoding", ""):
        body = _packed(body)
        headers["Content-Encoding"] = "gzip"
    return Response(body, status, media_type=kind, headers=headers)


def _files() -> dict[str, bytes]:
    """Every file of the dashboard by its address; none where it is not built.

    Looked for anew until there is one: in a checkout, the service may run before the dashboard is built.
    """
    return _read() if (resources.files("holdfast") / "web" / "index.html").is_file() else {}


@cache
def _read() -> dict[str, bytes]:
    # Once: they do not change under an installed service, and are less than a megabyte.
    web = resources.files("holdfast") / "web"
    assets = {f"assets/{file.name}": file.read_bytes() for file in (web / "assets").iterdir()}
    return assets | {"index.html": (web / "index.html").read_bytes()}


@cache
def _packed(body: bytes) -> bytes:
    return gzip.compress(body, mtime=0)

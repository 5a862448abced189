"""Files of the dashboard, served by the service as Vite built them."""

from __future__ import annotations

import gzip
import mimetypes
from functools import cache
from http import HTTPStatus
from importlib import resources
from typing import Final

from fastapi import Request, Response

from holdfast.api.auth.route_policy import PAGES
from holdfast.api.routing import Router
from holdfast.errors import NotFound

web_router = Router(include_in_schema=False)

_IMMUTABLE: Final = "public, max-age=31536000, immutable"
"""For files whose names change with their content."""
_REVALIDATE: Final = "no-cache"
"""For the page itself: it names these files and must be of the same version."""


def show_page(request: Request) -> Response:
    """Serve the dashboard's HTML file. The browser selects the page by the address."""
    return _send(request, "index.html", _REVALIDATE)


for _page in PAGES:
    web_router.get(_page)(show_page)


@web_router.get("/assets/{name}")
def read_asset(name: str, request: Request) -> Response:
    """Serve a script, style sheet or picture of the dashboard."""
    return _send(request, f"assets/{name}", _IMMUTABLE)


def missing_page(request: Request) -> Response | None:
    """Return the dashboard's page for unknown addresses, if a browser requests it.

    None for programs and files.
    """
    is_of_program = request.url.path.startswith(("/v1/", "/assets/", "/docs/"))
    is_read_by_person = "text/html" in request.headers.get("accept", "")
    if request.method != "GET" or is_of_program or not is_read_by_person or not _files():
        return None
    return _send(request, "index.html", _REVALIDATE, HTTPStatus.NOT_FOUND)


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
        body = _compressed(body)
        headers["Content-Encoding"] = "gzip"
    return Response(body, status, media_type=kind, headers=headers)


def _files() -> dict[str, bytes]:
    """Read every file of the dashboard by its address; empty if it is not built.

    Repeated until it is found: in a checkout, the service may run before the dashboard is built.
    """
    return _read() if (resources.files("holdfast") / "web" / "index.html").is_file() else {}


@cache
def _read() -> dict[str, bytes]:
    # Cached: the files of an installed service do not change, and take less than a megabyte.
    web = resources.files("holdfast") / "web"
    assets = {f"assets/{file.name}": file.read_bytes() for file in (web / "assets").iterdir()}
    return assets | {"index.html": (web / "index.html").read_bytes()}


@cache
def _compressed(body: bytes) -> bytes:
    return gzip.compress(body, mtime=0)

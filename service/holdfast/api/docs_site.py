"""The documentation site at /docs, as `make docs` built it.

It is part of the wheel, and open to anyone like the dashboard's page.

The reference as Markdown, to which the `type` of a problem points, keeps its addresses: a browser that asks for one is led to
the page of the site, a program gets Markdown.
"""

from __future__ import annotations

import gzip
import hashlib
import mimetypes
import re
from functools import lru_cache
from http import HTTPStatus
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Final

from fastapi import Request, Response
from fastapi.responses import RedirectResponse

from holdfast.api.routing import Router
from holdfast.errors import NotFound

PREFIX: Final = "/docs"
docs_router = Router(prefix=PREFIX, tags=["docs"])

_HASHED: Final = re.compile(r"assets/(inline/|.*\.[0-9a-f]{8}\.min\.)")
"""Files whose names change with their content."""


@docs_router.get("", include_in_schema=False)
def lead_to_site() -> Response:
    """Lead to the first page of the site, whose links are relative to its folder."""
    return RedirectResponse("docs/")


@docs_router.get(
    "/{name}", response_class=Response, responses={200: {"content": {"text/markdown": {}}}}
)
def read_page(name: str, request: Request) -> Response:
    """Serve a page of the reference as Markdown: errors, events, settings, ..."""
    pages = {page.name.removesuffix(".md"): page for page in _reference().iterdir()}
    word = name.removesuffix(".md")  # The form in which the pages link to each other.
    if word in pages:
        is_read_by_person = "text/html" in request.headers.get("accept", "")
        if is_read_by_person and word == name and f"reference/{name}/index.html" in _site():
            return RedirectResponse(f"reference/{name}/", headers={"Vary": "Accept"})
        body = pages[word].read_bytes()
        media = "text/markdown; charset=utf-8"
        return Response(body, media_type=media, headers={"Vary": "Accept"})
    if (file := _site().get(name)) is not None:
        return _send(request, name, file)
    if f"{name}/index.html" in _site():
        return RedirectResponse(f"{name}/")
    raise NotFound(f"there is no page {name}; available: {', '.join(sorted(pages))}")


@docs_router.get("/{path:path}", include_in_schema=False)
def read_site(path: str, request: Request) -> Response:
    """Serve a file of the site."""
    files = _site()
    if not files:
        raise NotFound(
            "the documentation site is not built in this checkout; run make docs, or read a page of the reference, such as /docs/errors"
        )
    if f"{path}/index.html" in files:
        return RedirectResponse(f"{path.rpartition('/')[2]}/")
    name = f"{path}index.html" if not path or path.endswith("/") else path
    if name not in files:
        raise NotFound(f"the documentation has no page {path}; its first page is /docs/")
    return _send(request, name, files[name])


def _send(request: Request, name: str, file: Path) -> Response:
    body, compressed, tag = _read(file, file.stat().st_mtime_ns)
    keep = "public, max-age=31536000, immutable" if _HASHED.match(name) else "no-cache"
    headers = {"Cache-Control": keep, "Vary": "Accept-Encoding", "ETag": tag}
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=HTTPStatus.NOT_MODIFIED, headers=headers)
    if "gzip" in request.headers.get("accept-encoding", ""):
        body = compressed
        headers["Content-Encoding"] = "gzip"
    kind = mimetypes.guess_type(name)[0] or "application/octet-stream"
    return Response(body, media_type=kind, headers=headers)


@lru_cache(maxsize=1024)
def _read(file: Path, _mtime_ns: int) -> tuple[bytes, bytes, str]:
    """Return a file as it is and compressed, and its entity tag.

    A site has some hundred files, ten megabytes together.
    """
    body = file.read_bytes()
    tag = f'W/"{hashlib.sha256(body).hexdigest()[:32]}"'
    return body, gzip.compress(body, mtime=0), tag


def _site() -> dict[str, Path]:
    """Return the files of the site by their address; empty if it is not built."""
    folder = Path(str(resources.files("holdfast"))) / "docs_site"
    index = folder / "index.html"
    return _list(folder, index.stat().st_mtime_ns) if index.is_file() else {}


@lru_cache(maxsize=1)
def _list(folder: Path, _mtime_ns: int) -> dict[str, Path]:
    # Listed, so that no address can name a file outside; again after each build in a checkout.
    return {
        file.relative_to(folder).as_posix(): file for file in folder.rglob("*") if file.is_file()
    }


def _reference() -> Traversable:
    """Return `docs/reference` of an installed wheel, or of the checkout in an editable install."""
    packaged = resources.files("holdfast") / "_docs"
    return packaged if packaged.is_dir() else Path(__file__).parents[3] / "docs" / "reference"

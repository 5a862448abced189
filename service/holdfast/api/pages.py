"""The reference pages, served by the service itself, so that the `type` of a problem leads somewhere."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from fastapi import Response

from holdfast.api.routing import Router
from holdfast.errors import NotFound

router = Router(prefix="/docs", tags=["docs"])


@router.get("/{name}", response_class=Response, responses={200: {"content": {"text/markdown": {}}}})
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

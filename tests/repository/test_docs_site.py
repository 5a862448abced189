"""The documentation site as `make docs` builds it: complete, its links lead somewhere, and it needs no other server."""

from __future__ import annotations

import importlib.util
import json
import posixpath
import re
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType

import pytest
from support.requirements import skip_or_fail

ROOT = Path(__file__).parents[2]
SITE = ROOT / "service/holdfast/docs_site"
LOADED = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src"}
"""Attributes whose files a browser loads without being asked."""


class Document(HTMLParser):
    """The addresses of a page, and what the policy of the service refuses."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.inline: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids.add(values.get("id") or "")
        if tag == "a" and (link := values.get("href")):
            self.links.append(link)
        is_page = tag == "link" and values.get("rel") in {"next", "prev"}
        if (file := values.get(LOADED.get(tag, ""))) and not is_page:
            self.loaded.append(file)
        is_script = tag == "script" and not {"src", "type"} & values.keys()
        if (
            is_script
            or tag == "style"
            or "style" in values
            or any(k.startswith("on") for k in values)
        ):
            self.inline.append(self.get_starttag_text() or tag)


@pytest.fixture(autouse=True)
def _built() -> None:
    if not (SITE / "index.html").exists():
        skip_or_fail("needs the documentation site, which make docs builds")


@cache
def documents() -> dict[str, Document]:
    """All pages by their address below the site."""
    return {
        page.parent.relative_to(SITE).as_posix(): Document(page.read_text())
        for page in SITE.rglob("index.html")
    }


def local(kind: str) -> Iterator[tuple[str, str, str]]:
    """Page, file and anchor of every address in the site that a page names."""
    for page, document in documents().items():
        for url in getattr(document, kind):
            if not re.match(r"[a-z]+:", url):
                path, _, anchor = url.partition("#")
                yield page, posixpath.normpath(posixpath.join(page, path)), anchor


def test_site_and_navigation_have_every_page() -> None:
    pages = {
        path.relative_to(ROOT / "docs").with_suffix("").as_posix()
        for path in (ROOT / "docs").rglob("*.md")
    }
    # Navigation of a page shows the pages of its own section.
    linked = {target for _, target, _ in local("links")}

    assert pages - {"index"} | {"contributing", "changelog"} <= documents().keys()
    assert documents().keys() - linked == set()


def test_links_lead_to_pages_and_headings() -> None:
    for page, target, anchor in local("links"):
        if target in documents():
            assert not anchor or anchor in documents()[target].ids, f"{page}: {target}#{anchor}"
        else:
            assert (SITE / target).is_file(), f"{page}: {target}"


def test_files_of_pages_are_in_the_site() -> None:
    outside = [
        (page, url)
        for page, document in documents().items()
        for url in document.loaded
        if re.match(r"[a-z]+:|//", url)
    ]

    assert not outside
    assert all((SITE / target).is_file() for _, target, _ in local("loaded"))


def test_nothing_is_inline_that_the_policy_refuses() -> None:
    assert {page: found.inline for page, found in documents().items() if found.inline} == {}


def test_style_sheets_load_nothing_from_elsewhere() -> None:
    for sheet in SITE.rglob("*.css"):
        urls = re.findall(r"url\(['\"]?([^)'\"]+)", sheet.read_text())
        assert all(url.startswith(("data:", "#")) for url in urls), sheet.name


def test_search_index_covers_the_reference() -> None:
    index = json.loads((SITE / "search/search_index.json").read_text())

    found = {item["location"].partition("#")[0] for item in index["docs"]}

    assert {"reference/errors/", "howto/budgets/", "changelog/"} <= found
    assert documents().keys() - {path.rstrip("/") or "." for path in found} == set()


@cache
def versions() -> ModuleType:
    """The program that keeps several versions."""
    spec = importlib.util.spec_from_file_location("site_versions", ROOT / "docs/site_versions.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_versions_are_listed_by_number(tmp_path: Path) -> None:
    for name in ("0.9.0", "0.10.0rc1", "0.10.0", "notes"):
        (tmp_path / name).mkdir()
        if name != "notes":
            (tmp_path / name / "index.html").touch()

    versions().write_list(tmp_path)

    listed = json.loads((tmp_path / "versions.json").read_text())
    assert [item["version"] for item in listed] == ["0.10.0", "0.10.0rc1", "0.9.0"]
    assert 'url=0.10.0/"' in (tmp_path / "index.html").read_text()

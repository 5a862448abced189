"""The documentation site in a browser: search, themes, narrow screens, and nothing from elsewhere."""

from __future__ import annotations

import re
from typing import Literal

import pytest
from holdfast.api import docs_site
from playwright.sync_api import Page, Request, expect
from support.requirements import skip_or_fail
from web.axe import violations

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
Theme = Literal["light", "dark"]


@pytest.fixture(autouse=True)
def _built() -> None:
    if not docs_site._site():
        skip_or_fail("needs the documentation site, which make docs builds")


def test_search_finds_a_page_without_another_server(url: str, page: Page) -> None:
    elsewhere: list[str] = []

    def note(request: Request) -> None:
        if not request.url.startswith((url, "data:", "blob:")):
            elsewhere.append(request.url)

    page.on("request", note)
    page.goto(f"{url}/docs/")

    words = page.get_by_role("textbox", name="Search")
    words.click()
    expect(page.locator(".md-search-result__meta")).to_have_text("Type to start searching")
    words.fill("retention")
    words.press("End")  # The search reads its words when a key is released.
    page.locator(".md-search-result__link").first.click()

    expect(page).to_have_url(re.compile(r"/docs/(reference|howto|decisions)/.+"))
    assert elsewhere == []


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.full)])
@pytest.mark.parametrize("width", [1440, pytest.param(390, marks=pytest.mark.full)])
def test_pages_are_accessible(url: str, page: Page, theme: Theme, width: int) -> None:
    page.emulate_media(color_scheme=theme)
    page.set_viewport_size({"width": width, "height": 900})
    for path in ("", "howto/budgets/", "reference/settings/"):
        page.goto(f"{url}/docs/{path}")

        expect(page.get_by_role("heading", level=1)).to_be_visible()
        scheme = "slate" if theme == "dark" else "default"
        expect(page.locator(f"body[data-md-color-scheme={scheme}]")).to_have_count(1)
        assert violations(page) == []
        room = "document.documentElement.clientWidth - document.documentElement.scrollWidth"
        assert page.evaluate(room) >= 0


def test_dashboard_leads_to_the_documentation(url: str, page: Page) -> None:
    page.goto(url)

    page.get_by_role("link", name="Docs").click()

    expect(page).to_have_url(re.compile(r"/docs/$"))
    expect(page.get_by_role("heading", level=1, name="Holdfast")).to_be_visible()

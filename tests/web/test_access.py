"""Accessibility of every page: contrast, keyboard, small windows, both themes."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
from playwright.sync_api import Page, expect
from support.principals import create_principals
from support.simulated_service import SimulatedService
from web.axe import violations

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

TEAM = ("budgets", "projects", "users", "tokens", "notifications", "audit")
PAGES = (
    "/",
    "/?by=tag&show=paid",
    "/submit",
    "/queue",
    "/sweeps",
    *(f"/team?tab={tab}" for tab in TEAM),
)
TABS = ("story", "events", "checkpoints", "logs", "task", "manifest")
in_both_themes = pytest.mark.parametrize(
    "theme", ["light", pytest.param("dark", marks=pytest.mark.full)]
)
Theme = Literal["light", "dark"]


@in_both_themes
def test_job_pages_have_no_accessibility_violations(
    theme: Theme, url: str, preempted_job: str, page: Page
) -> None:
    page.emulate_media(color_scheme=theme)
    found = []

    for path in (*PAGES, *(f"/jobs/{preempted_job}?tab={tab}" for tab in TABS), "/jobs/nowhere"):
        page.goto(f"{url}{path}")
        heading = "Job not found" if path == "/jobs/nowhere" else None
        expect(page.get_by_role("heading", level=1, name=heading)).to_be_visible()
        expect(page.get_by_text("Loading")).to_have_count(0)
        found += [f"{path}: {rule}" for rule in violations(page)]

    assert not found, "\n".join(found)


@pytest.mark.full
@in_both_themes
def test_dialog_and_tooltip_have_no_accessibility_violations(
    theme: Theme, url: str, preempted_job: str, page: Page
) -> None:
    page.emulate_media(color_scheme=theme)
    page.goto(f"{url}/jobs/{preempted_job}")
    page.get_by_role("region", name="Cost", exact=True).get_by_role("button").first.focus()
    explained = violations(page)
    page.get_by_role("button", name="Limits").click()

    asked = violations(page)

    assert not explained + asked


@pytest.mark.full
@in_both_themes
def test_prices_page_has_no_accessibility_violations(theme: Theme, url: str, page: Page) -> None:
    page.emulate_media(color_scheme=theme)
    page.goto(url)
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    page.keyboard.press("Control+k")
    expect(page.get_by_role("option").first).to_be_visible()
    listed = violations(page)
    page.keyboard.press("Escape")
    page.keyboard.press("?")

    helped = violations(page)

    assert not listed + helped


@pytest.mark.full
@in_both_themes
def test_first_run_page_has_no_accessibility_violations(theme: Theme, url: str, page: Page) -> None:
    page.emulate_media(color_scheme=theme)
    page.goto(url)
    expect(page.get_by_role("heading", name="Submit the first job")).to_be_visible()

    assert not violations(page)


SINGLE_SIGN_ON = {
    "provider": "identity-of-the-research-group.accounts.example.com",
    "failure": "no group of ann@example.com gives a role in Holdfast: ask an admin to add one to its settings",
}
"""The answer of a service with an identity provider, after a sign-in that failed."""


@pytest.mark.full
@in_both_themes
def test_login_page_has_no_accessibility_violations(
    theme: Theme, world: SimulatedService, url: str, page: Page
) -> None:
    create_principals(world)
    world.app.state.services = replace(world.services, trust_loopback=False)
    page.emulate_media(color_scheme=theme)
    page.goto(url)
    expect(page.get_by_label("Access token")).to_be_visible()
    with_tokens_only = violations(page)
    page.route("**/v1/sign-in", lambda route: route.fulfill(json=SINGLE_SIGN_ON))
    page.goto(url)
    expect(page.get_by_role("link", name="Sign in with")).to_be_visible()

    assert not with_tokens_only + violations(page)


@pytest.mark.full
def test_selected_theme_is_kept(url: str, page: Page) -> None:
    page.goto(url)
    ground = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(ground)

    page.get_by_role("button", name="Theme is auto; switch").click()
    page.get_by_role("button", name="Theme is light; switch").click()
    page.reload()

    expect(page.get_by_role("button", name="Theme is dark; switch")).to_be_visible()
    assert page.evaluate(ground) != light


at_every_width = pytest.mark.parametrize(
    "width",
    [390, pytest.param(1024, marks=pytest.mark.full), pytest.param(1440, marks=pytest.mark.full)],
)
RESIZE_VIEWS = ((390, "dark"), (1440, "light"), (1440, "dark"))
ROOM = "document.documentElement.clientWidth - document.documentElement.scrollWidth"
"""Horizontal space right of an element; negative if it overflows the page."""
COVER = """group => {
    const cover = document.createElement('div')
    cover.id = 'cover'
    cover.style = 'position: fixed; inset: 0'
    group.append(cover)
}"""
"""Puts an element over the whole page, as part of a group."""


@pytest.mark.full
@at_every_width
def test_no_job_page_is_wider_than_its_window(
    width: int, url: str, preempted_job: str, page: Page
) -> None:
    page.set_viewport_size({"width": width, "height": 800})

    for path in (*PAGES, *(f"/jobs/{preempted_job}?tab={tab}" for tab in TABS), "/jobs/nowhere"):
        page.goto(f"{url}{path}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_text("Loading")).to_have_count(0)

        assert page.evaluate(ROOM) >= 0, path


@pytest.mark.full
def test_tooltip_shows_where_content_was_replaced(url: str, preempted_job: str, page: Page) -> None:
    """Browsers send no pointerout to content that is removed under the pointer."""
    page.goto(f"{url}/jobs/{preempted_job}")
    actions = page.get_by_role("group", name="Actions")
    box = actions.get_by_role("button", name="Resume", exact=True).bounding_box()
    assert box
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    actions.evaluate(COVER)
    page.mouse.move(x, y)
    expect(page.locator("#cover:hover")).to_have_count(1)

    page.evaluate("document.getElementById('cover').remove()")
    page.mouse.move(x + 1, y)

    expect(actions.get_by_role("tooltip").filter(visible=True)).to_contain_text("Not now: ")


@pytest.mark.full
@at_every_width
def test_dialogs_and_tooltips_fit_into_the_window(
    width: int, url: str, preempted_job: str, page: Page
) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{url}/jobs/{preempted_job}")
    # Five tiles, and the columns Price and Amount of the table beside the nodes.
    explained = page.get_by_role("region", name="Cost", exact=True).locator("[aria-describedby]")
    expect(explained).to_have_count(7)

    for figure in explained.all():
        figure.focus()
        box = page.get_by_role("tooltip").filter(visible=True).bounding_box()
        assert box
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    page.get_by_role("button", name="Clone").click()
    page.get_by_text("Change limits").click()
    box = page.get_by_role("dialog").bounding_box()

    assert box
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert box["height"] <= 800
    assert page.evaluate(ROOM) >= 0


@pytest.mark.parametrize(
    ("width", "theme"),
    [(390, "light"), *(pytest.param(*each, marks=pytest.mark.full) for each in RESIZE_VIEWS)],
)
def test_resize_dialog_fits_and_has_no_violations(
    width: int, theme: Theme, url: str, paused_job: str, page: Page
) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.emulate_media(color_scheme=theme)
    page.goto(f"{url}/jobs/{paused_job}")
    page.get_by_role("button", name="Resume on other nodes").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Nodes", exact=True).fill("3")
    expect(dialog.get_by_role("status")).to_contain_text("nodes 3 instead of 2")
    accepted = violations(page)

    dialog.get_by_label("Place or launcher").fill("aws/us-east-1/us-east-1a")
    dialog.get_by_label("Accelerators of each node").fill("A100-80GB:8")
    expect(dialog.get_by_role("list", name="Reasons for refusal")).to_be_visible()

    assert not accepted + violations(page)
    box = dialog.bounding_box()
    assert box
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= width
    assert box["height"] <= 800
    assert dialog.evaluate("it => it.scrollWidth <= it.clientWidth")
    assert page.evaluate(ROOM) >= 0


@pytest.mark.full
@at_every_width
def test_first_run_and_login_pages_fit_every_width(
    width: int, world: SimulatedService, url: str, page: Page
) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(url)
    expect(page.get_by_role("heading", name="Submit the first job")).to_be_visible()
    first = page.evaluate(ROOM)
    create_principals(world)
    world.app.state.services = replace(world.services, trust_loopback=False)

    page.goto(url)
    expect(page.get_by_label("Access token")).to_be_visible()
    with_tokens_only = page.evaluate(ROOM)
    page.route("**/v1/sign-in", lambda route: route.fulfill(json=SINGLE_SIGN_ON))
    page.goto(url)
    expect(page.get_by_role("link", name="Sign in with")).to_be_visible()

    assert min(first, with_tokens_only, page.evaluate(ROOM)) >= 0


@pytest.mark.full
def test_keyboard_skips_the_bar_and_reaches_the_content(
    url: str, preempted_job: str, page: Page
) -> None:
    page.goto(url)
    link = page.get_by_role("region", name="Active jobs").get_by_role("link")
    expect(link).to_be_visible()

    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("Enter")
    for _ in range(40):
        if link.evaluate("it => it === document.activeElement"):
            break
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")

    expect(page.get_by_role("heading", level=1, name="tiny")).to_be_visible()

"""The command palette and keyboard shortcuts."""

from __future__ import annotations

import re
from contextlib import suppress

import pytest
from playwright.sync_api import Page, expect
from support.simulated_service import JOB_FILE, SimulatedService
from web.network_proxy import NetworkProxy

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_partial_name_opens_the_job(world: SimulatedService, url: str, page: Page) -> None:
    for name in ("bert-large", "llama"):
        world.submit(JOB_FILE.replace("name: tiny", f"name: {name}"))
    page.goto(url)
    expect(page.get_by_role("link", name="llama")).to_be_visible()

    page.keyboard.press("Control+k")
    page.keyboard.type("BERT")
    options = page.get_by_role("listbox", name="Results").get_by_role("option")
    expect(options).to_have_count(1)
    expect(options).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")

    expect(page.get_by_role("heading", level=1, name="bert-large")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)


@pytest.mark.full
def test_enter_opens_the_typed_job_despite_a_slow_search(
    world: SimulatedService, url: str, proxy: NetworkProxy, page: Page
) -> None:
    for name in ("llama", "bert-large"):
        world.submit(JOB_FILE.replace("name: tiny", f"name: {name}"))
    page.goto(url)
    page.get_by_role("button", name="Go to").click()
    options = page.get_by_role("listbox", name="Results").get_by_role("option")
    expect(options.filter(has_text="bert-large")).to_be_visible()

    with proxy.holding("find=llama"):
        with page.expect_request(re.compile("find=llama")):
            page.keyboard.type("llama")
        page.keyboard.press("Enter")

        expect(page.get_by_role("dialog", name="Go to")).to_contain_text("Searching jobs")
        expect(options).to_have_count(0)
    expect(page.get_by_role("heading", level=1, name="llama")).to_be_visible()


@pytest.mark.full
def test_enter_just_after_the_last_letter_is_handled(
    world: SimulatedService, url: str, page: Page
) -> None:
    world.submit(JOB_FILE.replace("name: tiny", "name: llama"))
    page.goto(url)
    page.get_by_role("button", name="Go to").click()

    page.keyboard.type("llama")
    page.keyboard.press("Enter")

    expect(page.get_by_role("heading", level=1, name="llama")).to_be_visible()


@pytest.mark.full
def test_action_and_name_open_the_dialog_of_the_job(
    world: SimulatedService, url: str, page: Page
) -> None:
    job = world.submit(JOB_FILE.replace("name: tiny", "name: llama"))["id"]
    page.goto(url)
    page.get_by_role("button", name="Go to").click()

    page.keyboard.type("cancel llama")
    options = page.get_by_role("listbox", name="Results").get_by_role("option")
    expect(options).to_contain_text(["Cancel llama"])
    page.keyboard.press("Enter")

    dialog = page.get_by_role("dialog", name="Cancel llama?")
    dialog.get_by_role("button", name="Cancel job").click()
    expect(dialog).to_be_hidden()
    world.until(job, "cancelled")


@pytest.mark.full
def test_paused_job_is_resized_from_its_page(
    world: SimulatedService, url: str, paused_job: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{paused_job}")
    expect(page.get_by_role("button", name="Resume on other nodes")).to_be_enabled()
    page.get_by_role("button", name="Go to").click()

    page.keyboard.type("resize")
    options = page.get_by_role("listbox", name="Results").get_by_role("option")
    expect(options).to_contain_text(["Resize tiny"])
    page.keyboard.press("Enter")

    expect(page.get_by_role("dialog", name="Resume tiny on other nodes?")).to_be_visible()


@pytest.mark.full
def test_arrow_keys_select_and_escape_closes(url: str, page: Page) -> None:
    page.goto(url)
    page.get_by_role("button", name="Go to").click()
    box = page.get_by_role("combobox", name="Page, job or action")
    box.fill("theme")
    options = page.get_by_role("option")
    expect(options).to_have_count(3)

    page.keyboard.press("ArrowUp")
    expect(options.nth(2)).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")

    expect(page.get_by_role("button", name="Theme is dark; switch")).to_be_visible()
    page.keyboard.press("/")
    expect(box).to_be_focused()
    page.keyboard.press("Escape")
    expect(box).to_have_count(0)


@pytest.mark.full
def test_shortcuts_open_pages_except_while_typing(url: str, page: Page) -> None:
    page.goto(url)
    expect(page.get_by_role("heading", level=1, name="Fleet")).to_be_visible()

    heading = page.get_by_role("heading", level=1, name="Submit a job")
    # The second key counts only soon after the first.
    for _ in range(20):
        page.keyboard.press("g")
        page.keyboard.press("s")
        with suppress(AssertionError):
            expect(heading).to_be_visible(timeout=3_000)
            break
    expect(heading).to_be_visible()
    page.get_by_label("Name", exact=True).press_sequentially("gf?")
    expect(page.get_by_role("heading", level=1, name="Submit a job")).to_be_visible()
    page.get_by_role("heading", level=1).click()
    page.keyboard.press("?")

    expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()

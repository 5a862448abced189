"""Logs of real processes: a million lines, search, and lines printed while reading."""

from __future__ import annotations

import re
import signal
from pathlib import Path

import pytest
from playwright.sync_api import Locator, Page, expect
from support.live_service import Service

SOON_MS = 60_000
LINES = 1_000_000
MOST_ELEMENTS = 400
"""Maximum number of elements of a displayed log of any length."""


def log_of(service: Service, page: Page, job: str, line: str) -> Locator:
    """The displayed log of a job, once it contains this line."""
    page.goto(f"{service.environment['HOLDFAST_URL']}/jobs/{job}?tab=logs")
    log = page.get_by_role("region", name="Log", exact=True)
    expect(log).to_contain_text(line, timeout=SOON_MS)
    return log


@pytest.mark.full
def test_million_lines_are_scrolled_searched_and_followed(service: Service, page: Page) -> None:
    go = service.folder / "go"
    waits = f"until [ -e {go} ]; do sleep 0.2; done"
    job = service.submit(
        name="chatty", run=f"seq 1 {LINES}; echo so far; {waits}; echo afterwards; sleep 600"
    )
    log = log_of(service, page, job, "so far")
    log.focus()
    expect(log.get_by_text(str(LINES), exact=True)).to_be_in_viewport()
    page.keyboard.press("Home")
    expect(log.get_by_text("1", exact=True)).to_be_in_viewport()
    log.evaluate("it => it.scrollTop = it.scrollHeight / 2")
    expect(log.get_by_text(re.compile(r"^[456]\d{5}\n?$")).first).to_be_visible()
    assert log.evaluate("it => it.querySelectorAll('*').length") < MOST_ELEMENTS

    page.get_by_role("searchbox", name="Search the logs").fill("777777")
    page.keyboard.press("Enter")
    found = page.get_by_role("region", name="Search results")
    found.get_by_role("button", name="line 777,777").click()
    expect(log.get_by_text("777777", exact=True)).to_be_in_viewport()
    log.focus()
    page.keyboard.press("End")
    expect(log.get_by_text("so far", exact=True)).to_be_in_viewport()
    go.touch()
    expect(log.get_by_text("afterwards", exact=True)).to_be_in_viewport(timeout=SOON_MS)


@pytest.mark.full
def test_invalid_pattern_and_missing_text_are_reported(service: Service, page: Page) -> None:
    job = service.submit(name="terse", run="echo one line; sleep 600")
    log_of(service, page, job, "one line")
    search = page.get_by_role("searchbox", name="Search the logs")

    search.fill("two lines")
    search.press("Enter")
    expect(
        page.get_by_role("status").filter(has_text="No line matches “two lines”")
    ).to_be_visible()
    search.fill("(")
    page.get_by_label("regular expression").check()
    search.press("Enter")

    expect(page.get_by_role("alert")).to_contain_text("is not a valid RE2 pattern")


@pytest.mark.full
def test_log_lines_are_never_shown_for_another_job(service: Service, page: Page) -> None:
    first = service.submit(name="first", run="echo the first one; sleep 600")
    service.submit(name="second", run="seq 1 100; echo the second one; sleep 600")
    log = log_of(service, page, first, "the first one")
    page.get_by_role("button", name="Go to").click()
    page.keyboard.type("second")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="second")).to_be_visible()
    page.get_by_role("tab", name="Logs").click()
    expect(log).to_contain_text("the second one", timeout=SOON_MS)

    page.go_back()

    expect(page.get_by_role("heading", level=1, name="first")).to_be_visible()
    expect(log).to_contain_text("the first one")
    expect(log).not_to_contain_text("the second one")
    page.go_forward()
    expect(log).to_contain_text("the second one")
    expect(log).not_to_contain_text("the first one")


@pytest.mark.full
def test_interrupted_search_is_reported_and_continues(service: Service, page: Page) -> None:
    job = service.submit(name="wordy", run="seq -f 'line %g' 1 150; sleep 600")
    log_of(service, page, job, "line 150")
    page.get_by_role("searchbox", name="Search the logs").fill("line")
    page.keyboard.press("Enter")
    found = page.get_by_role("region", name="Search results")
    expect(found.get_by_role("status")).to_have_text("The first 100 lines match “line”.")

    service.end(signal.SIGKILL)
    found.get_by_role("button", name="Continue search").click()

    expect(found.get_by_role("alert")).to_contain_text("unreachable")
    service.start()
    # By hand, unless the page was faster: it repeats the request once the service responds.
    found.get_by_role("button", name=re.compile("Try again|Continue search")).first.click()
    expect(found.get_by_role("status")).to_have_text("150 lines match “line”.")
    expect(found.get_by_role("alert")).to_have_count(0)


@pytest.mark.full
def test_repeated_search_finds_lines_printed_since(service: Service, page: Page) -> None:
    go = service.folder / "go"
    job = service.submit(
        name="slow",
        run=f"echo so far; until [ -e {go} ]; do sleep 0.2; done; echo later; sleep 600",
    )
    log = log_of(service, page, job, "so far")
    page.get_by_role("searchbox", name="Search the logs").fill("later")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("status").filter(has_text="No line matches “later”")).to_be_visible()
    go.touch()
    expect(log).to_contain_text("later", timeout=SOON_MS)

    page.get_by_role("button", name="Search").click()

    found = page.get_by_role("region", name="Search results")
    expect(found.get_by_role("button", name="line 2")).to_be_visible()


@pytest.mark.full
def test_log_wraps_hides_time_stamps_and_downloads(
    service: Service, page: Page, tmp_path: Path
) -> None:
    long = "x" * 500
    job = service.submit(name="timed", run=f"echo '12:30:01 first {long}'; echo end; sleep 600")
    log = log_of(service, page, job, "end")
    expect(log).to_contain_text("12:30:01 first")

    page.get_by_label("Time stamps").uncheck()
    expect(log).not_to_contain_text("12:30:01")
    page.get_by_label("Wrap lines").check()

    expect(log).to_contain_text("first")
    assert log.evaluate("it => it.scrollWidth <= it.clientWidth")
    with page.expect_download() as file:
        page.get_by_role("button", name="Download").click()
    file.value.save_as(tmp_path / "log")
    assert f"12:30:01 first {long}\nend\n" in (tmp_path / "log").read_text()
    assert file.value.suggested_filename == f"{job}-attempt-1-node-0.log"

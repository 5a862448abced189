"""Pages and actions in a real browser, and the measurements of that browser."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from playwright.sync_api import Browser, CDPSession, Page, expect

PATIENCE_MS = 60_000
SETTLE_MS = 400
"""Time that the browser has after the last action to report its durations."""
WATCH = """
window.slowest_ms = 0; window.held_ms = 0;
new PerformanceObserver(list => list.getEntries().forEach(e => { window.slowest_ms = Math.max(window.slowest_ms, e.duration) }))
  .observe({type: 'event', durationThreshold: 16, buffered: true});
new PerformanceObserver(list => list.getEntries().forEach(e => { window.held_ms = Math.max(window.held_ms, e.duration) }))
  .observe({type: 'longtask', buffered: true});
"""
FIRST = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"
PAINTED = "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))"


@dataclass(frozen=True)
class View:
    """A page and the actions on it."""

    name: str
    path: str
    ready: Callable[[Page], object]
    """Waits until the content is displayed."""
    actions: Sequence[Callable[[Page], object]]


@dataclass(frozen=True)
class Measurement:
    """The measurements of one visit."""

    first_ms: float
    """Time until the first paint, with an empty cache."""
    whole_ms: float
    """Time until the content was displayed."""
    slowest_ms: float
    """Longest time from an action to the next paint; browsers report none below 16 ms."""
    held_ms: float
    """Longest time during which the page was blocked."""
    heap_mb: float
    nodes: int
    """Elements of the page."""


def visit(browser: Browser, url: str, view: View) -> Measurement:
    """Visit the page once and perform all actions."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, locale="en-US")
    context.set_default_timeout(PATIENCE_MS)
    expect.set_options(timeout=PATIENCE_MS)
    page = context.new_page()
    page.add_init_script(WATCH)
    page.goto(f"{url}{view.path}", wait_until="commit")
    view.ready(page)
    whole_ms = float(page.evaluate("performance.now()"))
    first_ms = float(page.evaluate(FIRST))
    for action in view.actions:
        action(page)
        page.evaluate(PAINTED)
    page.wait_for_timeout(SETTLE_MS)
    slowest_ms, held_ms = page.evaluate("[window.slowest_ms, window.held_ms]")
    heap, nodes = _memory(context.new_cdp_session(page))
    context.close()
    return Measurement(first_ms, whole_ms, slowest_ms, held_ms, heap / 1e6, nodes)


def _memory(session: CDPSession) -> tuple[int, int]:
    session.send("HeapProfiler.collectGarbage")
    heap: int = session.send("Runtime.getHeapUsage")["usedSize"]
    nodes: int = session.send("Memory.getDOMCounters")["nodes"]
    return heap, nodes


def views(job: str) -> Sequence[View]:
    """All measured pages; `job` has many points and lines."""
    at = f"/jobs/{job}"
    return (
        View("fleet", "/", _has_jobs, (_search("train-00"), _sort, _search(""), _press_all_rows)),
        View(
            "costs",
            "/",
            _is_whole,
            (*(_stack(by) for by in ("zone", "user", "project")), _choose("Show", "all")),
        ),
        View("job", at, _is_whole, (*(_tab(name) for name in ("Events", "Checkpoints", "Story")),)),
        View("log", f"{at}?tab=logs", _has_log, (_wheel, _wheel, _wheel)),
        View(
            "logs",
            f"{at}?tab=logs",
            _has_log,
            (_log("Attempt", "1"), _log("Node", "1"), _log("Printed by", "r")),
        ),
        View(
            "preemptions", "/preemptions", _is_whole, (_choose("Hours", "1"), _choose("Hours", "6"))
        ),
        View("prices", "/prices", _is_whole, (_choose("Node", "H100:8"), _choose("Since", "90"))),
    )


def _has_jobs(page: Page) -> None:
    rows = page.get_by_role("region", name="Active jobs").get_by_role("row")
    expect(rows.nth(20)).to_be_visible()


def _is_whole(page: Page) -> None:
    expect(page.get_by_role("heading", level=1)).to_be_visible()
    expect(page.get_by_text("Loading")).to_have_count(0)


def _has_log(page: Page) -> None:
    expect(page.get_by_role("region", name="Log").get_by_text("loss").first).to_be_visible()


def _search(text: str) -> Callable[[Page], None]:
    return lambda page: page.get_by_role("searchbox").first.fill(text)


def _sort(page: Page) -> None:
    page.get_by_role("region", name="Active jobs").get_by_role(
        "button", name="Paid", exact=True
    ).click()


def _press_all_rows(page: Page) -> None:
    for _ in range(12):
        page.keyboard.press("Tab")


def _tab(name: str) -> Callable[[Page], None]:
    return lambda page: page.get_by_role("tab", name=name).click()


def _wheel(page: Page) -> None:
    page.get_by_role("region", name="Log").hover()
    page.mouse.wheel(0, -2000)


def _stack(by: str) -> Callable[[Page], None]:
    """Stack daily costs by another dimension."""

    def choose(page: Page) -> None:
        _choose("By", by)(page)
        _choose("Show", "Paid")(page)
        expect(page.get_by_role("img", name=f"Paid by {by} of")).to_be_visible()

    return choose


def _log(which: str, value: str) -> Callable[[Page], None]:
    """Select another log of the same job."""

    def choose(page: Page) -> None:
        _choose(which, value)(page)
        _has_log(page)

    return choose


def _choose(label: str, text: str) -> Callable[[Page], object]:
    """Select by keyboard: browsers do not measure selections by a script."""
    return lambda page: page.get_by_role("combobox", name=label, exact=True).press_sequentially(
        text
    )

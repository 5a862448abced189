"""Creates the pictures of the documentation from a demonstration: `make screenshots`.

The demonstration and the browser's clock stop at a fixed time, so that equal sources yield equal pictures.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import httpx2
from holdfast.api.app import create_app
from holdfast.demo import history
from holdfast.demo.history.server import open_at
from holdfast.launchers.simulated import SimulatedClock
from holdfast.services import call_directly
from holdfast.settings import Settings, SimulatedMarketSettings
from playwright.sync_api import Browser, expect, sync_playwright
from support.simulated_service import at_a_port

SEED: Final = 7
NOW: Final = datetime(2026, 11, 20, 16, 24, tzinfo=UTC)
IMAGES: Final = Path(__file__).parents[2] / "docs" / "images"
SIZE: Final = {"width": 1280, "height": 860}
"""Window size. A larger one makes larger files and text that is unreadable in a page."""


@dataclass(frozen=True)
class Picture:
    """One picture file."""

    name: str
    path: str
    theme: str = "light"


def pictures(job: str) -> Iterator[Picture]:
    """Yield all pictures; `job` is one that was preempted often."""
    yield Picture("fleet", "/")
    yield Picture("job", f"/jobs/{job}", "dark")
    yield Picture("preemptions", "/preemptions")
    yield Picture("prices", "/prices", "dark")


@contextmanager
def demonstration() -> Iterator[str]:
    """Run a demonstration with a stopped clock; yield its URL."""
    with history.home(Settings()) as settings:
        with ThreadPoolExecutor(1) as executor:
            clock = SimulatedClock(NOW)
            made = executor.submit(
                open_at, clock, SEED, settings, SimulatedMarketSettings(), "http://127.0.0.1:1"
            )
        services = replace(made.result().services, call_launcher=call_directly)
        with at_a_port(create_app(services)) as url:
            yield url
            services.stopping.set()
        services.engine.dispose()


def take(browser: Browser, url: str, picture: Picture) -> Path:
    """Take a picture; return its file."""
    theme = "dark" if picture.theme == "dark" else "light"
    context = browser.new_context(
        viewport=SIZE,
        locale="en-US",
        timezone_id="UTC",
        color_scheme=theme,
        reduced_motion="reduce",
    )
    context.clock.set_fixed_time(NOW)
    page = context.new_page()
    page.goto(f"{url}{picture.path}")
    expect(page.get_by_text("● live")).to_be_visible()
    expect(page.get_by_text("Loading")).to_have_count(0, timeout=30_000)
    page.wait_for_load_state("load")
    file = IMAGES / f"{picture.name}.png"
    page.screenshot(path=file, animations="disabled")
    context.close()
    return file


def main(chromium: str) -> None:
    """Take all pictures with the browser `chromium`."""
    IMAGES.mkdir(exist_ok=True)
    with demonstration() as url, sync_playwright() as playwright:
        jobs = httpx2.get(f"{url}/v1/jobs", params={"limit": 200, "status": "training"}).json()
        job = max(jobs["jobs"], key=lambda job: int(job["paid_micros"]))
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        for picture in pictures(job["id"]):
            file = take(browser, url, picture)
            print(f"{file.relative_to(IMAGES.parents[1])}: {file.stat().st_size / 1024:.0f} KiB")
        browser.close()


if __name__ == "__main__":
    main(sys.argv[1])

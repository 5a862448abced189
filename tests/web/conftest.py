"""The dashboard in a real browser, before the real application over the simulated cloud."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib import resources
from pathlib import Path

import pytest
from fastapi import FastAPI
from playwright.sync_api import Browser, BrowserContext, Page, expect, sync_playwright
from sqlalchemy import Engine
from support import live_service
from support.live_service import Service
from support.requirements import skip_or_fail
from support.simulated_service import SimulatedService, at_a_port, client, open_world, served
from web.network_proxy import NetworkProxy

DESK = {"width": 1440, "height": 900}
PATIENCE_MS = 15_000
"""Until something is to be seen. It is there in a moment, unless the machine has other things to do."""


class WorldAside(SimulatedService):
    """A world whose time passes in another thread: the browser's event loop runs in that of the test."""

    def pass_time(self, seconds: float, tick_s: float = 1.0) -> None:
        with ThreadPoolExecutor(1) as aside:
            aside.submit(super().pass_time, seconds, tick_s).result()


@pytest.fixture(scope="session")
def chromium() -> str:
    """The program of a browser that this machine has; none is ever downloaded."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        skip_or_fail("needs Chromium; on Debian: sudo apt-get install chromium, or make chromium")
    if not (resources.files("holdfast") / "web" / "index.html").is_file():
        skip_or_fail("needs the dashboard, which make setup builds")
    return found


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """One browser for the tests of a file; each has a profile of its own in it.

    Not for those of a session: while it is open, an event loop runs in this thread, which allows no other.
    """
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        # Its sandbox needs rights that containers do not give; it opens nothing but pages of ours.
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """A profile with nothing in it."""
    context = browser.new_context(viewport=DESK, locale="en-US", timezone_id="Europe/Berlin")
    context.set_default_timeout(PATIENCE_MS)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A tab. Whatever the page complains of fails the test: above all, what its Content-Security-Policy forbids."""
    page = context.new_page()
    complaints: list[str] = []
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on(
        "console",
        lambda said: complaints.append(said.text) if "Content Security" in said.text else None,
    )
    yield page
    assert not complaints


@pytest.fixture
def world(engine: Engine) -> Iterator[SimulatedService]:
    """A service with nothing in it."""
    app, parts = open_world(engine)
    with client(app) as http:
        yield WorldAside(app, http, *parts)


@pytest.fixture
def road(world: SimulatedService) -> NetworkProxy:
    """Where the requests of the browser pass."""
    return NetworkProxy(world.app)


@pytest.fixture
def url(world: SimulatedService, road: NetworkProxy) -> Iterator[str]:
    with served(world, road) as address:
        yield address


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A service that runs."""
    service = Service(tmp_path)
    service.start()
    yield service
    service.end(signal.SIGTERM)
    service.sweep()


@pytest.fixture
def eventful(world: SimulatedService) -> str:
    """A job with a past: taken with notice, taken without, and at work again."""
    job: str = world.submit()["id"]
    world.until(job, "training")
    world.pass_time(25)
    world.take_node(job, notice_s=10, then_s=12)
    world.until(job, "training")
    world.pass_time(8)
    world.take_node(job, notice_s=None, then_s=2)
    world.until(job, "training")
    return job


@pytest.fixture
def free_port() -> int:
    """A port without a listener."""
    return live_service.free_port()


@pytest.fixture
def serve_at(world: SimulatedService) -> Iterator[Callable[[FastAPI, int], ExitStack]]:
    """Puts an application behind a port; closing what it returns ends that."""
    with ExitStack() as all_of_them:

        def serve(app: FastAPI, port: int) -> ExitStack:
            one = ExitStack()
            one.enter_context(at_a_port(app, port))
            all_of_them.push(one)
            return one

        yield serve
        world.services.stopping.set()

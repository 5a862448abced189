"""The dashboard in a real browser, with the real application over the simulated cloud."""

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

VIEWPORT = {"width": 1440, "height": 900}
PATIENCE_MS = 60_000
"""Timeout of every expectation. Pages respond at once unless the machine is busy."""
PATIENT_REQUESTS = """
const timeout = AbortSignal.timeout.bind(AbortSignal)
AbortSignal.timeout = (ms) => timeout(3 * ms)
"""
"""Script of every page: a service that shares the processor with other tests is not unreachable after the usual seconds."""


class ThreadedService(SimulatedService):
    """A service whose simulated time advances in another thread.

    The browser's event loop runs in the thread of the test.
    """

    def pass_time(self, seconds: float, tick_s: float = 1.0) -> None:
        with ThreadPoolExecutor(1) as executor:
            executor.submit(super().pass_time, seconds, tick_s).result()


@pytest.fixture(scope="session")
def chromium() -> str:
    """Path of an installed browser; none is downloaded."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if not found:
        skip_or_fail("needs Chromium; on Debian: sudo apt-get install chromium, or make chromium")
    if not (resources.files("holdfast") / "web" / "index.html").is_file():
        skip_or_fail("needs the dashboard, which make setup builds")
    return found


@pytest.fixture(scope="module")
def browser(chromium: str) -> Iterator[Browser]:
    """One browser for the tests of a file; each test has a separate profile.

    It is not shared by a session: while it is open, an event loop runs in this thread, which excludes any
    other.
    """
    expect.set_options(timeout=PATIENCE_MS)
    with sync_playwright() as playwright:
        # Its sandbox requires permissions that containers lack; it opens only pages of the tests.
        browser = playwright.chromium.launch(
            executable_path=chromium, args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()


@pytest.fixture
def context(browser: Browser) -> Iterator[BrowserContext]:
    """An empty browser profile."""
    context = browser.new_context(viewport=VIEWPORT, locale="en-US", timezone_id="Europe/Berlin")
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(PATIENT_REQUESTS)
    yield context
    context.close()


@pytest.fixture
def page(context: BrowserContext) -> Iterator[Page]:
    """A tab.

    Errors of the page fail the test, such as violations of its Content-Security-Policy.
    """
    page = context.new_page()
    page_errors: list[str] = []
    page.on("pageerror", lambda error: page_errors.append(str(error)))
    page.on(
        "console",
        lambda message: (
            page_errors.append(message.text) if "Content Security" in message.text else None
        ),
    )
    yield page
    assert not page_errors


@pytest.fixture
def world(engine: Engine) -> Iterator[SimulatedService]:
    """A service without jobs."""
    app, parts = open_world(engine)
    with client(app) as http:
        yield ThreadedService(app, http, *parts)


@pytest.fixture
def proxy(world: SimulatedService) -> NetworkProxy:
    """The proxy between the browser and the service."""
    return NetworkProxy(world.app)


@pytest.fixture
def url(world: SimulatedService, proxy: NetworkProxy) -> Iterator[str]:
    with served(world, proxy) as address:
        yield address


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    """A running service."""
    service = Service(tmp_path)
    service.start()
    yield service
    service.end(signal.SIGTERM)
    service.sweep()


@pytest.fixture
def preempted_job(world: SimulatedService) -> str:
    """A training job that was preempted once with a notice and once without."""
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
def paused_job(world: SimulatedService) -> str:
    """A job that trained on two nodes and was paused."""
    job: str = world.submit()["id"]
    world.until(job, "training")
    world.pass_time(25)
    world.http.post(f"/v1/jobs/{job}/pause", json={})
    world.until(job, "paused")
    return job


@pytest.fixture
def free_port() -> int:
    """A port without a listener."""
    return live_service.free_port()


@pytest.fixture
def serve_at(world: SimulatedService) -> Iterator[Callable[[FastAPI, int], ExitStack]]:
    """Return a function that serves an application on a port until its result is closed."""
    with ExitStack() as servers:

        def serve(app: FastAPI, port: int) -> ExitStack:
            server = ExitStack()
            server.enter_context(at_a_port(app, port))
            servers.push(server)
            return server

        yield serve
        world.services.stopping.set()

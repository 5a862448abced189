"""A service with a history that a seed has made, in a home folder of its own."""

from __future__ import annotations

import asyncio
import logging
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Final

from sqlalchemy import Engine as SqlEngine
from sqlalchemy import event

from holdfast.api.app import create_app
from holdfast.clock import ScriptedClock, SystemClock
from holdfast.controller.reconciler import Reconciler
from holdfast.demo.history.generator import PACE, HistoryGenerator
from holdfast.demo.history.jobs import DAYS, demo_jobs
from holdfast.demo.history.launcher import DemoLauncher
from holdfast.demo.history.market import Market
from holdfast.domain.jobfile.spec import Engine
from holdfast.ports import Clock
from holdfast.server import composition
from holdfast.server.composition import Application, Environment
from holdfast.server.process import graceful_shutdown
from holdfast.settings import Settings
from holdfast.settings import SimulatedMarketSettings as LocalMarket

log = logging.getLogger(__name__)

BOOKS: Final = 1000
"""Jobs, and blocks of curves, that are put into rows before the first page is asked for."""


LOOK_EVERY_S: Final = 2.0
"""How often jobs are looked at once the history is over. Bigger: those who watch see later what happens."""


@contextmanager
def home(settings: Settings) -> Iterator[Settings]:
    """Settings of a demonstration: its folder is removed at the end, and nothing of the user's own is read or written."""
    # Whoever asks for the end politely is to leave no folder behind.
    with graceful_shutdown(), tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        yield settings.model_copy(update=_apart(Path(folder)))


def _apart(folder: Path) -> dict[str, Any]:
    """Settings that keep a demonstration from everything but its own folder."""
    return {
        "home": folder,
        "database_url": None,
        "skypilot_url": None,
        "skypilot_home": None,
        "skypilot_look_every_s": LOOK_EVERY_S,
        "prices_live": False,
        "smtp_url": None,
        "notify_networks": None,
        "trust_loopback": True,
        # Its people do in seconds what they did in a month.
        "requests_per_minute": 1_000_000,
        "submissions_per_minute": 100_000,
    }


def opened(seed: int) -> Callable[[Settings, LocalMarket, str], Application]:
    """What makes a service with the history of a seed, which ends now."""

    def open_house(settings: Settings, market: LocalMarket, address: str) -> Application:
        begun_s = time.monotonic()
        log.info("making the last %d days from seed %d, which takes some seconds", DAYS, seed)
        house = open_at(SystemClock(), seed, settings, market, address)
        log.info("made them in %.1f s", time.monotonic() - begun_s)
        log.warning(
            "this is a demonstration: its jobs, people and prices are made up, no cloud is asked, and nobody pays; "
            "it all goes when this ends"
        )
        log.info("for the command line: HOLDFAST_URL=%s HOLDFAST_HOME=%s", address, settings.home)
        return house

    return open_house


def open_at(
    real: Clock, seed: int, settings: Settings, market: LocalMarket, address: str
) -> Application:
    """A service with the history of a seed, which ends when `real` says that it is now, and goes on with it."""
    now = real.now()
    # At a full hour, so that the hours of its days are those of clocks.
    start = now.replace(minute=0, second=0, microsecond=0) - timedelta(days=DAYS)
    clock, prices = ScriptedClock(start, real), Market(seed, start)
    sky = DemoLauncher(clock, prices)
    around = Environment(
        clock=clock,
        prices=prices,
        launchers={Engine.LOCAL: sky, Engine.SKYPILOT: sky},
        inbox=sky,
        demo_seed=seed,
    )
    house = composition.build(settings, market, address, around)
    _hurry(house.services.engine)
    asyncio.run(_play(house, prices, sky, clock, now))
    clock.let_go()
    return house


async def _play(
    house: Application, market: Market, sky: DemoLauncher, clock: ScriptedClock, end: datetime
) -> None:
    services = house.services
    reconciler = Reconciler(
        journal=services.journal,
        watches=services.watches,
        tokens=services.tokens,
        launchers=services.launchers,
        inbox=sky,
        clock=clock,
        pace=PACE,
        worker_url=services.worker_url,
        safe=services.secrets,
    )
    play = HistoryGenerator(
        app=create_app(services),
        reconciler=reconciler,
        watches=services.watches,
        sky=sky,
        clock=clock,
        parts=demo_jobs(market.seed),
        start=market.start,
    )
    await play.until(end)
    for job_id in services.watches.all():
        services.watches.nudge(job_id, end)
    services.ledgers.settle(BOOKS)
    services.series.settle(BOOKS)


def _hurry(engine: SqlEngine) -> None:
    """Do not wait for the disk: what a seed has made can be made again."""
    event.listen(
        engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF")
    )
    engine.dispose()  # Connections that were opened before do wait.

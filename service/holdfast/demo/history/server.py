"""A service with generated history in its own home directory."""

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
from holdfast.background.sweep_stopper import SweepStopper
from holdfast.clock import ScriptedClock, SystemClock
from holdfast.controller.reconciler import Reconciler
from holdfast.demo.history.generator import POLL_INTERVALS, HistoryGenerator
from holdfast.demo.history.jobs import DAYS, demo_jobs
from holdfast.demo.history.launcher import DemoLauncher
from holdfast.demo.history.market import Market
from holdfast.demo.history.sweeps import demo_sweeps
from holdfast.domain.jobfile.spec import Engine
from holdfast.ports import Clock
from holdfast.server import composition
from holdfast.server.composition import Application, Environment
from holdfast.server.process import graceful_shutdown
from holdfast.settings import Settings
from holdfast.settings import SimulatedMarketSettings as LocalMarket

log = logging.getLogger(__name__)

ROLLUP_BATCH: Final = 1000
"""Jobs and metric blocks that are rolled up before the first page is requested."""


POLL_EVERY_S: Final = 2.0
"""Polling interval of jobs after the generated history.

A higher value delays what viewers see.
"""


@contextmanager
def home(settings: Settings) -> Iterator[Settings]:
    """Settings of a demonstration.

    Its directory is deleted at the end, and the user's own data is neither read nor written.
    """
    # SIGTERM must also delete the directory.
    with graceful_shutdown(), tempfile.TemporaryDirectory(prefix="holdfast-demo-") as folder:
        yield settings.model_copy(update=_isolated_settings(Path(folder)))


def _isolated_settings(folder: Path) -> dict[str, Any]:
    """Restrict a demonstration to its own directory."""
    return {
        "home": folder,
        "database_url": None,
        "skypilot_url": None,
        "skypilot_home": None,
        "skypilot_look_every_s": POLL_EVERY_S,
        "prices_live": False,
        "smtp_url": None,
        "notify_networks": None,
        "trust_loopback": True,
        # Its users perform the actions of a month within seconds.
        "requests_per_minute": 1_000_000,
        "submissions_per_minute": 100_000,
    }


def with_history(seed: int) -> Callable[[Settings, LocalMarket, str], Application]:
    """Return a factory of services whose history, generated from a seed, ends now."""

    def open_house(settings: Settings, market: LocalMarket, address: str) -> Application:
        started_s = time.monotonic()
        log.info("generating the last %d days from seed %d, which takes some seconds", DAYS, seed)
        application = open_at(SystemClock(), seed, settings, market, address)
        log.info("generated them in %.1f s", time.monotonic() - started_s)
        log.warning(
            "this is a demonstration: its jobs, users and prices are generated, no cloud is used, and nothing is billed; "
            "all data is deleted when it ends"
        )
        log.info("for the command line: HOLDFAST_URL=%s HOLDFAST_HOME=%s", address, settings.home)
        return application

    return open_house


def open_at(
    real: Clock, seed: int, settings: Settings, market: LocalMarket, address: str
) -> Application:
    """Open a service whose generated history ends at the current time of `real`.

    It continues from there.
    """
    now = real.now()
    # At a full hour, so that hours of the history match hours of the day.
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
    application = composition.build(settings, market, address, around)
    _disable_fsync(application.services.engine)
    asyncio.run(_generate(application, prices, sky, clock, now))
    clock.follow_real_time()
    return application


async def _generate(
    application: Application, market: Market, sky: DemoLauncher, clock: ScriptedClock, end: datetime
) -> None:
    services = application.services
    reconciler = Reconciler(
        journal=services.journal,
        leases=services.leases,
        tokens=services.tokens,
        launchers=services.launchers,
        inbox=sky,
        clock=clock,
        intervals=POLL_INTERVALS,
        worker_url=services.worker_url,
        secrets=services.secrets,
    )
    stopper = SweepStopper(
        journal=services.journal, series=services.series, leases=services.leases, clock=clock
    )
    play = HistoryGenerator(
        app=create_app(services),
        reconciler=reconciler,
        leases=services.leases,
        launcher=sky,
        clock=clock,
        jobs=demo_jobs(market.seed),
        sweeps=demo_sweeps(market.seed),
        stop_early=stopper.stop_all,
        start=market.start,
    )
    await play.run_until(end)
    for job_id in services.leases.list_jobs():
        services.leases.make_due(job_id, end)
    services.bill_rollups.roll_up(ROLLUP_BATCH)
    services.series.roll_up(ROLLUP_BATCH)


def _disable_fsync(engine: SqlEngine) -> None:
    """Do not wait for the disk, as the data of a seed can be generated again."""
    event.listen(
        engine, "connect", lambda connection, _: connection.execute("PRAGMA synchronous=OFF")
    )
    engine.dispose()  # Connections opened earlier keep waiting.

"""The schedule of the reconciler: wakes, stops, and slow calls that delay no other job."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from holdfast.controller import reconciler, thread
from holdfast.controller.reconciler import PollIntervals
from holdfast.domain.jobs.job import State
from holdfast.domain.jobs.observation import Observation
from holdfast.ports import Launch
from support.events import submitted
from support.fakes import FileLauncher, FixedClock
from support.reconciler import PACE, NewReconcilerHarness, ReconcilerHarness


class SignallingLauncher(FileLauncher):
    """A launcher that sets an event on each call."""

    called: asyncio.Event

    async def submit(self, launch: Launch) -> None:
        await super().submit(launch)
        self.called.set()

    async def observe(self, key: str) -> Observation:
        self.called.set()
        return await super().observe(key)


class LoggedEvent(logging.Handler):
    """A log handler that sets an event on each record."""

    def __init__(self) -> None:
        super().__init__()
        self.anything, self.text = asyncio.Event(), ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage()
        self.anything.set()


def test_loop_steps_when_nudged_and_ends_when_stopped(
    new_harness: NewReconcilerHarness,
) -> None:
    home = new_harness(SignallingLauncher)
    home.launcher.called = asyncio.Event()

    async def run() -> None:
        nudged, stopped, called = asyncio.Event(), asyncio.Event(), home.launcher.called
        beating = asyncio.create_task(
            thread.run(home.reconciler, nudged, stopped, PollIntervals(poll_every_s=600))
        )
        await called.wait()
        called.clear()
        home.clock.advance(3600)
        nudged.set()
        await called.wait()
        stopped.set()
        nudged.set()
        await beating

    asyncio.run(asyncio.wait_for(run(), timeout=120))

    assert home.journal.read("job-1").state is State.ENDED


def test_loop_survives_a_database_outage(new_harness: NewReconcilerHarness, tmp_path: Path) -> None:
    home = new_harness()
    home.engine.dispose()
    (tmp_path / "holdfast.db").write_bytes(b"not a database, but as long as the head of one" * 99)

    async def run() -> str:
        nudged, stopped, recorded = asyncio.Event(), asyncio.Event(), LoggedEvent()
        thread.log.addHandler(recorded)
        beating = asyncio.create_task(thread.run(home.reconciler, nudged, stopped, PACE))
        await recorded.anything.wait()
        stopped.set()
        nudged.set()
        await beating
        thread.log.removeHandler(recorded)
        return recorded.text

    result = asyncio.run(asyncio.wait_for(run(), timeout=120))

    assert "the service's database is unavailable" in result
    assert home.launcher.deeds() == []


def run_until_ended(home: ReconcilerHarness, job_id: str) -> None:
    """Run the reconciler until a job has ended, advancing the clock with each step."""

    async def run() -> None:
        nudged, stopped = asyncio.Event(), asyncio.Event()
        beating = asyncio.create_task(thread.run(home.reconciler, nudged, stopped, PACE))
        while home.journal.read(job_id).state is not State.ENDED:
            nudged.set()
            home.clock.advance(1)
            await asyncio.sleep(0)
        beating.cancel()

    asyncio.run(asyncio.wait_for(run(), timeout=120))


class HangingOrFailingLauncher(FileLauncher):
    """A launcher that never returns for the first job, and raises for the second."""

    async def submit(self, launch: Launch) -> None:
        if launch.job_id == "job-1":
            await asyncio.Event().wait()
        if launch.job_id == "job-2":
            raise ZeroDivisionError("a bug of ours")
        await super().submit(launch)


def test_slow_launcher_and_bug_do_not_delay_other_jobs(
    new_harness: NewReconcilerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    home = new_harness(HangingOrFailingLauncher)
    for job_id in ("job-2", "job-3"):
        home.journal.submit(job_id, submitted())

    run_until_ended(home, "job-3")

    assert home.journal.read("job-1").state is State.PROVISIONING
    assert (
        "job-2: unexpected error; the job is processed again when its lease expires" in caplog.text
    )


def test_cancelled_step_is_no_unexpected_error(
    new_harness: NewReconcilerHarness, caplog: pytest.LogCaptureFixture
) -> None:
    """A shutdown cancels the steps that still wait for their launcher."""
    home = new_harness(HangingOrFailingLauncher)
    home.journal.submit("job-3", submitted())

    run_until_ended(home, "job-3")

    assert [record.getMessage() for record in caplog.records] == []


class UnresponsiveLauncher(FileLauncher):
    """A launcher that accepts every request and never responds."""

    async def submit(self, launch: Launch) -> None:
        await asyncio.Event().wait()


def test_unresponsive_launcher_delays_no_other_launcher(
    new_harness: NewReconcilerHarness, tmp_path: Path
) -> None:
    home = new_harness(cloud=UnresponsiveLauncher(tmp_path / "cloud.jsonl", FixedClock()))
    for number in range(reconciler.BATCH + 1):
        home.journal.submit(f"cloud-{number}", submitted(infra="aws"))

    run_until_ended(home, "job-1")

    states = [home.journal.read(f"cloud-{number}").state for number in range(reconciler.BATCH + 1)]
    assert states == [State.PROVISIONING] * reconciler.BATCH + [State.QUEUED]


class SlowLauncher(FileLauncher):
    """A launcher whose observation takes longer than a lease; counts concurrent observations."""

    waiting = most = 0
    linger: Callable[[], Awaitable[None]]

    async def observe(self, key: str) -> Observation:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await self.linger()
        self.waiting -= 1
        return await super().observe(key)


def test_step_longer_than_its_lease_is_not_run_concurrently(
    new_harness: NewReconcilerHarness,
) -> None:
    home = new_harness(SlowLauncher)
    home.step()
    nudged, stopped = asyncio.Event(), asyncio.Event()

    async def linger() -> None:
        for _ in range(20):
            home.clock.advance(PACE.lease_s + 1)
            nudged.set()
            await asyncio.sleep(0)
        stopped.set()

    home.launcher.linger = linger
    home.clock.advance(PACE.lease_s + 1)
    asyncio.run(asyncio.wait_for(thread.run(home.reconciler, nudged, stopped, PACE), timeout=120))

    assert home.launcher.most == 1

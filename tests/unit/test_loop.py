"""The reconciler's loop: what it does when a launcher refuses, a replica was quicker, or a worker talks nonsense."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from fakes import FileLauncher, FixedClock
from histories import at, submitted
from holdfast import loop
from holdfast.domain.events import CancelRequested, CapacityLost, Event, LaunchRequested, Outcome
from holdfast.domain.lifecycle import State
from holdfast.domain.sighting import Sighting
from holdfast.domain.spec import Engine as Kind
from holdfast.errors import LauncherUnreachable, LaunchRefused, StaleWrite
from holdfast.loop import Pace, Reconciler
from holdfast.ports import Launch
from holdfast.store.database import upgrade
from holdfast.store.journal import Journal
from holdfast.store.reading import Reading
from holdfast.store.tokens import Tokens
from holdfast.store.watches import Watches
from holdfast_worker.wire import Json, Report, ReportKind
from sqlalchemy import Engine

NewHouse: TypeAlias = "Callable[..., House]"
PACE = Pace(look_every_s=5, lease_s=10)


def said(n: int, kind: ReportKind, **body: Json) -> Report:
    return Report(1, n, at(n).isoformat(), kind, body)


class Refusing(FileLauncher):
    """It cannot start this job, now or ever."""

    async def submit(self, launch: Launch) -> None:
        raise LaunchRefused("the workdir does not exist")


class Silent(FileLauncher):
    """It does not answer."""

    async def look(self, key: str) -> Sighting:
        raise LauncherUnreachable("no answer for 30 s")


class Slow(FileLauncher):
    """While it looks, other things happen."""

    meanwhile: Callable[[], Awaitable[Any]] | None = None

    async def look(self, key: str) -> Sighting:
        seen = await super().look(key)
        if self.meanwhile:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        return seen


class Calling(FileLauncher):
    """It tells when it is called."""

    called: asyncio.Event

    async def submit(self, launch: Launch) -> None:
        await super().submit(launch)
        self.called.set()

    async def look(self, key: str) -> Sighting:
        self.called.set()
        return await super().look(key)


class Said(logging.Handler):
    """Tells when something is logged."""

    def __init__(self) -> None:
        super().__init__()
        self.anything, self.text = asyncio.Event(), ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text += record.getMessage()
        self.anything.set()


class House:
    """A reconciler with a launcher of some kind and one job."""

    def __init__(self, tmp_path: Path, engine: Engine, kind: type[FileLauncher]) -> None:
        self.engine = engine
        self.clock = FixedClock()
        self.journal = Journal(engine, self.clock)
        self.watches = Watches(engine)
        self.reading = Reading(engine)
        self.launcher = kind(tmp_path / "launches.jsonl", self.clock)
        self.reconciler = Reconciler(
            journal=self.journal,
            watches=self.watches,
            tokens=Tokens(engine, b"secret"),
            launchers={Kind.LOCAL: self.launcher},
            inbox=self.launcher,
            clock=self.clock,
            pace=PACE,
            worker_url="http://127.0.0.1:8642",
        )
        self.journal.submit("job-1", submitted())

    def step(self) -> None:
        asyncio.run(self.reconciler.step("job-1"))

    def sweep(self, seconds: float = PACE.look_every_s) -> None:
        asyncio.run(self.reconciler.sweep())
        self.clock.advance(seconds)

    def log(self) -> list[Event]:
        return [item.event for item in self.journal.events("job-1")]


@pytest.fixture
def house(tmp_path: Path, open_engine: Callable[[str], Engine]) -> NewHouse:
    """Makes the house, with a launcher of some kind."""
    engine = open_engine(f"sqlite:///{tmp_path / 'holdfast.db'}")
    upgrade(engine)
    return lambda kind=FileLauncher: House(tmp_path, engine, kind)


def test_a_job_goes_from_submit_to_its_end_and_is_watched_no_more(
    house: NewHouse,
) -> None:
    home = house()

    for _ in range(4):
        home.sweep()

    assert [type(fact).__name__ for fact in home.log()] == [
        "Submitted",
        "LaunchRequested",
        "NodesReady",
        "Finished",
    ]
    assert home.journal.read("job-1").outcome is Outcome.SUCCEEDED
    assert home.watches.next_due() is None


def test_the_wish_is_recorded_before_the_launcher_is_called(house: NewHouse) -> None:
    home = house(Refusing)

    home.step()

    kinds = [type(fact).__name__ for fact in home.log()]
    assert kinds == ["Submitted", "LaunchRequested", "Finished"]


def test_a_launch_that_is_refused_has_failed_with_the_reason(house: NewHouse) -> None:
    home = house(Refusing)

    home.sweep()

    job = home.journal.read("job-1")
    assert (job.outcome, job.detail) == (Outcome.FAILED, "the workdir does not exist")
    assert home.watches.next_due() is None


def test_silence_is_shown_and_nothing_is_concluded_from_it(
    house: NewHouse, caplog: pytest.LogCaptureFixture
) -> None:
    home = house(Silent)
    home.sweep()
    before = home.log()

    for _ in range(100):
        home.sweep(60)

    assert home.log() == before
    assert home.reading.watch("job-1").trouble == "no answer for 30 s"
    assert "job-1: no answer for 30 s" in caplog.text


def test_a_launcher_that_this_service_lacks_is_trouble_and_no_end(
    house: NewHouse,
) -> None:
    home = house()
    home.journal.submit("job-2", submitted(infra="slurm"))

    home.sweep()

    assert home.journal.read("job-2").state is State.QUEUED
    assert "without the slurm launcher" in (home.reading.watch("job-2").trouble or "")
    assert home.journal.read("job-1").state is State.PROVISIONING


def test_a_launch_says_all_that_a_worker_needs(house: NewHouse) -> None:
    launches: list[Launch] = []

    class Noting(FileLauncher):
        async def submit(self, launch: Launch) -> None:
            launches.append(launch)

    house(Noting).step()

    [launch] = launches
    assert (launch.key, launch.job_id, launch.first_attempt) == ("job-1-1", "job-1", 1)
    assert launch.task["run"] == "true"
    assert launch.env["HOLDFAST_JOB"] == "job-1"
    assert launch.env["HOLDFAST_URL"] == "http://127.0.0.1:8642"
    assert launch.env["HOLDFAST_TOKEN"].startswith("hfw_job-1_")


def test_a_cancel_that_comes_while_somebody_looks_is_not_overrun(
    house: NewHouse,
) -> None:
    home = house(Slow)
    home.step()
    home.clock.advance(5)

    async def cancel() -> None:
        job = home.journal.read("job-1")
        home.journal.append(job, [CancelRequested(at=home.clock.now())])

    home.launcher.meanwhile = cancel
    with pytest.raises(StaleWrite):
        home.step()
    home.step()

    assert home.journal.read("job-1").state is State.STOPPING
    assert home.launcher.deeds()[-1]["deed"] == "cancel"


def test_a_look_that_is_older_than_a_relaunch_is_dropped_though_workers_spoke(
    house: NewHouse,
) -> None:
    """Reports are taken after the look; what they bring must not pass an old look off as a fresh one."""
    home = house(Slow)
    home.launcher.says = [said(1, ReportKind.RESTORE_STARTED)]
    home.step()
    home.clock.advance(4)
    home.launcher.forget("job-1-1")

    async def another_replica_relaunches() -> None:
        await home.reconciler.step("job-1")
        home.launcher.says = [*home.launcher.says, said(2, ReportKind.TRAINING_STARTED, step=0)]

    home.launcher.meanwhile = another_replica_relaunches
    with pytest.raises(StaleWrite):
        home.step()

    launches = [fact.launch for fact in home.log() if isinstance(fact, LaunchRequested)]
    losses = [fact for fact in home.log() if isinstance(fact, CapacityLost)]
    assert launches == [1, 2]
    assert len(losses) == 1


def test_reports_that_come_while_somebody_looks_do_not_date_the_look(
    house: NewHouse,
) -> None:
    home = house(Slow)
    home.launcher.says = [said(2, ReportKind.TRAINING_STARTED, step=0)]
    home.step()
    home.clock.advance(4)

    async def a_worker_speaks() -> None:
        home.journal.absorb("job-1", 1, [said(1, ReportKind.RESTORE_STARTED)])

    home.launcher.meanwhile = a_worker_speaks
    home.step()

    assert home.journal.read("job-1").state is State.TRAINING


def test_who_was_overtaken_looks_again_at_once(house: NewHouse) -> None:
    home = house(Slow)
    home.sweep()

    async def another_replica_looks() -> None:
        await home.reconciler.step("job-1")

    home.launcher.meanwhile = another_replica_looks
    home.sweep(0)

    assert home.watches.next_due() == home.clock.now()


def test_a_worker_that_talks_nonsense_does_not_hide_its_job(
    house: NewHouse, caplog: pytest.LogCaptureFixture
) -> None:
    home = house()
    home.launcher.says = [said(1, ReportKind.WORKER_LEFT, step=-1)]

    for _ in range(4):
        home.sweep()

    assert home.journal.read("job-1").outcome is Outcome.SUCCEEDED
    assert "job-1 attempt 1: report 1 (worker_left)" in caplog.text


def test_last_words_are_known_before_the_end_is(house: NewHouse) -> None:
    home = house()
    body: dict[str, Json] = {"step": 9, "reason": "finished", "exit_code": 0, "detail": ""}
    home.launcher.says = [said(1, ReportKind.WORKER_LEFT, **body)]
    home.step()
    home.clock.advance(60)

    home.step()

    assert [type(fact).__name__ for fact in home.log()][2:] == [
        "WorkerLeft",
        "NodesReady",
        "Finished",
    ]


def test_a_job_that_ended_while_nobody_closed_it_is_closed(house: NewHouse) -> None:
    home = house(Refusing)
    home.step()

    home.sweep()

    assert home.watches.next_due() is None


def test_a_dead_replicas_jobs_are_looked_at_once_its_lease_is_over(
    house: NewHouse,
) -> None:
    home = house()
    home.watches.claim(home.clock.now(), PACE.lease_s, 9)

    home.sweep(PACE.lease_s)
    still = home.journal.read("job-1").state
    home.sweep()

    assert still is State.QUEUED
    assert home.journal.read("job-1").state is State.PROVISIONING


def test_the_loop_beats_when_it_is_nudged_and_ends_when_it_is_told(
    house: NewHouse,
) -> None:
    home = house(Calling)
    home.launcher.called = asyncio.Event()

    async def run() -> None:
        nudged, stopped, called = asyncio.Event(), asyncio.Event(), home.launcher.called
        beating = asyncio.create_task(
            loop.run(home.reconciler, nudged, stopped, Pace(look_every_s=600))
        )
        await called.wait()
        called.clear()
        home.clock.advance(3600)
        nudged.set()
        await called.wait()
        stopped.set()
        nudged.set()
        await beating

    asyncio.run(asyncio.wait_for(run(), timeout=30))

    assert home.journal.read("job-1").state is State.ENDED


def test_the_loop_outlives_a_database_that_is_gone(house: NewHouse, tmp_path: Path) -> None:
    home = house()
    home.engine.dispose()
    (tmp_path / "holdfast.db").write_bytes(b"not a database, but as long as the head of one" * 99)

    async def run() -> str:
        nudged, stopped, said = asyncio.Event(), asyncio.Event(), Said()
        loop.log.addHandler(said)
        beating = asyncio.create_task(loop.run(home.reconciler, nudged, stopped, PACE))
        await said.anything.wait()
        stopped.set()
        nudged.set()
        await beating
        loop.log.removeHandler(said)
        return said.text

    told = asyncio.run(asyncio.wait_for(run(), timeout=30))

    assert "the service's database cannot be used" in told
    assert home.launcher.deeds() == []


class Uneven(FileLauncher):
    """It takes for ever over the first job, and has a bug with the second."""

    async def submit(self, launch: Launch) -> None:
        if launch.job_id == "job-1":
            await asyncio.Event().wait()
        if launch.job_id == "job-2":
            raise ZeroDivisionError("a bug of ours")
        await super().submit(launch)


def test_neither_a_slow_launcher_nor_a_bug_holds_up_the_other_jobs(
    house: NewHouse, caplog: pytest.LogCaptureFixture
) -> None:
    home = house(Uneven)
    for job_id in ("job-2", "job-3"):
        home.journal.submit(job_id, submitted())

    async def run() -> None:
        nudged, stopped = asyncio.Event(), asyncio.Event()
        beating = asyncio.create_task(loop.run(home.reconciler, nudged, stopped, PACE))
        while home.journal.read("job-3").state is not State.ENDED:
            nudged.set()
            home.clock.advance(1)
            await asyncio.sleep(0)
        beating.cancel()

    asyncio.run(asyncio.wait_for(run(), timeout=30))

    assert home.journal.read("job-1").state is State.PROVISIONING
    assert "job-2: a bug; its lease brings it back" in caplog.text


class Lingering(FileLauncher):
    """It looks for longer than a lease lasts, and counts how many wait for it."""

    waiting = most = 0
    linger: Callable[[], Awaitable[None]]

    async def look(self, key: str) -> Sighting:
        self.waiting += 1
        self.most = max(self.most, self.waiting)
        await self.linger()
        self.waiting -= 1
        return await super().look(key)


def test_a_step_that_outlasts_its_lease_is_not_taken_twice_at_once(house: NewHouse) -> None:
    home = house(Lingering)
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
    asyncio.run(asyncio.wait_for(loop.run(home.reconciler, nudged, stopped, PACE), timeout=30))

    assert home.launcher.most == 1

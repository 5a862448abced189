"""The service is killed at every line that it executes; its successor finishes the job.

A forked child runs a scenario on a real SQLite file and a launcher in another file. A tracer kills it
(SIGKILL) at its n-th line of Holdfast. Then the client retries, as clients do, and a new service continues.

The continuation depends only on the files that a kill leaves behind. One line is therefore killed for all
lines between two changes of the files; STORM_EVERY_LINE=1 kills at every line, which takes some minutes.
"""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import holdfast
import pytest
from holdfast.controller.reconciler import PollIntervals, Reconciler
from holdfast.domain.events import CancelRequested, Outcome
from holdfast.domain.jobfile.spec import Engine as Kind
from holdfast.domain.jobs.job import State
from holdfast.domain.jobs.lifecycle import fold
from holdfast.store.database import open_database, upgrade
from holdfast.store.identity.service_tokens import ServiceTokens
from holdfast.store.journal import Journal, SubmissionRequest
from holdfast.store.leases import LeaseTable
from holdfast.store.queries import Queries
from holdfast.store.secrets import Secrets
from holdfast_worker.protocol.reports import Report, ReportKind
from support.events import at, submitted
from support.fakes import FileLauncher, FixedClock
from support.repetitions import repeat_count

EVERY_LINE = "STORM_EVERY_LINE" in os.environ
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.timeout(7200 if EVERY_LINE else 300),
]

OURS = str(Path(holdfast.__file__).parent)
REQUEST = SubmissionRequest("key-1", "ab" * 32)
LATER_S = 100
REPORTS = [
    Report(1, 1, at(4).isoformat(), ReportKind.RESTORE_STARTED, {}),
    Report(1, 2, at(5).isoformat(), ReportKind.TRAINING_STARTED, {"step": 0}),
    Report(1, 3, at(6).isoformat(), ReportKind.PROGRESS, {"step": 9, "values": {"loss": 0.5}}),
]
NewHome: TypeAlias = Callable[[str], Path]
Scenario: TypeAlias = Callable[["Service", int], None]


@dataclass
class Service:
    """One process of a service: its objects, created at every start, and its durable files."""

    home: Path
    clock: FixedClock

    def __post_init__(self) -> None:
        self.engine = open_database(f"sqlite:///{self.home / 'holdfast.db'}")
        self.journal = Journal(self.engine, self.clock)
        self.leases = LeaseTable(self.engine)
        self.launcher = FileLauncher(self.home / "launches.jsonl", self.clock, says=REPORTS)
        self.reconciler = Reconciler(
            journal=self.journal,
            leases=self.leases,
            tokens=ServiceTokens(self.engine, b"secret"),
            launchers={Kind.LOCAL: self.launcher},
            inbox=self.launcher,
            clock=self.clock,
            intervals=PollIntervals(poll_every_s=1, lease_s=10),
            worker_url="http://127.0.0.1",
            secrets=Secrets(self.engine, b"secret"),
        )

    def submit(self, job_id: str) -> str:
        """Submit the job, always with the same idempotency key."""
        return self.journal.submit(job_id, submitted(), REQUEST).id

    def sweep(self, seconds: float) -> None:
        asyncio.run(self.reconciler.sweep())
        self.clock.advance(seconds)

    def acknowledge(self, name: str) -> None:
        """Record an acknowledgement outside of the service's process."""
        (self.home / name).touch()

    def is_acknowledged(self, name: str) -> bool:
        return (self.home / name).exists()


# Scenarios: the events of each sweep.


def succeeds(service: Service, number: int) -> None:
    service.sweep(4)


def is_cancelled(service: Service, number: int) -> None:
    if number == 2:
        job = service.journal.read("job-1")
        service.journal.append(job, [CancelRequested(at=service.clock.now())])
        service.acknowledge("cancelled")
    service.sweep(2)


def is_cancelled_before_its_launch(service: Service, number: int) -> None:
    if number == 0:
        job = service.journal.read("job-1")
        service.journal.append(job, [CancelRequested(at=service.clock.now())])
        service.acknowledge("cancelled")
    service.sweep(2)


def is_forgotten(service: Service, number: int) -> None:
    if number == 2:
        service.launcher.forget("job-1-1")
    service.sweep(4)


SCENARIOS: dict[Scenario, int] = {
    succeeds: 4,
    is_cancelled: 5,
    is_cancelled_before_its_launch: 2,
    is_forgotten: 6,
}
"""All scenarios with their numbers of sweeps."""


def run_scenario(home: Path, scenario: Scenario) -> None:
    service = Service(home, FixedClock())
    service.submit("job-1")
    service.acknowledge("submitted")
    for number in range(SCENARIOS[scenario]):
        scenario(service, number)


def recover(home: Path, start: datetime) -> None:
    """Retry the request, and run a new service until no job is due."""
    service = Service(home, FixedClock(start))
    service.submit("job-2")
    while service.leases.next_due() is not None:
        assert service.clock.now() < start + timedelta(seconds=9 * LATER_S), "it never ends"
        service.sweep(LATER_S)


# Kills


def lines_after_changes(home: Path, work: Callable[[], None]) -> list[int]:
    """Return the numbers of executed lines of Holdfast before which the files changed."""
    lines, changes = 0, list[tuple[int, int]]()

    def note() -> None:
        nonlocal lines
        lines += 1
        if not changes or EVERY_LINE or changes[-1][1] != _files(home):
            changes.append((lines, _files(home)))

    _traced(work, note)
    return [line for line, _ in changes]


def run_killed_at(line: int, work: Callable[[], None]) -> None:
    """Run `work` in a process that is killed at its `line`-th line of Holdfast."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    remaining = line

    def count() -> None:
        nonlocal remaining
        remaining -= 1
        if not remaining:
            os.kill(os.getpid(), signal.SIGKILL)

    _traced(work, count)
    os._exit(0)


def _files(home: Path) -> int:
    """Hash the files that a kill would leave behind, except for SQLite's shared memory index."""
    files = [file for file in sorted(home.iterdir()) if file.suffix not in (".db-shm", ".lock")]
    return hash(tuple((file.name, file.read_bytes()) for file in files))


def _traced(work: Callable[[], None], on_line: Callable[[], None]) -> None:
    def local(_frame: FrameType, what: str, _arg: Any) -> Any:
        if what == "line":
            on_line()
        return local

    def on_call(frame: FrameType, _what: str, _arg: Any) -> Any:
        return local if frame.f_code.co_filename.startswith(OURS) else None

    before = sys.gettrace()
    sys.settrace(on_call)
    try:
        work()
    finally:
        sys.settrace(before)


# Invariants


def check(home: Path) -> None:
    service = Service(home, FixedClock(at(99 * LATER_S)))
    [job] = Queries(service.engine).jobs(limit=9).jobs
    log = [item.event for item in service.journal.events(job.id)]
    kinds = Counter(type(fact).__name__ for fact in log)
    end = asyncio.run(service.launcher.observe(job.launch_key)).result
    starts = Counter(
        action["key"] for action in service.launcher.deeds() if action["deed"] == "start"
    )

    assert job.state is State.ENDED
    assert job == fold(job.id, log)
    assert max(starts.values(), default=1) == 1
    assert len(starts) == kinds["NodesReady"] <= job.launch
    assert kinds["Finished"] == 1
    assert kinds["RestoreStarted"] == kinds["TrainingStarted"] == (job.attempt > 0)
    assert len(Queries(service.engine).points(job.id, limit=9)) == (job.attempt > 0)
    assert not service.is_acknowledged("submitted") or job.id == "job-1"
    assert kinds["CancelRequested"] == 1 or not service.is_acknowledged("cancelled")
    assert job.outcome is (end.outcome if end else Outcome.CANCELLED)
    assert kinds["CancelRequested"] or job.outcome is Outcome.SUCCEEDED
    assert LeaseTable(service.engine).next_due() is None
    service.engine.dispose()


@pytest.fixture(scope="module")
def empty_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with an empty database."""
    home = tmp_path_factory.mktemp("fresh")
    engine = open_database(f"sqlite:///{home / 'holdfast.db'}")
    upgrade(engine)
    engine.dispose()
    return home


@pytest.fixture
def new_home(empty_home: Path, tmp_path: Path) -> NewHome:
    """Return a factory of copies of an empty home."""
    return lambda name: Path(shutil.copytree(empty_home, tmp_path / name))


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.__name__)
def test_successor_finishes_after_a_kill_at_any_line(new_home: NewHome, scenario: Scenario) -> None:
    traced_home = new_home("traced")

    lines = lines_after_changes(traced_home, lambda: run_scenario(traced_home, scenario))

    assert len(lines) > 5
    for line in lines:
        home = new_home(f"killed-{line}")
        run_killed_at(line, lambda home=home: run_scenario(home, scenario))
        recover(home, at(LATER_S))
        check(home)
        shutil.rmtree(home)


@pytest.mark.parametrize("seed", range(repeat_count(4, 40)))
def test_successor_finishes_after_two_kills(new_home: NewHome, seed: int) -> None:
    rng, home = random.Random(seed), new_home("home")
    scenario = rng.choice([*SCENARIOS])

    run_killed_at(rng.randrange(1, 1500), lambda: run_scenario(home, scenario))
    run_killed_at(rng.randrange(1, 800), lambda: recover(home, at(LATER_S)))
    recover(home, at(20 * LATER_S))

    check(home)

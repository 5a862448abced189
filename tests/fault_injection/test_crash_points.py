"""Ranks that are killed at any line and resumed end bit-identical to an uninterrupted run.

One seed determines one schedule: the number of ranks, the store, and the crash points of each attempt. Crash
points are reproducible; the timing of other ranks is not. FAULT_SEEDS sets the number of schedules.
"""

from __future__ import annotations

import functools
import importlib
import operator
import os
from collections.abc import Iterator
from pathlib import Path

import fake_s3
import pytest
from fake_s3 import FakeS3
from fault_injection import fork_server
from fault_injection.crash_points import EXIT_ON_NOTICE, OPERATIONS, CrashPoint, FaultAction
from fault_injection.fault_schedule import AttemptPlan, FaultSchedule, draw
from fault_injection.fork_server import ForkServer
from fault_injection.invariants import StoreState, UninterruptedRun, check_attempt, check_end
from fault_injection.job_driver import Job
from holdfast_worker.protocol.environment import Exit
from support.repetitions import FAULT_SEEDS, repeat_count

pytestmark = pytest.mark.timeout(600)
SEEDS = max(1, FAULT_SEEDS // 8)
EVERY_LINE = "STORM_EVERY_LINE" in os.environ
PROTOCOLS = ("s3", "gs", "az")
"""The protocols of object stores, by URL scheme."""
REQUESTS = ("send: put", "upload: put", "commit: put if absent", "point: swap", "prune: delete")
"""Requests that change the store."""


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    with fork_server.opened() as opened:
        yield opened


@pytest.fixture(scope="module")
def s3() -> Iterator[FakeS3]:
    with fake_s3.in_thread() as s3:
        yield s3


@pytest.fixture(scope="module")
def uninterrupted_run(
    forks: ForkServer, tmp_path_factory: pytest.TempPathFactory
) -> UninterruptedRun:
    """Return a function that runs uninterrupted runs, once for each set of arguments."""

    @functools.cache
    def logbooks(kind: str, ranks: int) -> list[dict[int, list[str]]]:
        job = Job(tmp_path_factory.mktemp(f"uninterrupted-{kind}-{ranks}"), kind=kind)
        result = job.run(forks, AttemptPlan(ranks))
        assert result.is_finished, job.output()
        return [dict(job.logbook(1, rank)) for rank in range(ranks)]

    return logbooks


def run_schedule(
    schedule: FaultSchedule,
    path: Path,
    forks: ForkServer,
    s3: FakeS3,
    uninterrupted_run: UninterruptedRun,
    protocol: str = "s3",
) -> list[str]:
    """Run a job to its end; return the crash points that were reached."""
    print(schedule)
    s3.renew()
    path.mkdir()
    server = s3 if schedule.on_s3 else None
    job = Job(path, kind=schedule.kind, s3=server, protocol=protocol)
    state = StoreState(job.repository(), [], {})
    attempts: list[AttemptPlan] = []

    for plan in (*schedule.attempts, schedule.last):
        result = job.run(forks, plan)
        attempts.append(plan)
        print(f"{result}\n{job.output()}")
        state = check_attempt(job, plan, state, result)
        if result.is_finished:
            break

    assert result.is_finished, result
    check_end(job, uninterrupted_run, state, attempts)
    return [description for result in job.results for description in result.reached]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_run_survives_random_crashes(
    tmp_path: Path, forks: ForkServer, s3: FakeS3, uninterrupted_run: UninterruptedRun, seed: int
) -> None:
    schedule, protocol = draw(seed), PROTOCOLS[seed % len(PROTOCOLS)]
    print(protocol)

    reached = run_schedule(schedule, tmp_path / "job", forks, s3, uninterrupted_run, protocol)
    reached = reached or run_schedule(
        schedule.at_first_runs(), tmp_path / "again", forks, s3, uninterrupted_run, protocol
    )

    assert reached, "nothing is there any more of what was to be disturbed"


@pytest.mark.parametrize(
    "protocol",
    ["file", *(pytest.param(name, marks=pytest.mark.full) for name in PROTOCOLS)],
)
@pytest.mark.parametrize("operation", REQUESTS)
def test_kill_at_any_line_of_a_store_request_is_survived(
    tmp_path: Path,
    forks: ForkServer,
    s3: FakeS3,
    uninterrupted_run: UninterruptedRun,
    operation: str,
    protocol: str,
) -> None:
    reached: list[str] = []
    on_s3 = protocol != "file"

    for line in range(1, OPERATIONS[operation].lines + 1, 1 if EVERY_LINE else repeat_count(30, 6)):
        point = CrashPoint(operation, 2, line, FaultAction.KILL)
        schedule = FaultSchedule("ddp", on_s3, (AttemptPlan(1, ((0, point),)),), AttemptPlan(1))
        reached += run_schedule(
            schedule, tmp_path / f"{line}", forks, s3, uninterrupted_run, protocol
        )
    # On a busy machine a run may make too few saves to remove an old checkpoint.
    reached = reached or run_schedule(
        schedule.at_first_runs(), tmp_path / "again", forks, s3, uninterrupted_run, protocol
    )

    assert reached


@pytest.mark.parametrize(
    "function", sorted({f for d in (*OPERATIONS.values(), EXIT_ON_NOTICE) for f in d.functions})
)
def test_crash_point_functions_exist(function: str) -> None:
    module, _, name = function.partition(":")

    found = operator.attrgetter(name)(importlib.import_module(f"holdfast_worker.{module}"))

    assert found.__code__.co_qualname == name


def test_four_ranks_resume_bit_identical(
    tmp_path: Path, forks: ForkServer, uninterrupted_run: UninterruptedRun
) -> None:
    """Regression: resumed runs differed from uninterrupted ones in the last bits.

    DDP orders its buckets differently in its first step. The first step after a resume therefore summed the
    gradients of four ranks in a different order than the same step of an uninterrupted run.
    """
    notice = CrashPoint("train", 7, 1, FaultAction.NOTICE_ALL, left_s=120.0)
    plans = [AttemptPlan(4, ((1, notice),)), AttemptPlan(4)]
    job = Job(tmp_path)

    state = StoreState(job.repository(), [], {})
    for plan in plans:
        state = check_attempt(job, plan, state, job.run(forks, plan))

    assert [result.codes for result in job.results] == [[Exit.PREEMPTED] * 4, [Exit.DONE] * 4]
    assert job.initial_state(0)[0] == "7"
    check_end(job, uninterrupted_run, state, plans)

"""Ranks that are killed at any line and resumed end where they would have ended, bit for bit.

One seed is one schedule: how many ranks, over which store, killed or warned at which line of what, and how often. The places
are the same every time; what happens in the meantime on other ranks is not. FAULT_SEEDS says how many there are.
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
from fault_injection.crash_points import DOINGS, LEAVING, CrashPoint, FaultAction
from fault_injection.fault_schedule import AttemptPlan, FaultSchedule, draw
from fault_injection.fork_server import ForkServer
from fault_injection.invariants import Calm, Standing, check_end, check_leg
from fault_injection.job_driver import Job
from holdfast_worker.protocol.environment import Exit
from support.repetitions import FAULT_SEEDS, repeat_count

SEEDS = max(1, FAULT_SEEDS // 8)
EVERY_LINE = "STORM_EVERY_LINE" in os.environ
REQUESTS = ("send: put", "upload: put", "commit: put if absent", "point: swap", "tidy: delete")
"""Those after which the store is another one."""


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkServer]:
    with fork_server.opened() as opened:
        yield opened


@pytest.fixture(scope="module")
def s3() -> Iterator[FakeS3]:
    with fake_s3.in_thread() as s3:
        yield s3


@pytest.fixture(scope="module")
def calm(forks: ForkServer, tmp_path_factory: pytest.TempPathFactory) -> Calm:
    """Undisturbed runs, made on first use."""

    @functools.cache
    def logbooks(kind: str, ranks: int) -> list[dict[int, list[str]]]:
        job = Job(tmp_path_factory.mktemp(f"calm-{kind}-{ranks}"), kind=kind)
        result = job.run(forks, AttemptPlan(ranks))
        assert result.is_finished, job.words()
        return [dict(job.logbook(1, rank)) for rank in range(ranks)]

    return logbooks


def run_schedule(
    schedule: FaultSchedule, path: Path, forks: ForkServer, s3: FakeS3, calm: Calm
) -> list[str]:
    """What was struck on the way of a job, which was brought to its end."""
    print(schedule)
    s3.renew()
    path.mkdir()
    job = Job(path, kind=schedule.kind, s3=s3 if schedule.is_far else None)
    standing = Standing(job.archive(), [], {})
    attempts: list[AttemptPlan] = []

    for leg in (*schedule.legs, schedule.last):
        result = job.run(forks, leg)
        attempts.append(leg)
        print(f"{result}\n{job.words()}")
        standing = check_leg(job, leg, standing, result)
        if result.is_finished:
            break

    assert result.is_finished, result
    check_end(job, calm, standing, attempts)
    return [words for result in job.landfalls for words in result.struck]


@pytest.mark.parametrize("seed", range(SEEDS))
def test_run_survives_drawn_crashes(
    tmp_path: Path, forks: ForkServer, s3: FakeS3, calm: Calm, seed: int
) -> None:
    schedule = draw(seed)

    struck = run_schedule(schedule, tmp_path / "job", forks, s3, calm)
    struck = struck or run_schedule(schedule.sooner(), tmp_path / "again", forks, s3, calm)

    assert struck, "nothing is there any more of what was to be disturbed"


@pytest.mark.parametrize(
    "is_far",
    [pytest.param(False, id="directory"), pytest.param(True, id="S3", marks=pytest.mark.full)],
)
@pytest.mark.parametrize("doing", REQUESTS)
def test_killed_at_any_line_of_a_request_to_the_store(
    tmp_path: Path, forks: ForkServer, s3: FakeS3, calm: Calm, doing: str, is_far: bool
) -> None:
    struck: list[str] = []

    for line in range(1, DOINGS[doing].lines + 1, 1 if EVERY_LINE else repeat_count(15, 6)):
        point = CrashPoint(doing, 2, line, FaultAction.KILL)
        schedule = FaultSchedule("ddp", is_far, (AttemptPlan(1, ((0, point),)),), AttemptPlan(1))
        struck += run_schedule(schedule, tmp_path / f"{line}", forks, s3, calm)
    # On a busy machine a run may make too few saves to remove an old one.
    struck = struck or run_schedule(schedule.sooner(), tmp_path / "again", forks, s3, calm)

    assert struck


@pytest.mark.parametrize(
    "function", sorted({f for d in (*DOINGS.values(), LEAVING) for f in d.functions})
)
def test_crash_point_functions_exist(function: str) -> None:
    module, _, name = function.partition(":")

    found = operator.attrgetter(name)(importlib.import_module(f"holdfast_worker.{module}"))

    assert found.__code__.co_qualname == name


def test_four_ranks_go_on_to_the_bit(tmp_path: Path, forks: ForkServer, calm: Calm) -> None:
    """DDP fills its buckets in another order in its first step. The first step after a resume summed the gradients of four
    ranks in another order than the same step of a run that was left alone, and every resumed job ended with other bits."""
    notice = CrashPoint("train", 7, 1, FaultAction.NOTICE_ALL, left_s=120.0)
    legs = [AttemptPlan(4, ((1, notice),)), AttemptPlan(4)]
    job = Job(tmp_path)

    standing = Standing(job.archive(), [], {})
    for leg in legs:
        standing = check_leg(job, leg, standing, job.run(forks, leg))

    assert [result.codes for result in job.landfalls] == [[Exit.PREEMPTED] * 4, [Exit.DONE] * 4]
    assert job.begun(0)[0] == "7"
    check_end(job, calm, standing, legs)

"""The group commit responds after the commit only; a failing batch does not affect others."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
from holdfast.domain.events import CheckpointFailed
from holdfast.errors import NotFound, StaleWrite, StoreUnavailable, Unavailable
from holdfast.ingest import group_commit
from holdfast.ingest.group_commit import ReportGroupCommit
from holdfast.store.journal import Journal
from holdfast.store.queries import Queries
from holdfast.store.report_ingest import Accepted, BatchResult, ReportBatch
from sqlalchemy import Engine
from support import ingest_process
from support.events import launched, ready, submitted
from support.fakes import FixedClock

JOBS = 12
ENOUGH = 150
"""Number of responses before a process is killed."""


def batch(job_id: str, *numbers: int) -> ReportBatch:
    return ReportBatch(
        job_id=job_id, attempt=1, reports=[ingest_process.make_report(n) for n in numbers]
    )


class FakeIngest:
    """Accepts batches as configured, and records their groups."""

    def __init__(self) -> None:
        self.groups: list[list[str]] = []
        self.open = threading.Event()
        self.open.set()
        self.trouble: Exception | None = None

    def ingest_reports(self, batches: Sequence[ReportBatch]) -> list[BatchResult]:
        assert self.open.wait(120)
        names = [each.job_id for each in batches]
        self.groups.append(names)
        if self.trouble and "bad" in names:
            raise self.trouble
        return [NotFound(name) if name == "unknown" else Accepted(2, None) for name in names]


def patient(ingest: FakeIngest) -> ReportGroupCommit:
    """A group commit whose first batch waits for the others also on a busy machine."""
    return ReportGroupCommit(ingest, gather_s=0.5)


async def _all(intake: ReportGroupCommit, names: Sequence[str]) -> list[Accepted | BaseException]:
    takes = (intake.submit(batch(name, 1)) for name in names)
    return await asyncio.gather(*takes, return_exceptions=True)


def test_concurrent_batches_are_written_in_one_group() -> None:
    ingest = FakeIngest()

    answers = asyncio.run(_all(patient(ingest), ["a", "b", "unknown", "c"]))

    assert ingest.groups == [["a", "b", "unknown", "c"]]
    assert [type(answer) for answer in answers] == [Accepted, Accepted, NotFound, Accepted]


def test_reply_is_sent_only_after_the_commit() -> None:
    async def story() -> tuple[bool, Accepted]:
        ingest.open.clear()
        waiting = asyncio.ensure_future(intake.submit(batch("a", 1)))
        done, _ = await asyncio.wait([waiting], timeout=0.1)
        ingest.open.set()
        return bool(done), await waiting

    ingest = FakeIngest()
    intake = ReportGroupCommit(ingest)

    early, answer = asyncio.run(story())

    assert not early
    assert answer == Accepted(2, None)


def test_failed_batch_does_not_fail_others_in_the_group() -> None:
    ingest = FakeIngest()
    ingest.trouble = StaleWrite("a seq is taken")

    answers = asyncio.run(_all(patient(ingest), ["a", "bad", "b"]))

    assert [type(answer) for answer in answers] == [Accepted, StaleWrite, Accepted]
    assert ingest.groups == [["a", "bad", "b"], ["a"], ["bad"], ["b"]]


def test_unavailable_database_is_not_retried_per_batch() -> None:
    ingest = FakeIngest()
    ingest.trouble = StoreUnavailable("gone")

    answers = asyncio.run(_all(patient(ingest), ["a", "bad", "b"]))

    assert [type(answer) for answer in answers] == [StoreUnavailable] * 3
    assert len(ingest.groups) == 1


def test_cancelled_submission_does_not_block_others() -> None:
    async def story() -> Accepted:
        ingest.open.clear()
        gone = asyncio.ensure_future(intake.submit(batch("a", 1)))
        stays = asyncio.ensure_future(intake.submit(batch("b", 1)))
        await asyncio.sleep(0)
        gone.cancel()
        ingest.open.set()
        return await stays

    ingest = FakeIngest()
    intake = ReportGroupCommit(ingest)

    assert asyncio.run(story()) == Accepted(2, None)


def test_full_group_leaves_the_rest_to_the_next_one() -> None:
    ingest = FakeIngest()
    big = ReportBatch(job_id="big", attempt=1, reports=[ingest_process.make_report(1)] * 1500)

    async def story() -> None:
        intake = patient(ingest)
        await asyncio.gather(*(intake.submit(big) for _ in range(3)), intake.submit(batch("a", 1)))

    asyncio.run(story())

    assert ingest.groups == [["big"], ["big"], ["big", "a"]]


def test_submissions_over_capacity_get_unavailable() -> None:
    async def story() -> list[Accepted | BaseException]:
        ingest.open.clear()
        intake = ReportGroupCommit(ingest)
        takes = [asyncio.ensure_future(intake.submit(huge)) for _ in range(4)]
        await asyncio.sleep(0)
        ingest.open.set()
        return await asyncio.gather(*takes, return_exceptions=True)

    ingest = FakeIngest()
    half = group_commit.MOST_WAITING // 2
    huge = ReportBatch(job_id="huge", attempt=1, reports=[ingest_process.make_report(1)] * half)

    answers = asyncio.run(story())

    kinds = [type(answer) for answer in answers]
    assert kinds.count(Accepted) + kinds.count(Unavailable) == 4
    assert Unavailable in kinds
    assert Accepted in kinds


@pytest.mark.timeout(240)
def test_acknowledged_reports_survive_kills_exactly_once(
    engine: Engine, database_url: str, clock: FixedClock
) -> None:
    journal = Journal(engine, clock)
    for i in range(JOBS):
        journal.append(journal.submit(f"job-{i}", submitted()), [launched(1), ready(2)])
    answered: dict[str, int] = {}

    for _ in range(4):
        for job_id, last in _until_killed(database_url):
            answered[job_id] = max(last, answered.get(job_id, 0))

        for job_id, last in answered.items():
            _is_whole(journal, Queries(engine), job_id, at_least=last)
    assert len(answered) == JOBS


def _until_killed(url: str) -> list[tuple[str, int]]:
    """The number of reports that a process had acknowledged when it was killed."""
    here = Path(ingest_process.__file__)
    command = [sys.executable, "-P", str(here), url, str(JOBS)]
    lines: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            lines.append(line)
            if len(lines) == ENOUGH:
                os.kill(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    whole = [line.split() for line in lines if line.endswith("\n")]
    return [(job_id, int(last)) for job_id, last in whole]


def _is_whole(journal: Journal, reading: Queries, job_id: str, *, at_least: int) -> None:
    mark = journal.marks(job_id)[1]
    assert mark >= at_least
    points = [point.n for point in reading.points(job_id, limit=1_000_000)]
    assert points == [n for n in range(1, mark + 1) if n % 10]
    events = (item.event for item in journal.events(job_id))
    facts = [event.step for event in events if isinstance(event, CheckpointFailed)]
    assert facts == [*range(10, mark + 1, 10)]
    assert not journal.is_inconsistent(job_id)

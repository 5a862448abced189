"""A service's intake in a process of its own, to be killed at any moment: `python ingest_process.py URL JOBS`.

Workers of so many jobs deliver without end, and begin where the database says. Each answer is printed, one line each: the
job, and the last report of which it was told that it is taken.
"""

from __future__ import annotations

import asyncio
import random
import sys

from holdfast.clock import SystemClock
from holdfast.ingest.group_commit import ReportGroupCommit
from holdfast.store.database import open_database
from holdfast.store.journal import Journal
from holdfast.store.report_ingest import ReportBatch
from holdfast_worker.protocol.reports import Report, ReportKind

AT = "2026-03-01T12:00:30+00:00"


def said(n: int) -> Report:
    """Every tenth report is a fact, the others are points."""
    if n % 10 == 0:
        return Report(1, n, AT, ReportKind.CHECKPOINT_FAILED, {"step": n, "detail": str(n)})
    return Report(1, n, AT, ReportKind.PROGRESS, {"step": n, "values": {"loss": 1 / n}})


async def deliver(intake: ReportGroupCommit, job_id: str) -> None:
    """Send the next reports, some of them twice, until the end of the process."""
    rng, wanted = random.Random(job_id), 1
    while True:
        first = max(1, wanted - rng.randrange(3))
        reports = [said(n) for n in range(first, wanted + rng.randrange(1, 6))]
        taken = await intake.submit(ReportBatch(job_id=job_id, attempt=1, reports=reports))
        wanted = taken.next
        print(job_id, wanted - 1, flush=True)


async def run(url: str, jobs: int) -> None:
    """Deliver for all jobs at once."""
    intake = ReportGroupCommit(Journal(open_database(url), SystemClock()))
    await asyncio.gather(*(deliver(intake, f"job-{i}") for i in range(jobs)))


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2])))

"""Report ingestion in a killable process: `python ingest_process.py URL JOBS`.

Workers of JOBS jobs deliver reports endlessly, starting at the number in the database. Each acknowledgement
is printed on one line: the job and the number of the last acknowledged report.
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


def make_report(n: int) -> Report:
    """Return a checkpoint failure for every tenth number, and progress for the others."""
    if n % 10 == 0:
        return Report(1, n, AT, ReportKind.CHECKPOINT_FAILED, {"step": n, "detail": str(n)})
    return Report(1, n, AT, ReportKind.PROGRESS, {"step": n, "values": {"loss": 1 / n}})


async def deliver(intake: ReportGroupCommit, job_id: str) -> None:
    """Send the next reports, some of them twice, until the process ends."""
    rng, next_number = random.Random(job_id), 1
    while True:
        first = max(1, next_number - rng.randrange(3))
        reports = [make_report(n) for n in range(first, next_number + rng.randrange(1, 6))]
        result = await intake.submit(ReportBatch(job_id=job_id, attempt=1, reports=reports))
        next_number = result.next
        print(job_id, next_number - 1, flush=True)


async def run(url: str, jobs: int) -> None:
    """Deliver reports of all jobs concurrently."""
    intake = ReportGroupCommit(Journal(open_database(url), SystemClock()))
    await asyncio.gather(*(deliver(intake, f"job-{i}") for i in range(jobs)))


if __name__ == "__main__":
    asyncio.run(run(sys.argv[1], int(sys.argv[2])))

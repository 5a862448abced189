"""What people ask of a job that is there: pause, resume, other limits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from holdfast.domain.access.audit import AuditAction
from holdfast.domain.events import Event
from holdfast.domain.jobs.job import Job
from holdfast.errors import StaleWrite
from holdfast.services import Services


def append_with_retry(
    services: Services,
    job: Job,
    wish: Callable[[Job], Sequence[Event]],
    deed: Callable[[Job], AuditAction],
) -> Job:
    """The job with the facts that follow from a wish, whoever else writes to it meanwhile; and somebody looks at it soon.

    `deed` is how the audit log tells it.
    """
    while facts := wish(job):
        try:
            job = services.journal.append(job, facts, deed(job))
        except StaleWrite:
            job = services.journal.read(job.id)
        else:
            break
    services.watches.nudge(job.id, services.clock.now())
    services.nudge()
    return job

"""Preview an action on a selection of jobs, and carry it out on the jobs of the preview.

The jobs of one transaction are decided on as they are then, and the reconciler is woken once: it finds all of them in its next pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.domain.access.audit import Actor, AuditAction
from holdfast.domain.access.permissions import Action, Caller
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs.bulk_actions import MAX_SELECTED, BulkAction, BulkRequest, JobResult
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.selection import JobFilter
from holdfast.errors import BadRequest, HoldfastError
from holdfast.services import Services
from holdfast.submission.copies import JobChanges, JobCopier

BATCH: Final = 100
"""Jobs of one transaction. A lower value adds transactions; a higher value lets reports of workers wait longer."""


@dataclass(frozen=True, kw_only=True, slots=True)
class JobActionResult:
    """What an action has done to one job, or would do."""

    job_id: str
    name: str = ""
    state: str = ""
    """State of the job after the action; empty if the job was not found."""
    result: JobResult
    reason: str | None = None
    """Why it was refused, or changes nothing; None if it is done."""
    new_job_id: str | None = None
    """The job that a retry has submitted."""


@dataclass(frozen=True, slots=True)
class BulkActions:
    """Acts on the jobs that a caller may see."""

    services: Services
    caller: Caller
    actor: Actor
    asked: BulkRequest
    key: str | None = None
    """The Idempotency-Key, of which the retry of each job gets its own."""

    def preview(self, where: JobFilter, ids: Sequence[str] | None) -> list[JobActionResult]:
        """What the action would do to each job that matches, newest first.

        Raises:
            BadRequest: more jobs match than an action accepts.
        """
        page = self.services.queries.matching(where, limit=MAX_SELECTED, ids=ids)
        if page.total > MAX_SELECTED:
            raise BadRequest(
                f"selection: {page.total:,} jobs match, and an action accepts at most {MAX_SELECTED:,}; narrow the selection"
            )
        limits = self._limits(page.jobs)
        return [self._previewed(job, limits.get(job.id)) for job in page.jobs]

    def carry_out(self, where: JobFilter, ids: Sequence[str]) -> list[JobActionResult]:
        """Act on those of `ids` that match, and return one result for each, in their order."""
        page = self.services.queries.matching(where, limit=len(ids), ids=ids)
        found = {job.id: job for job in page.jobs}
        results = {job_id: _absent(job_id) for job_id in ids}
        allowed = [job for job in found.values() if self._may(job)]
        results |= {job.id: self._forbidden(job) for job in found.values() if not self._may(job)}
        if self.asked.action is BulkAction.RETRY:
            results |= {job.id: self._retried(job) for job in allowed}
        else:
            for start in range(0, len(allowed), BATCH):
                results |= {r.job_id: r for r in self._recorded(allowed[start : start + BATCH])}
        done = [r.job_id for r in results.values() if r.result is JobResult.DONE]
        self.services.leases.make_all_due(done, self.services.clock.now())
        self.services.nudge()
        return [results[job_id] for job_id in ids]

    def _may(self, job: Job) -> bool:
        wanted = Action.SUBMIT if self.asked.action is BulkAction.RETRY else Action.STEER
        return self.caller.may(wanted, job.project)

    def _forbidden(self, job: Job) -> JobActionResult:
        why = f"your role in project {job.project}, or your token, allows only reading"
        return _result(job, JobResult.REFUSED, why)

    def _previewed(self, job: Job, limits: Limits | None) -> JobActionResult:
        if not self._may(job):
            return self._forbidden(job)
        try:
            events = self.asked.decide(job, limits or Limits(), self.services.clock.now())
        except HoldfastError as error:
            return _result(job, JobResult.REFUSED, error.detail)
        if events or self.asked.action is BulkAction.RETRY:
            return _result(job, JobResult.DONE)
        return _result(job, JobResult.UNCHANGED, self.asked.unchanged_reason(job))

    def _recorded(self, batch: Sequence[Job]) -> Iterator[JobActionResult]:
        limits, now = self._limits(batch), self.services.clock.now()
        before = {job.id: job for job in batch}
        outcomes = self.services.journal.append_each(
            [*before],
            lambda job: self.asked.decide(job, job.limits or limits.get(job.id) or Limits(), now),
            self._entry,
        )
        for job_id, outcome in outcomes.items():
            if isinstance(outcome, HoldfastError):
                yield _result(before[job_id], JobResult.REFUSED, outcome.detail)
            elif outcome.is_changed:
                yield _result(outcome.job, JobResult.DONE)
            else:
                why = self.asked.unchanged_reason(outcome.job)
                yield _result(outcome.job, JobResult.UNCHANGED, why)

    def _entry(self, job: Job) -> AuditAction:
        if self.asked.action is BulkAction.LABEL:
            changed = {"tags": dict(self.asked.tags)}
            return self.actor.audit_action("job.label", job.id, {"tags": dict(job.tags)}, changed)
        after = {"reason": self.asked.reason}
        action = f"job.{self.asked.action}"
        return self.actor.audit_action(action, job.id, {"state": job.status}, after)

    def _retried(self, job: Job) -> JobActionResult:
        key = self.key and f"{self.key}:{job.id}"
        copier = JobCopier(self.services, self.caller, self.actor, JobChanges(), "{}", key)
        try:
            made = copier.retry(job)
        except HoldfastError as error:
            return _result(job, JobResult.REFUSED, error.detail)
        return JobActionResult(
            job_id=job.id,
            name=job.name,
            state=job.status,
            result=JobResult.DONE,
            new_job_id=made.id,
        )

    def _limits(self, jobs: Sequence[Job]) -> dict[str, Limits]:
        """The limits of jobs for a resume, which alone depends on them."""
        if self.asked.action is not BulkAction.RESUME:
            return {}
        unchanged = [job.id for job in jobs if job.limits is None]
        specs = self.services.queries.submissions(unchanged)
        found = {
            job_id: JobSpec.from_stored(submitted.spec).holdfast.limits
            for job_id, submitted in specs.items()
        }
        return found | {job.id: job.limits for job in jobs if job.limits is not None}


def _result(job: Job, result: JobResult, reason: str | None = None) -> JobActionResult:
    return JobActionResult(
        job_id=job.id, name=job.name, state=job.status, result=result, reason=reason
    )


def _absent(job_id: str) -> JobActionResult:
    why = f"there is no job {job_id}, or it no longer matches the selection"
    return JobActionResult(job_id=job_id, result=JobResult.REFUSED, reason=why)

"""Create jobs from existing jobs: clone with changes, or retry from the newest checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from holdfast.domain.access.audit import Actor
from holdfast.domain.access.permissions import Caller
from holdfast.domain.jobfile.env_vars import name_error
from holdfast.domain.jobfile.parser import ParsedJobFile
from holdfast.domain.jobfile.spec import MAX_VARIABLES, JobSpec
from holdfast.domain.jobfile.validation import to_flaw, with_changes
from holdfast.domain.jobs.commands import retry_refusal
from holdfast.domain.jobs.job import Job
from holdfast.errors import BadJobFile, NotPossibleNow, ValidationIssue
from holdfast.rendering import render
from holdfast.services import Services
from holdfast.store.journal import SubmissionRequest
from holdfast.submission.plan_check import measured_work_s
from holdfast.submission.submit import own_key, record, submission


@dataclass(frozen=True, kw_only=True, slots=True)
class JobChanges:
    """The changes in a copy of a job."""

    name: str | None = None
    """Name of the copy; None keeps the original's."""
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    limits: Mapping[str, Any] = field(default_factory=dict)
    """Only the changed limits, by name."""
    force: bool = False
    """Whether to accept a job that would lose its progress on spot nodes, or that no plan can keep."""


@dataclass(frozen=True, slots=True)
class JobCopier:
    """Copies and retries jobs for one request."""

    services: Services
    caller: Caller
    actor: Actor
    changes: JobChanges
    requested: str
    """The requested changes without secrets; they identify a repeated request."""
    key: str | None
    """The Idempotency-Key; None: a repeated request creates another job."""

    def clone(self, job: Job) -> Job:
        """Record a copy of a job."""
        return self._copy(
            "clone", job, lambda: JobSpec.from_stored(self.services.journal.submission(job.id).spec)
        )

    def retry(self, job: Job) -> Job:
        """Record a copy of a failed or cancelled job that resumes from its newest checkpoint.

        Raises:
            NotPossibleNow: the job cannot be retried.
        """

        def understand() -> JobSpec:
            services = self.services
            digest, _ = services.job_summaries.get([job], services.clock.now())[job.id]
            if no := retry_refusal(job, digest.newest_checkpoint):
                raise NotPossibleNow(f"job {job.id} cannot be retried: {no}")
            return digest.spec.with_parent(job.id)

        return self._copy("retry", job, understand)

    def _copy(self, verb: str, job: Job, understand: Callable[[], JobSpec]) -> Job:
        """Copy a job, or return the copy that the same request created before.

        It is returned even if its checks would fail now.
        """
        services, changes = self.services, self.changes
        digest = services.secrets.digest(
            f"{verb} {job.id} {self.requested}".encode(), changes.secrets
        )
        request = SubmissionRequest(own_key(self.key, self.caller), digest) if self.key else None
        made = services.journal.find_submission(request) if request else None
        if made is None:
            understood = _changed(job, _with_measured_work(job, understand()), changes)
            is_confined = services.journal.submission(job.id).confined
            event = submission(
                services,
                understood,
                render(understood.spec),
                # The script belongs to the user who wrote the original: an admin's retry must not extend its
                # permissions.
                caller=self.caller.restricted_to(job.project) if is_confined else self.caller,
                project=job.project,
                force=changes.force,
            )
            made = record(services, understood, event, request, self.actor)
        services.nudge()
        return made


def _with_measured_work(job: Job, spec: JobSpec) -> JobSpec:
    """A copy of a planned job with the work that the job has measured."""
    work_s = measured_work_s(job) if spec.holdfast.plan else None
    return spec.with_work(work_s) if work_s else spec


def _changed(job: Job, spec: JobSpec, asked: JobChanges) -> ParsedJobFile:
    """Parse the changed job file.

    Raises:
        BadJobFile: secrets are missing, which only their owner can supply, or do not belong to the job.
        BadLimits: the changed limits are invalid.
    """
    missing = sorted(set(spec.secrets) - set(asked.secrets))
    unknown = sorted(set(asked.secrets) - set(spec.secrets))
    lack = "is a secret of the job, and secret values are not copied; pass it with --secret"
    flaws = [ValidationIssue(f"#/secrets/{name}", lack) for name in missing]
    flaws += [
        ValidationIssue(f"#/secrets/{name}", "is not a secret of the job; omit it")
        for name in unknown
    ]
    flaws += [ValidationIssue(f"#/env/{n}", "is a secret of the job; pass it with --secret") for n in asked.env if n in spec.secrets]  # fmt: skip
    flaws += [ValidationIssue(f"#/env/{n}", why) for n in asked.env if (why := name_error(n))]
    if flaws:
        raise BadJobFile(tuple(flaws))
    envs = {**spec.envs, **asked.env}
    if len(envs) > max(MAX_VARIABLES, len(spec.envs)):
        most = f"would be {len(envs)} variables; a job accepts at most {MAX_VARIABLES}"
        raise BadJobFile((ValidationIssue("#/env", most),))
    limits = with_changes(job.limits or spec.holdfast.limits, asked.limits)
    words = spec.with_limits(limits).model_dump(mode="json")
    named = {"name": asked.name or spec.name, "envs": envs}
    notes = (f"a copy of job {job.id}",)
    try:
        copied = JobSpec.model_validate({**words, **named})
    except ValidationError as error:
        raise BadJobFile(tuple(map(to_flaw, error.errors()))) from error
    return ParsedJobFile(copied, notes, asked.secrets)

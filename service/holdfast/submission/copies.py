"""Jobs made from jobs: the same file once more, with what is to be other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Response
from pydantic import ValidationError

from holdfast.api.schemas.jobs import CloneIn, JobOut
from holdfast.api.views.jobs import submitted_view
from holdfast.domain.access.audit import Actor
from holdfast.domain.access.permissions import Caller
from holdfast.domain.jobfile.env_vars import wrong_name
from holdfast.domain.jobfile.parser import ParsedJobFile
from holdfast.domain.jobfile.spec import MOST_VARIABLES, JobSpec
from holdfast.domain.jobfile.validation import flaw_of, with_changes
from holdfast.domain.jobs.job import Job
from holdfast.errors import BadJobFile, Flaw
from holdfast.rendering import render
from holdfast.services import Services
from holdfast.store.journal import Request
from holdfast.submission.submit import own_key, record, submission


@dataclass(frozen=True, slots=True)
class JobCopier:
    """Makes jobs of jobs for one request."""

    services: Services
    response: Response
    caller: Caller
    doer: Actor
    changes: CloneIn
    key: str | None
    """The Idempotency-Key; None: a request like this one makes another job."""

    def copy(self, verb: str, job: Job, understand: Callable[[], JobSpec]) -> JobOut:
        """The copy of a job, or what the same request has made before: that is told even if it could not be made now."""
        services, changes = self.services, self.changes
        told = changes.model_dump_json(exclude={"secrets"}, exclude_unset=True)
        digest = services.secrets.digest(f"{verb} {job.id} {told}".encode(), changes.secrets)
        request = Request(own_key(self.key, self.caller), digest) if self.key else None
        made = services.journal.made_by(request) if request else None
        if made is None:
            understood = _copy(job, understand(), changes)
            is_confined = services.journal.submission(job.id).confined
            event = submission(
                services,
                understood,
                render(understood.spec),
                # Its script is the one of the user who wrote the first: an admin who retries it lends it no rights.
                caller=self.caller.within_one(job.project) if is_confined else self.caller,
                project=job.project,
                force=changes.force,
            )
            made = record(services, understood, event, request, self.doer)
        services.nudge()
        self.response.headers["Location"] = f"/v1/jobs/{made.id}"
        return submitted_view(services, made.id)


def _copy(job: Job, spec: JobSpec, asked: CloneIn) -> ParsedJobFile:
    """The copy, understood.

    Raises:
        BadJobFile: secrets are missing, as nobody but who knows them may hand them on, or are none of this job.
        BadLimits: limits that are to be other ones cannot be.
    """
    missing = sorted(set(spec.secrets) - set(asked.secrets))
    unknown = sorted(set(asked.secrets) - set(spec.secrets))
    lack = "is a secret of the job, and values of secrets are not copied; give it with --secret"
    flaws = [Flaw(f"#/secrets/{name}", lack) for name in missing]
    flaws += [
        Flaw(f"#/secrets/{name}", "is no secret of the job; leave it out") for name in unknown
    ]
    flaws += [Flaw(f"#/env/{n}", "is a secret of the job; give it with --secret") for n in asked.env if n in spec.secrets]  # fmt: skip
    flaws += [Flaw(f"#/env/{n}", why) for n in asked.env if (why := wrong_name(n))]
    if flaws:
        raise BadJobFile(tuple(flaws))
    envs = {**spec.envs, **asked.env}
    if len(envs) > max(MOST_VARIABLES, len(spec.envs)):
        most = f"would be {len(envs)} variables; at most {MOST_VARIABLES} reach a job"
        raise BadJobFile((Flaw("#/env", most),))
    changes = asked.limits.model_dump(exclude_unset=True)
    limits = with_changes(job.limits or spec.holdfast.limits, changes)
    words = spec.with_limits(limits).model_dump(mode="json")
    named = {"name": asked.name or spec.name, "envs": envs}
    notes = (f"a copy of job {job.id}",)
    try:
        copied = JobSpec.model_validate({**words, **named})
    except ValidationError as error:
        raise BadJobFile(tuple(map(flaw_of, error.errors()))) from error
    return ParsedJobFile(copied, notes, asked.secrets)

"""Jobs made from jobs: the same file once more, with what is to be other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Response
from pydantic import ValidationError

from holdfast.api.auth import TheCaller, TheDoer
from holdfast.api.control_schemas import CloneIn
from holdfast.api.jobs import Key, own_key, record, submission
from holdfast.api.routing import Router
from holdfast.api.schemas import JobOut
from holdfast.api.services import Services, The, TheJob
from holdfast.api.views import submitted_view
from holdfast.domain.deeds import Doer
from holdfast.domain.forebears import why_no_retry
from holdfast.domain.job import Job
from holdfast.domain.jobfile import Understood
from holdfast.domain.mistakes import flaw_of, with_changes
from holdfast.domain.rights import Caller
from holdfast.domain.spec import MOST_VARIABLES, JobSpec
from holdfast.domain.variables import wrong_name
from holdfast.errors import BadJobFile, Flaw, NotPossibleNow
from holdfast.rendering import render
from holdfast.store.journal import Request

router = Router(prefix="/v1/jobs/{job_id}", tags=["jobs"])


@dataclass(frozen=True, slots=True)
class Copier:
    """Makes jobs of jobs for one request."""

    services: Services
    response: Response
    caller: Caller
    doer: Doer
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


def _copier(
    services: The,
    response: Response,
    caller: TheCaller,
    doer: TheDoer,
    *,
    body: CloneIn | None = None,
    idempotency_key: Key = None,
) -> Copier:
    return Copier(services, response, caller, doer, body or CloneIn(), idempotency_key)


TheCopier = Annotated[Copier, Depends(_copier)]


@router.post("/clone", status_code=201, response_model=JobOut)
def clone_job(job: TheJob, copier: TheCopier) -> JobOut:
    """Record a new job like this one, with its limits as they are now. It begins where this one began, in a store of its own."""

    def understand() -> JobSpec:
        return JobSpec.stored(copier.services.journal.submission(job.id).spec)

    return copier.copy("clone", job, understand)


@router.post("/retry", status_code=201, response_model=JobOut)
def retry_job(job: TheJob, copier: TheCopier) -> JobOut:
    """Record a new job like this one, which has ended without success, to go on from its newest checkpoint."""

    def understand() -> JobSpec:
        services = copier.services
        digest, _ = services.digests.of([job], services.clock.now())[job.id]
        if no := why_no_retry(job, digest.newest):
            raise NotPossibleNow(f"job {job.id} cannot be retried: {no}")
        return digest.spec.going_on_from(job.id)

    return copier.copy("retry", job, understand)


def _copy(job: Job, spec: JobSpec, asked: CloneIn) -> Understood:
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
    words = spec.under(limits).model_dump(mode="json")
    named = {"name": asked.name or spec.name, "envs": envs}
    notes = (f"a copy of job {job.id}",)
    try:
        copied = JobSpec.model_validate({**words, **named})
    except ValidationError as error:
        raise BadJobFile(tuple(map(flaw_of, error.errors()))) from error
    return Understood(copied, notes, asked.secrets)

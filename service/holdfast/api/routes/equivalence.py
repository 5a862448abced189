"""Certificates: whether a job that was interrupted came to what the same job did that was left alone."""

from __future__ import annotations

from collections.abc import Sequence

import holdfast
from holdfast.api.auth.authentication import TheCaller, TheDoer, project_seen
from holdfast.api.dependencies import The, TheJob
from holdfast.api.routing import Router
from holdfast.api.schemas.diagnostics import ProofIn, ProofOut
from holdfast.api.views.jobs import proof_view
from holdfast.domain.diagnostics.equivalence import LoggedSteps, compared, why_no_proof
from holdfast.domain.events import Event, RunsCompared
from holdfast.domain.jobs.job import Job
from holdfast.errors import NotFound, NotPossibleNow
from holdfast.services import Services
from holdfast.submission.commands import append_with_retry

router = Router(prefix="/v1/jobs/{job_id}/proofs", tags=["history"])


@router.get("", response_model=list[ProofOut])
def list_proofs(job: TheJob, services: The) -> list[ProofOut]:
    """The comparisons of a job with others that were left alone, newest first."""
    facts = (fact.event for fact in services.journal.events(job.id))
    return [proof_view(fact) for fact in facts if isinstance(fact, RunsCompared)][::-1]


@router.post("", status_code=201, response_model=ProofOut)
def record_proof(
    job: TheJob, services: The, caller: TheCaller, doer: TheDoer, body: ProofIn
) -> ProofOut:
    """Compare a job with the same one that was left alone. Weights and numbers are the service's own knowledge."""
    if project_seen(services, caller, body.against) is None:
        raise NotFound(f"there is no job {body.against}")
    straight = services.journal.read(body.against)
    if no := why_no_proof(job, straight):
        raise NotPossibleNow(f"job {job.id} cannot be compared: {no}")
    others = _facts(services, straight)
    heard = LoggedSteps(**body.model_dump(exclude={"against"}))
    found: list[RunsCompared] = []

    def wish(job: Job) -> Sequence[Event]:
        fact = compared(
            job,
            _facts(services, job),
            others,
            heard,
            services.clock.now(),
            against=straight.id,
            by=caller.name,
            version=holdfast.__version__,
        )
        found.append(fact)
        return (fact,)

    append_with_retry(
        services,
        job,
        wish,
        lambda job: doer.did("job.prove", job.id, after={"against": straight.id}),
    )
    return proof_view(found[-1])


def _facts(services: Services, job: Job) -> list[Event]:
    return [fact.event for fact in services.journal.events(job.id)]

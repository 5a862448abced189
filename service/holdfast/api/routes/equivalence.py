"""Equivalence certificates: whether an interrupted job and an uninterrupted copy match."""

from __future__ import annotations

from collections.abc import Sequence

import holdfast
from holdfast.api.auth.authentication import TheActor, TheCaller
from holdfast.api.dependencies import TheJob, TheServices
from holdfast.api.routing import Router
from holdfast.api.schemas.diagnostics import ProofIn, ProofOut
from holdfast.api.views.jobs import proof_view
from holdfast.domain.diagnostics.equivalence import LoggedSteps, compare_runs, comparison_refusal
from holdfast.domain.events import Event, RunsCompared
from holdfast.domain.jobs.job import Job
from holdfast.errors import NotFound, NotPossibleNow
from holdfast.services import Services

router = Router(prefix="/v1/jobs/{job_id}/proofs", tags=["history"])


@router.get("", response_model=list[ProofOut])
def list_proofs(job: TheJob, services: TheServices) -> list[ProofOut]:
    """List the comparisons of a job with uninterrupted copies, newest first."""
    facts = (fact.event for fact in services.journal.events(job.id))
    return [proof_view(fact) for fact in facts if isinstance(fact, RunsCompared)][::-1]


@router.post("", status_code=201, response_model=ProofOut)
def record_proof(
    job: TheJob, services: TheServices, caller: TheCaller, actor: TheActor, body: ProofIn
) -> ProofOut:
    """Compare a job with an uninterrupted copy. The service supplies weights and numbers itself."""
    if services.project_seen(caller, body.against) is None:
        raise NotFound(f"there is no job {body.against}")
    reference = services.journal.read(body.against)
    if no := comparison_refusal(job, reference):
        raise NotPossibleNow(f"job {job.id} cannot be compared: {no}")
    others = _facts(services, reference)
    logged = LoggedSteps(**body.model_dump(exclude={"against"}))
    found: list[RunsCompared] = []

    def decide(job: Job) -> Sequence[Event]:
        fact = compare_runs(
            job,
            _facts(services, job),
            others,
            logged,
            services.clock.now(),
            against=reference.id,
            by=caller.name,
            version=holdfast.__version__,
        )
        found.append(fact)
        return (fact,)

    services.append_with_retry(
        job,
        decide,
        lambda job: actor.audit_action("job.prove", job.id, after={"against": reference.id}),
    )
    return proof_view(found[-1])


def _facts(services: Services, job: Job) -> list[Event]:
    return [fact.event for fact in services.journal.events(job.id)]

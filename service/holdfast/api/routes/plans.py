"""Plans: the forecast of a job file, and the plan of a job."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query

from holdfast.api.auth.authentication import TheCaller
from holdfast.api.dependencies import TheJob, TheServices
from holdfast.api.routes.jobs import job_request
from holdfast.api.routing import Router
from holdfast.api.schemas.plans import JobPlanOut, PlanIn, PlanPreviewOut
from holdfast.api.schemas.workers import MAX_SEQ
from holdfast.api.views.plans import PlannedHistory, plan_view, preview_view
from holdfast.domain.jobfile.plan import Objective
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.errors import NotFound
from holdfast.submission.submit import preview_of_plan

router = Router(prefix="/v1", tags=["plans"])


@router.post("/plans", response_model=PlanPreviewOut)
def preview_plan(body: PlanIn, services: TheServices, caller: TheCaller) -> PlanPreviewOut:
    """Forecast cost and end of a job file, beside spot nodes only and on-demand nodes only.

    Nothing is stored. A file without `plan` is planned as if it had one.
    """
    limits = {"deadline": body.deadline, "max_cost_usd": body.max_cost_usd}
    plan = {"objective": body.objective, "work": body.work}
    plan_values: dict[str, Any] = {word: value for word, value in plan.items() if value is not None}
    if body.objective == Objective.FASTEST:
        plan_values["policy"] = None  # A policy of the file is one of the objective `cheapest`.
    asked = job_request(body)
    asked = asked.with_overrides(
        limits={word: value for word, value in limits.items() if value is not None},
        plan=plan_values,
    )
    return preview_view(preview_of_plan(services, asked, caller))


@router.get("/jobs/{job_id}/plan", response_model=JobPlanOut)
def show_plan(
    job: TheJob,
    services: TheServices,
    *,
    before: Annotated[
        int | None, Query(ge=1, le=MAX_SEQ, description="`choices_next` of the previous page.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=500, description="Number of choices.")] = 100,
) -> JobPlanOut:
    """Show the plan of a job: its choice, the reason, the forecast, and earlier choices."""
    facts = services.journal.events(job.id)
    spec = JobSpec.from_stored(services.journal.submission(job.id).spec).with_limits(job.limits)
    now = services.clock.now()
    planner = services.planners.of(spec, now)
    if planner is None:
        raise NotFound(
            f"job {job.id} has no plan; add plan: to the holdfast block of its file, with the work and a deadline, and submit it again"
        )
    history = PlannedHistory(
        job=job,
        facts=[(fact.seq, fact.event) for fact in facts],
        inputs=planner.inputs(job, now),
    )
    return plan_view(history, before=before, limit=limit)

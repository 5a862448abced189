"""Sweeps: submit, list, compare, and change what their jobs share."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Response
from pydantic import ValidationError

from holdfast.api.auth.authentication import TheActor, TheCaller
from holdfast.api.dependencies import TheServices
from holdfast.api.routes.jobs import IdempotencyKey, job_request
from holdfast.api.routing import Router
from holdfast.api.schemas.jobs import Amount
from holdfast.api.schemas.sweeps import (
    StopRuleIn,
    StopRuleOut,
    SweepChangesIn,
    SweepCurveOut,
    SweepDetailOut,
    SweepIn,
    SweepMetricsOut,
    SweepOut,
    TrialOut,
)
from holdfast.domain.access.permissions import Action, Caller
from holdfast.domain.events import Outcome
from holdfast.domain.jobfile.limits import MICROS_PER_USD, Limits
from holdfast.domain.sweeps.curves import CurveGrid, last_value
from holdfast.domain.sweeps.median_rule import STOPPED_EARLY, StopMode, StopRule
from holdfast.domain.sweeps.sweep import Sweep
from holdfast.errors import BadRequest, NotFound
from holdfast.services import Services
from holdfast.store.tables.metrics import MAX_NAME_CHARS
from holdfast.submission.sweeps import SweepRequest, submit_sweep

router = Router(prefix="/v1/sweeps", tags=["sweeps"])


@router.post("", status_code=201, response_model=SweepDetailOut)
def create_sweep(
    body: SweepIn,
    response: Response,
    services: TheServices,
    caller: TheCaller,
    actor: TheActor,
    *,
    idempotency_key: IdempotencyKey = None,
) -> SweepDetailOut:
    """Submit one job for each combination of the parameters.

    The same Idempotency-Key and body return the same sweep, and submit the jobs that it still lacks.
    """
    asked = SweepRequest(
        job=job_request(body.task),
        params=body.params,
        parallel=body.parallel,
        max_cost_micros=_micros(body.max_cost_usd),
        stop_rule=_rule(body.stop),
    )
    requested = body.model_dump_json(exclude={"task": {"secrets"}}, exclude_unset=True)
    sweep = submit_sweep(
        services, asked, caller, actor, key=idempotency_key, requested=f"sweep {requested}"
    )
    response.headers["Location"] = f"/v1/sweeps/{sweep.id}"
    return _detail(services, sweep)


@router.get("", response_model=list[SweepOut])
def list_sweeps(
    services: TheServices,
    caller: TheCaller,
    *,
    project: Annotated[
        str | None, Query(min_length=1, description="Only sweeps of this project.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200)] = 50,
) -> list[SweepOut]:
    """List the sweeps of the caller's projects, newest first."""
    found = services.journal.sweeps.newest(caller.filter_projects(project), limit)
    states = services.journal.sweeps.statuses([sweep.id for sweep in found])
    return [SweepOut(**_fields(sweep), states=states[sweep.id]) for sweep in found]


@router.get("/{sweep_id}", response_model=SweepDetailOut)
def show_sweep(sweep_id: str, services: TheServices, caller: TheCaller) -> SweepDetailOut:
    """Show a sweep, and compare its jobs."""
    return _detail(services, _allowed(services, caller, sweep_id, Action.SEE))


@router.get("/{sweep_id}/metrics", response_model=SweepMetricsOut)
def list_sweep_metrics(
    sweep_id: str,
    services: TheServices,
    caller: TheCaller,
    *,
    name: Annotated[
        str | None,
        Query(
            max_length=MAX_NAME_CHARS, description="Metric to return. Default: only list the names."
        ),
    ] = None,
    points: Annotated[
        int,
        Query(
            ge=1, le=1000, description="Maximum values of each job; fewer for more than 60 jobs."
        ),
    ] = 300,
) -> SweepMetricsOut:
    """Return one metric of all jobs on common steps; without `name`, list the metrics."""
    sweep = _allowed(services, caller, sweep_id, Action.SEE)
    ids = services.journal.sweeps.job_ids(sweep.id)
    names = services.series.names_of_some(ids)
    extents = services.series.extents(ids, name) if name else {}
    grid = CurveGrid.over(extents, points)
    cells = services.series.curves(list(extents), name, grid) if name else {}
    steps, curves = grid.curves(cells)
    return SweepMetricsOut(
        names=names,
        name=name,
        steps=steps,
        curves=[
            SweepCurveOut(
                job_id=job_id,
                low=extents[job_id].low,
                high=extents[job_id].high,
                last=last_value(curve),
                values=curve,
            )
            for job_id, curve in sorted(curves.items())
        ],
    )


@router.patch("/{sweep_id}", response_model=SweepDetailOut)
def change_sweep(
    sweep_id: str,
    body: SweepChangesIn,
    services: TheServices,
    caller: TheCaller,
    actor: TheActor,
) -> SweepDetailOut:
    """Change the maximum cost or the number of parallel jobs.

    Paused jobs stay paused until a resume.
    """
    sweep = _allowed(services, caller, sweep_id, Action.STEER)
    changes: dict[str, Any] = {}
    if "parallel" in body.model_fields_set:
        changes["parallel"] = body.parallel
    if "max_cost_usd" in body.model_fields_set:
        changes["max_cost_micros"] = _micros(body.max_cost_usd)
    if changes:
        before = {name: getattr(sweep, name) for name in changes}
        action = actor.audit_action("sweep.change", sweep.id, before, changes)
        now = services.clock.now()
        sweep = services.journal.sweeps.change(sweep.id, changes, action, now)
        services.leases.make_all_due(services.journal.sweeps.next_ids(sweep.id), now)
        services.nudge()
    return _detail(services, sweep)


def _rule(asked: StopRuleIn | None) -> StopRule | None:
    if asked is None:
        return None
    mode = StopMode(asked.mode)
    return StopRule(metric=asked.metric, mode=mode, grace_steps=asked.grace_steps)


def _allowed(services: Services, caller: Caller, sweep_id: str, action: Action) -> Sweep:
    """The sweep, if the caller may do this in its project; a hidden sweep does not exist."""
    sweep = services.journal.sweeps.read(sweep_id)
    if not caller.may_see(sweep.project):
        raise NotFound(f"there is no sweep {sweep_id}")
    caller.require(action, sweep.project)
    return sweep


def _micros(amount: Amount | None) -> int | None:
    """Parse an amount of dollars as in the limits of a job.

    Raises:
        BadRequest: it is not an amount.
    """
    try:
        return Limits.model_validate({"max_cost_usd": amount}).max_cost_micros
    except ValidationError as error:
        why = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise BadRequest(f"max_cost_usd: {why}") from error


def _fields(sweep: Sweep) -> dict[str, Any]:
    rule = sweep.stop_rule
    most = sweep.max_cost_micros
    return {
        "id": sweep.id,
        "name": sweep.name,
        "project": sweep.project,
        "owner": sweep.owner or None,
        "created_at": sweep.created_at,
        "params": sweep.params,
        "job_count": sweep.jobs,
        "parallel": sweep.parallel,
        "max_cost_usd": None if most is None else f"{most / MICROS_PER_USD:.2f}",
        "stop": rule
        and StopRuleOut(metric=rule.metric, mode=rule.mode.value, grace_steps=rule.grace_steps),
    }


def _detail(services: Services, sweep: Sweep) -> SweepDetailOut:
    now = services.clock.now()
    jobs = services.journal.sweeps.jobs_of(sweep.id)
    states = services.journal.sweeps.statuses([sweep.id])[sweep.id]
    paid = {job.id: job.account.paid_micros_by(now) for job in jobs}
    best = _best(services, sweep, [job.id for job in jobs if job.attempt])
    return SweepDetailOut(
        **_fields(sweep),
        states=states,
        paid_micros=sweep.removed_micros + sum(paid.values()),
        trials=[
            TrialOut(
                job_id=job.id,
                number=job.trial,
                params=dict(job.parameters),
                state=job.status,
                detail=job.detail,
                step=job.furthest_step,
                best=best.get(job.id),
                paid_micros=paid[job.id],
                is_stopped_early=job.outcome is Outcome.CANCELLED
                and job.detail.startswith(STOPPED_EARLY),
            )
            for job in jobs
        ],
    )


def _best(services: Services, sweep: Sweep, job_ids: list[str]) -> dict[str, float]:
    """The best value of the metric that the sweep compares, of the jobs that have one."""
    rule = sweep.stop_rule
    if rule is None or not job_ids:
        return {}
    extents = services.series.extents(job_ids, rule.metric)
    return {job_id: extent.best(rule.mode) for job_id, extent in extents.items()}

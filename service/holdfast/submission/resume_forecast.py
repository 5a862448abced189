"""How a paused job is expected to end on the nodes that a resume asks for."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final

from holdfast.domain.events import MarketState
from holdfast.domain.jobfile.plan import NO_MARGIN, Objective, PlanSpec
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.plan_status import Pace
from holdfast.domain.planning.outlook import OURS, JobOutlook
from holdfast.domain.planning.placement import PlanInputs
from holdfast.domain.planning.plan_sentences import duration
from holdfast.services import Services
from holdfast.submission.plan_check import PlanPreview, forecast_job, work_left

UNKNOWN_WORK: Final = (
    "no forecast: how long the job trains is not known, as its file has no plan with the work, and no checkpoint has measured "
    "its steps, or the script does not say how many there are"
)
"""Why a job of unknown work is not forecast."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ResumeForecast:
    """The forecast of a job on other nodes, or why there is none."""

    preview: PlanPreview | None = None
    why_not: str = ""
    """Empty with a forecast."""


def forecast_resume(
    services: Services, job: Job, spec: JobSpec, *, is_resized: bool
) -> ResumeForecast:
    """Forecast a job that resumes now with the nodes and limits of `spec`.

    `is_resized`: these nodes are other ones than the job had. Blocking, as prices are queried.
    """
    if job.state is State.ENDED:
        return ResumeForecast(why_not="no forecast: the job has ended")
    if spec.holdfast.groups:
        return ResumeForecast(why_not="no forecast: jobs with node groups are not planned")
    now, cap = services.clock.now(), spec.holdfast.limits.max_cost_micros
    deadline_at = spec.holdfast.limits.deadline_at(job.submitted_at)
    if deadline_at is not None and deadline_at <= now:
        return ResumeForecast(why_not="no forecast: the deadline has passed")
    plan = spec.holdfast.plan or _plan_as_bought(spec)
    # A plan of the new nodes begins with the work of the file; without a plan, only the measured steps are known.
    is_new_pace = is_resized and spec.holdfast.plan is not None
    inputs = PlanInputs(
        job=replace(job, pace=Pace()) if is_new_pace else job,
        plan=plan,
        market=_market(services, spec),
        now=now,
        deadline_at=deadline_at,
        budget_usd=None if cap is None else cap / 1e6,
    )
    if not inputs.is_work_known:
        return ResumeForecast(why_not=UNKNOWN_WORK)
    outlook = inputs.outlook_without_nodes()
    notes = _notes(outlook, spec, is_resized=is_resized)
    found = forecast_job(services, plan, outlook, inputs.market, notes)
    if not found.forecasts:
        return ResumeForecast(why_not="no forecast: the price of these nodes is not known")
    if spec.holdfast.plan is None:
        # Nothing chooses between nodes of several kinds, and nothing is promised.
        found = replace(found, forecasts={OURS: found.forecasts[OURS]}, issues=())
    return ResumeForecast(preview=found)


def _plan_as_bought(spec: JobSpec) -> PlanSpec:
    """A plan that chooses nodes as the launcher of a job without a plan does."""
    only_spot = all(place.sells_spot for place in spec.places)
    return PlanSpec(objective=Objective.FASTEST, on_demand=not only_spot, margin=NO_MARGIN)


def _market(services: Services, spec: JobSpec) -> MarketState:
    """The market of a job, without on-demand nodes of places where it asks for spot nodes only."""
    market = services.markets.state(spec, services.clock.now())
    if spec.holdfast.plan is not None:
        return market
    spot = {place.name for place in spec.places if place.sells_spot}
    places = (
        replace(each, on_demand_usd_per_hour=None) if each.name in spot else each
        for each in market.places
    )
    return replace(market, places=tuple(places))


def _notes(outlook: JobOutlook, spec: JobSpec, *, is_resized: bool) -> Iterator[str]:
    """What a forecast of a resume assumes about the work."""
    if outlook.remaining_s < outlook.work_s:
        yield f"{work_left(outlook)}; the rest is in checkpoints"
    if not is_resized:
        return
    if spec.holdfast.plan is not None:
        yield f"the work of the plan, {duration(outlook.work_s)}, is taken for the training time on the new nodes"
    else:
        yield f"steps are assumed to take as long as on the present nodes, {duration(outlook.work_s)} together"

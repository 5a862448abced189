"""The plan of a new job: its work, its forecast, and whether any plan can keep its limits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from holdfast.domain.access.permissions import Caller
from holdfast.domain.events import MarketState, PlanForecast
from holdfast.domain.jobfile.limits import MICROS_PER_USD
from holdfast.domain.jobfile.plan import PlanSpec
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs.job import Job
from holdfast.domain.planning.feasibility import PlannedJob, plan_issues
from holdfast.domain.planning.outlook import JobOutlook
from holdfast.domain.planning.plan_sentences import duration, forecast_sentence
from holdfast.errors import BadJobFile, PlanNotKept, ValidationIssue
from holdfast.services import Services

WORK: Final = "#/holdfast/plan/work"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanPreview:
    """The forecast of a job that is not submitted yet, or that resumes."""

    plan: PlanSpec
    at: datetime
    deadline_at: datetime | None
    budget_micros: int | None
    work_s: float
    """All work of the job, as training time."""
    remaining_s: float
    """Of it, what the job has to do, without what it or its parent has saved."""
    market: MarketState
    forecasts: Mapping[str, PlanForecast]
    """By the names of `alternatives`; empty if no price is known, or the deadline has passed."""
    issues: tuple[ValidationIssue, ...]
    """What no plan can keep."""
    notes: tuple[str, ...]
    """What it assumes."""

    @property
    def sentence(self) -> str:
        """The forecast in one line; empty without one."""
        return forecast_sentence(
            self.forecasts,
            self.at,
            has_deadline=self.deadline_at is not None,
            has_budget=self.budget_micros is not None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PlanCheck:
    """The result of the check of a new job."""

    spec: JobSpec
    """With the work of its parent, if the file says none."""
    notes: tuple[str, ...] = ()
    issues: tuple[ValidationIssue, ...] = field(default=())

    def accepted_notes(self, *, force: bool) -> tuple[str, ...]:
        """The notes of the job, with the issues that `force` accepts.

        Raises:
            PlanNotKept: there are issues, and `force` is not set.
        """
        if self.issues and not force:
            raise PlanNotKept(self.issues)
        accepted = (f"refused without --force: {each.pointer} {each.message}" for each in self.issues)  # fmt: skip
        return *accepted, *self.notes


def check_plan(services: Services, spec: JobSpec, caller: Caller) -> PlanCheck:
    """Forecast a new job that has a plan, and check its limits.

    Raises:
        BadJobFile: it is unknown how much work there is.
    """
    spec = with_known_work(services, spec, caller)
    preview = preview_plan(services, spec, caller)
    sentence = (f"plan: {preview.sentence}",) if preview.sentence else ()
    return PlanCheck(spec=spec, notes=(*sentence, *preview.notes), issues=preview.issues)


def preview_plan(services: Services, spec: JobSpec, caller: Caller) -> PlanPreview:
    """Forecast a job with a plan that says how much work there is."""
    plan, limits = spec.holdfast.plan, spec.holdfast.limits
    assert plan, "only jobs with a plan are planned"
    assert plan.work_s, "a job of unknown work is refused before"
    now = services.clock.now()
    budget, work_s = limits.max_cost_micros, float(plan.work_s)
    saved = _saved_share(services, spec, caller)
    outlook = JobOutlook(
        now=now,
        submitted_at=now,
        deadline_at=limits.deadline_at(now),
        budget_usd=None if budget is None else budget / MICROS_PER_USD,
        remaining_s=work_s * (1 - saved),
        work_s=work_s,
        margin_s=float(plan.margin_s),
        on_demand=plan.on_demand,
    )
    notes = [f"{work_left(outlook)}, as its parent has saved the rest"] if saved else []
    return forecast_job(services, plan, outlook, services.markets.state(spec, now), notes)


def forecast_job(
    services: Services,
    plan: PlanSpec,
    outlook: JobOutlook,
    market: MarketState,
    notes: Iterable[str] = (),
) -> PlanPreview:
    """Forecast a job of known work with a plan, and what no plan can keep.

    `notes`: what the outlook assumes.
    """
    now, deadline_at, budget_usd = outlook.now, outlook.deadline_at, outlook.budget_usd
    is_past = deadline_at is not None and deadline_at <= now
    is_sold = not is_past and _is_sold(market, plan)
    forecasts = services.planners.alternatives(plan, outlook, market) if is_sold else {}
    wanted = PlannedJob(
        now=now,
        deadline_at=None if is_past else deadline_at,
        budget_usd=budget_usd,
        remaining_s=outlook.remaining_s,
        margin_s=outlook.margin_s,
        on_demand=plan.on_demand,
        market=market,
    )
    return PlanPreview(
        plan=plan,
        at=now,
        deadline_at=deadline_at,
        budget_micros=None if budget_usd is None else round(budget_usd * MICROS_PER_USD),
        work_s=outlook.work_s,
        remaining_s=outlook.remaining_s,
        market=market,
        forecasts=forecasts,
        issues=tuple(plan_issues(wanted, forecasts)),
        notes=(*notes, *_assumptions(market)),
    )


def work_left(outlook: JobOutlook) -> str:
    """How much of the work of a job is not saved, as the beginning of a sentence."""
    return f"{duration(outlook.remaining_s)} of {duration(outlook.work_s)} of work are left"


def with_known_work(services: Services, spec: JobSpec, caller: Caller) -> JobSpec:
    """A job whose plan says how much work there is: its own, else the parent's.

    Raises:
        BadJobFile: neither is known.
    """
    plan, checkpoint = spec.holdfast.plan, spec.holdfast.checkpoint
    if plan is None or plan.work_s:
        return spec
    assert checkpoint is not None, "a file without work has a parent"
    assert checkpoint.from_job is not None, "a file without work has a parent"
    if services.project_seen(caller, checkpoint.from_job) is not None:
        parent = services.journal.read(checkpoint.from_job)
        work_s = measured_work_s(parent) or _written_work_s(services, parent)
        if work_s:
            return spec.with_work(work_s)
    why = (
        f"is missing, and job {checkpoint.from_job}, whose checkpoints it uses, has neither measured its steps nor says "
        "how much work there is; write the training time of the whole job without interruptions, such as 31h"
    )
    raise BadJobFile((ValidationIssue(WORK, why),))


def measured_work_s(job: Job) -> float | None:
    """The training time of a whole job by its measured steps; None if they are unknown."""
    if job.pace.step_s is None or job.total_steps is None:
        return None
    return job.pace.step_s * job.total_steps


def _written_work_s(services: Services, parent: Job) -> int | None:
    plan = JobSpec.from_stored(services.journal.submission(parent.id).spec).holdfast.plan
    return plan.work_s if plan else None


def _saved_share(services: Services, spec: JobSpec, caller: Caller) -> float:
    """The share of the work that the parent of a job has saved."""
    checkpoint = spec.holdfast.checkpoint
    parent_id = checkpoint.from_job if checkpoint else None
    if parent_id is None or services.project_seen(caller, parent_id) is None:
        return 0.0
    parent = services.journal.read(parent_id)
    digest, _ = services.job_summaries.get([parent], services.clock.now())[parent_id]
    newest = digest.newest_checkpoint
    if newest is None or not parent.total_steps:
        return 0.0
    return min(1.0, newest.step / parent.total_steps)


def _is_sold(market: MarketState, plan: PlanSpec) -> bool:
    """Whether the price of any nodes that the plan may use is known."""
    spot = any(each.spot_usd_per_hour is not None for each in market.places)
    on_demand = any(each.on_demand_usd_per_hour is not None for each in market.places)
    return spot or (on_demand and plan.on_demand)


def _assumptions(market: MarketState) -> Iterator[str]:
    if not market.changeover_samples:
        yield f"no launch has been measured yet: each start is assumed to take {duration(market.changeover_s)}"
    if not any(each.observations for each in market.places):
        yield "nothing is known of the places yet: spot nodes are assumed to come and go as is usual"
    if guessed := [each.name for each in market.places if each.is_price_estimate]:
        yield f"the price is unknown and assumed high: {', '.join(guessed)}"

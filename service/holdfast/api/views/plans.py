"""Views of plans: forecasts of job files, and plans of jobs with their earlier choices."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.api.schemas.plans import (
    CostRangeOut,
    ForecastOut,
    JobPlanOut,
    PlanAlternativeOut,
    PlanChoiceOut,
    PlanNetOut,
    PlanPlaceOut,
    PlanPreviewOut,
    PlanProgressOut,
    TimeRangeOut,
)
from holdfast.domain.events import (
    CheckpointCommitted,
    Event,
    Finished,
    MarketState,
    MoveRequested,
    PlaceState,
    PlanForecast,
    Planned,
)
from holdfast.domain.jobfile.limits import MICROS_PER_USD
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.planning.placement import PlanInputs
from holdfast.domain.planning.plan_sentences import (
    ChosenNodes,
    choice_sentence,
    next_sentence,
)
from holdfast.submission.plan_check import PlanPreview

MAX_POINTS: Final = 500
"""Points of the progress of a job. A lower value hides checkpoints; a higher value draws what a screen cannot show."""
_LEAVING: Final = {
    State.MOVING: "moving: the nodes of the last choice are given back",
    State.PAUSING: "pausing: a plan is made again after the pause",
    State.PAUSED: "paused: a plan is made again after the pause",
    State.STOPPING: "stopping: no plan is made any more",
}
"""Sentences of states in which nothing is chosen."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedHistory:
    """What the events of a planned job say about its plan."""

    job: Job
    facts: Sequence[tuple[int, Event]]
    """Events with their numbers, oldest first."""
    inputs: PlanInputs
    """What a plan of this moment would follow from."""

    @property
    def choices(self) -> list[tuple[int, Planned]]:
        """All choices with the numbers of their events, oldest first."""
        return [(seq, fact) for seq, fact in self.facts if isinstance(fact, Planned)]

    @property
    def newest(self) -> Planned | None:
        """The present choice, or the last one; None before the first."""
        return self.choices[-1][1] if self.choices else None

    @property
    def is_ended(self) -> bool:
        """Whether nothing is planned any more."""
        return self.job.state is State.ENDED

    @property
    def start_s(self) -> float:
        """Time from the loss of spot nodes to the first progress on on-demand nodes."""
        return self.inputs.changeover_s + self.inputs.market.on_demand_wait_s

    @property
    def remaining_s(self) -> float:
        """Work that no complete checkpoint holds."""
        return self.inputs.work_s - self.inputs.saved_s

    @property
    def net_at(self) -> datetime | None:
        """When on-demand nodes have to be requested if nothing is saved until then."""
        deadline = self.inputs.deadline_at
        if deadline is None or self.is_ended:
            return None
        return deadline - timedelta(seconds=self.remaining_s + self.start_s)

    @property
    def slack_s(self) -> float | None:
        """Time until then."""
        net_at = self.net_at
        return None if net_at is None else (net_at - self.inputs.now).total_seconds()

    def chosen_now(self) -> ChosenNodes | None:
        """The present choice, as it is at this moment; None before the first."""
        planned, job = self.newest, self.job
        if planned is None or job.plan is None:
            return None
        return replace(
            ChosenNodes.of_plan(planned),
            at=self.inputs.now,
            since=job.plan.since,
            remaining_s=self.remaining_s,
            slack_s=self.slack_s,
            start_s=self.start_s,
            has_nodes=job.placed,
            zone=job.zone if job.placed else None,
            on_demand=self.inputs.may_buy_on_demand,
        )


def preview_view(preview: PlanPreview) -> PlanPreviewOut:
    """Convert the forecast of a job file."""
    market = preview.market
    return PlanPreviewOut(
        objective=preview.plan.objective,
        policy=preview.plan.policy_name,
        deadline_at=preview.deadline_at,
        budget_micros=preview.budget_micros,
        work_s=preview.work_s,
        changeover_s=market.changeover_s + preview.plan.margin_s,
        changeover_samples=market.changeover_samples,
        on_demand_wait_s=market.on_demand_wait_s,
        alternatives=alternatives_view(preview),
        places=_places(market),
        observations=sum(place.observations for place in market.places),
        sentence=preview.sentence,
        refusals=[f"{issue.pointer}: {issue.message}" for issue in preview.issues],
        notes=[*preview.notes],
    )


def alternatives_view(preview: PlanPreview) -> list[PlanAlternativeOut]:
    """Convert the forecasts of a job file, ours first."""
    return [
        PlanAlternativeOut.model_validate({"name": name, **_forecast_values(each, preview.at)})
        for name, each in preview.forecasts.items()
    ]


def plan_view(history: PlannedHistory, *, before: int | None, limit: int) -> JobPlanOut:
    """Convert the plan of a job with its choices before the event `before`, newest first."""
    job, inputs, chosen = history.job, history.inputs, history.chosen_now()
    forecasts = [planned for _, planned in history.choices if planned.forecast]
    page = [
        (n, seq) for n, (seq, _) in enumerate(history.choices) if before is None or seq < before
    ]
    shown = page[-limit:]
    return JobPlanOut(
        job_id=job.id,
        objective=inputs.plan.objective,
        policy=inputs.plan.policy_name,
        capacity=chosen.capacity if chosen else None,
        places=[*chosen.places] if chosen else [],
        reason=chosen.reason if chosen else None,
        since=chosen.since if chosen else None,
        sentence=_sentence(history, chosen),
        next="" if history.is_ended or not chosen else next_sentence(chosen),
        net_at=history.net_at,
        slack_s=history.slack_s,
        remaining_s=history.remaining_s,
        work_s=inputs.work_s,
        saved_s=inputs.saved_s,
        changeover_s=inputs.changeover_s,
        deadline_at=inputs.deadline_at,
        budget_micros=None if inputs.budget_usd is None else _micros(inputs.budget_usd),
        paid_micros=job.account.paid_micros_by(inputs.now),
        forecast=None if history.is_ended or not forecasts else _forecast(forecasts[-1]),
        first_forecast=_forecast(forecasts[0]) if forecasts else None,
        places_now=_places(inputs.market),
        progress=_progress(history),
        net=[*_net(history)],
        choices=[_choice(history, n) for n, _ in reversed(shown)],
        choices_next=shown[0][1] if len(page) > len(shown) else None,
    )


def _sentence(history: PlannedHistory, chosen: ChosenNodes | None) -> str:
    if history.is_ended:
        late = history.inputs.deadline_at
        end = next((f.at for _, f in reversed(history.facts) if isinstance(f, Finished)), None)
        kept = "" if late is None or end is None else ", in time" if end <= late else ", late"
        return f"{history.job.status}{kept}"
    if chosen is None:
        return "no plan yet: it is made before the next launch"
    return _LEAVING.get(history.job.state) or choice_sentence(chosen)


def _choice(history: PlannedHistory, number: int) -> PlanChoiceOut:
    seq, planned = history.choices[number]
    later = history.choices[number + 1 : number + 2]
    end = next((fact.at for _, fact in history.facts if isinstance(fact, Finished)), None)
    next_seq = later[0][0] if later else float("inf")
    moved = any(
        isinstance(fact, MoveRequested) and seq < number < next_seq
        for number, fact in history.facts
    )
    return PlanChoiceOut(
        at=planned.at,
        until=later[0][1].at if later else end,
        capacity=planned.capacity,
        places=[*planned.places],
        reason=planned.reason,
        sentence=choice_sentence(
            replace(ChosenNodes.of_plan(planned), on_demand=history.inputs.plan.on_demand),
            since=False,
        ),
        slack_s=planned.slack_s,
        remaining_s=planned.remaining_s,
        net_at=planned.net_at,
        policy=planned.policy,
        policy_version=planned.policy_version,
        late=planned.forecast.late if planned.forecast else None,
        moved=moved,
    )


def _progress(history: PlannedHistory) -> list[PlanProgressOut]:
    """The complete checkpoints as work, evenly thinned if there are many."""
    step_s, work_s = history.inputs.step_s or 0.0, history.inputs.work_s
    saved = [
        PlanProgressOut(at=fact.at, saved_s=min(work_s, fact.step * step_s))
        for _, fact in history.facts
        if isinstance(fact, CheckpointCommitted)
    ]
    every = -(-len(saved) // MAX_POINTS) or 1
    return saved[::-1][::every][::-1]


def _net(history: PlannedHistory) -> Iterator[PlanNetOut]:
    """The line from where any work is needed to where all of it is."""
    inputs = history.inputs
    if inputs.deadline_at is None:
        return
    full_at = inputs.deadline_at - timedelta(seconds=history.start_s)
    begin = max(history.job.submitted_at, full_at - timedelta(seconds=inputs.work_s))
    needed_s = inputs.work_s - (full_at - begin).total_seconds()
    yield PlanNetOut(at=begin, needed_s=min(inputs.work_s, max(0.0, needed_s)))
    yield PlanNetOut(at=max(begin, full_at), needed_s=inputs.work_s)


def _forecast(planned: Planned) -> ForecastOut:
    assert planned.forecast, "chosen above"
    return ForecastOut.model_validate(_forecast_values(planned.forecast, planned.at))


def _forecast_values(forecast: PlanForecast, at: datetime) -> dict[str, Any]:
    costs = (forecast.cost_p10_usd, forecast.cost_p50_usd, forecast.cost_p90_usd)
    ends = (forecast.end_p10, forecast.end_p50, forecast.end_p90)
    names = ("p10", "p50", "p90")
    return {
        "at": at,
        "runs": forecast.runs,
        "cost_micros": CostRangeOut(**dict(zip(names, map(_micros, costs), strict=True))),
        "end_at": TimeRangeOut(**dict(zip(names, ends, strict=True))),
        "late": forecast.late,
        "over_budget": forecast.over_budget,
        "preemptions": forecast.preemptions,
        "lost_work_s": forecast.lost_work_s,
    }


def _places(market: MarketState) -> list[PlanPlaceOut]:
    return [_place(place) for place in market.places]


def _place(place: PlaceState) -> PlanPlaceOut:
    spot, on_demand = place.spot_usd_per_hour, place.on_demand_usd_per_hour
    return PlanPlaceOut(
        name=place.name,
        region=place.region,
        spot_micros_per_hour=None if spot is None else _micros(spot),
        on_demand_micros_per_hour=None if on_demand is None else _micros(on_demand),
        priced_at=place.priced_at,
        is_price_estimate=place.is_price_estimate,
        is_available=place.is_available,
        seen_at=place.seen_at,
        observations=place.observations,
        hint=place.hint,
        hint_source=place.hint_source,
        hint_at=place.hint_at,
        hint_uptime_s=place.hint_uptime_s,
        hint_preemption_rate=place.hint_preemption_rate,
    )


def _micros(usd: float) -> int:
    return round(usd * MICROS_PER_USD)

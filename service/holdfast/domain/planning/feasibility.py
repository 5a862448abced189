"""Whether any plan can keep the deadline and the budget of a new job. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from holdfast.domain.events.planning import MarketState, PlaceState, PlanForecast
from holdfast.domain.jobfile.limits import MICROS_PER_USD, format_usd
from holdfast.domain.planning.plan_sentences import NAMES, dollars, duration, moment, percent
from holdfast.errors import ValidationIssue

HOPELESS: Final = 0.9
"""Share of simulated runs that miss a limit from which on no plan can keep it.
A lower value refuses jobs that luck would finish; a higher value accepts jobs that waste their money."""
DEADLINE, BUDGET = "#/holdfast/limits/deadline", "#/holdfast/limits/max_cost_usd"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedJob:
    """What a plan has to keep."""

    now: datetime
    deadline_at: datetime | None
    budget_usd: float | None
    remaining_s: float
    """Work that is not in a checkpoint yet."""
    margin_s: float
    on_demand: bool
    """Whether on-demand nodes may be bought."""
    market: MarketState


def plan_issues(
    job: PlannedJob, forecasts: Mapping[str, PlanForecast]
) -> Iterator[ValidationIssue]:
    """Yield what no plan can keep, each with a way out."""
    yield from _place_issues(job.market)
    possible = {
        name: each for name, each in forecasts.items() if job.on_demand or name != "on_demand"
    }
    impossible = [*_deadline_issues(job, possible), *_budget_issues(job, possible)]
    yield from impossible or _joint_issues(job, possible)


def least_time_s(job: PlannedJob) -> float:
    """Time from the submission to the end with nodes that are there at once and never lost."""
    return job.remaining_s + job.market.changeover_s


def _deadline_issues(
    job: PlannedJob, possible: Mapping[str, PlanForecast]
) -> Iterator[ValidationIssue]:
    if job.deadline_at is None:
        return
    left_s = (job.deadline_at - job.now).total_seconds()
    if left_s < least_time_s(job):
        wait_s = job.market.on_demand_wait_s + job.margin_s
        enough = job.now + timedelta(seconds=least_time_s(job) + wait_s)
        yield ValidationIssue(
            DEADLINE,
            f"is {duration(left_s)} away, but {duration(job.remaining_s)} of work and {duration(job.market.changeover_s)} to "
            f"start need {duration(least_time_s(job))}; write at least {_stamp(enough)}, which leaves "
            f"{duration(wait_s)} to wait for nodes",
        )
    elif possible and (best := min(possible.items(), key=lambda each: each[1].late))[1].late >= HOPELESS:  # fmt: skip
        soonest = min(each.end_p90 for each in possible.values())
        yield ValidationIssue(
            DEADLINE,
            f"is missed in {percent(best[1].late)} of all simulated runs {NAMES[best[0]]}; write {_stamp(soonest)} or later",
        )


def _budget_issues(
    job: PlannedJob, possible: Mapping[str, PlanForecast]
) -> Iterator[ValidationIssue]:
    if job.budget_usd is None or not possible:
        return
    name, cheapest = min(possible.items(), key=lambda each: each[1].cost_p10_usd)
    if job.budget_usd < cheapest.cost_p10_usd:
        yield ValidationIssue(
            BUDGET,
            f"is {_written(job.budget_usd)}, but even {NAMES[name]} nine of ten simulated runs cost more than "
            f"{dollars(cheapest.cost_p10_usd)}; write at least {dollars(cheapest.cost_p50_usd)}, or name cheaper nodes",
        )


def _joint_issues(
    job: PlannedJob, possible: Mapping[str, PlanForecast]
) -> Iterator[ValidationIssue]:
    """Yield that both limits exclude each other, although each can be kept alone."""
    if job.deadline_at is None or job.budget_usd is None or not possible:
        return
    if any(max(each.late, each.over_budget) < HOPELESS for each in possible.values()):
        return
    timely = min(possible.items(), key=lambda each: (each[1].late, each[1].cost_p50_usd))
    frugal = min(possible.items(), key=lambda each: (each[1].over_budget, each[1].end_p50))
    yield ValidationIssue(
        BUDGET,
        f"and the deadline exclude each other: to be done by {_stamp(job.deadline_at)} costs about "
        f"{dollars(timely[1].cost_p50_usd)} {NAMES[timely[0]]}, and for {_written(job.budget_usd)} the job ends about "
        f"{moment(frugal[1].end_p50, job.now)} {NAMES[frugal[0]]}; raise the one or postpone the other",
    )


def _place_issues(market: MarketState) -> Iterator[ValidationIssue]:
    """Yield the places of which no price is known, and nothing else."""
    for place in market.places:
        if _is_sold(place):
            continue
        yield ValidationIssue(
            "#/resources",
            f"name {place.name}, where no such nodes are sold: no price is known, and no job has run there; correct its "
            "name, name other nodes, or remove it",
        )
    if not market.places:
        yield ValidationIssue(
            "#/resources",
            "name no place that the launcher knows; write infra: with a cloud or a region",
        )


def _is_sold(place: PlaceState) -> bool:
    prices = (place.spot_usd_per_hour, place.on_demand_usd_per_hour)
    return place.observations > 0 or any(price is not None for price in prices)


def _written(usd: float) -> str:
    return format_usd(round(usd * MICROS_PER_USD))


def _stamp(at: datetime) -> str:
    """A time as a job file accepts it, rounded up to a minute."""
    whole = at.replace(second=0, microsecond=0)
    whole += timedelta(minutes=1) * (at > whole)
    return whole.isoformat().replace("+00:00", "Z")

"""How a job is expected to end: replays over sampled markets, from where it is now. Pure.

The markets continue what is known of the job's places (`market_samples.py`). The policy is replayed over all of them at once, with what the job holds and what is left of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final

import numpy as np

from holdfast.domain.events.planning import CapacityType, MarketState, PlaceState, PlanForecast
from holdfast.domain.planning.market_samples import sample_markets, spot_share
from holdfast.domain.planning.policies import OnDemand, SpotOnly
from holdfast.domain.planning.replay import Beginning, Runs, Terms, Windows, replay
from holdfast.domain.planning.situation import HOUR_S, ROUNDING, Held, PlacementPolicy
from holdfast.domain.planning.traces import Numbers

RUNS: Final = 256
"""Sampled markets. A lower value makes the ends of a forecast jump; a higher value takes longer."""
TICKS_S: Final = (60.0, 120.0, 300.0, 600.0, 1200.0, 1800.0, 3600.0)
"""Ticks of a forecast, of which the least that is enough is taken, so that tables of policies can be kept."""
MAX_TICKS: Final = 480
"""Ticks to the end of a forecast, unless they would be longer than an hour.
A lower value sees losses too late; a higher value takes longer."""
LONG: Final = 4
"""Multiple of that number for forecasts of weeks, whose ticks are then longer than an hour.
A lower value sees hardly any loss of those; a higher value takes longer."""
PATIENCE: Final = 2.0
"""Multiple of the mean time of a job on spot nodes alone after which a run is cut off.
A lower value estimates more ends; a higher value takes longer."""
PATIENCE_S: Final = 86400.0
"""More of that time, likewise."""
LEAST_SHARE: Final = 0.05
"""The share of spot nodes by which the rest of a run is estimated after that time, at least.
A lower value takes a bad place for years; a higher value for a good one."""
WIDENING: Final = 0.015
"""What the ends of costs on spot nodes are widened by, as a share of the cost of the remaining work on demand.
A lower value promises too much; a higher value says nothing. H100 nodes of October 2025 needed it for four runs of five within the ends."""
OURS, SPOT, ON_DEMAND = "ours", "spot", "on_demand"
"""Names of `alternatives`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutlook:
    """What a forecast needs to know of a job, at a moment."""

    now: datetime
    submitted_at: datetime
    deadline_at: datetime | None = None
    budget_usd: float | None = None
    paid_usd: float = 0.0
    remaining_s: float
    """Work that is not saved, as training time."""
    work_s: float
    """All work of the job, likewise."""
    held: CapacityType | None = None
    place: str | None = None
    """The place of what is held, or was held last."""
    warm_up_s: float = 0.0
    """What is left of the start of what is held, with its wait."""
    margin_s: float = 0.0
    """Time that the policy adds to the changeover."""
    lost_work_s: float = 0.0
    """What the loss of a spot node costs at most: the checkpoint interval."""
    on_demand: bool = True
    """Whether on-demand nodes may be bought."""

    @property
    def time_left_s(self) -> float:
        """Time until the deadline; infinite without one."""
        if self.deadline_at is None:
            return np.inf
        return (self.deadline_at - self.now).total_seconds()


def forecast(
    job: JobOutlook,
    market: MarketState,
    policy: PlacementPolicy,
    *,
    runs: int = RUNS,
    seed: int = 0,
) -> PlanForecast:
    """How a job ends with a policy.

    Without on-demand nodes, every policy waits for spot nodes; without spot nodes, it buys on-demand ones at once. Some place must sell one of both.
    """
    on_demand_usd = _least([each.on_demand_usd_per_hour for each in market.places])
    places = [each for each in market.places if each.spot_usd_per_hour is not None]
    if on_demand_usd is None or not job.on_demand:
        policy = SpotOnly()
    elif not places:
        policy = OnDemand()
    places = [_with_held(each, job, market) for each in places or market.places]
    horizon_s = _horizon_s(job, market, places, waits=isinstance(policy, SpotOnly))
    tick_s = _tick_s(horizon_s, market.tick_s)
    ticks = int(np.ceil(horizon_s / tick_s)) + 1
    markets = sample_markets(places, market.at, tick_s=tick_s, ticks=ticks, runs=runs, seed=seed)
    terms = Terms(
        on_demand_usd_per_hour=on_demand_usd or 0.0,
        egress_usd=market.egress_usd,
        sees_all=market.sees_all,
        on_demand_wait_s=market.on_demand_wait_s,
        # A loss comes at any time between two checkpoints.
        lost_work_s=job.lost_work_s / 2,
        risk_s=job.lost_work_s,
        margin_s=job.margin_s,
        budget_usd=np.inf if job.budget_usd is None else job.budget_usd - job.paid_usd,
    )
    windows = Windows(
        market=np.arange(runs),
        start=np.zeros(runs, np.intp),
        work_s=max(job.work_s, job.remaining_s),
        deadline_s=np.full(runs, _elapsed_s(job) + job.time_left_s),
        changeover_s=np.full(runs, market.changeover_s),
    )
    begin = _beginning(job, market, places)
    found = replay(policy, markets, windows, terms, begin=begin, ticks=ticks)
    usual_usd = on_demand_usd or max(each.spot_usd_per_hour or 0.0 for each in places)
    widening_usd = WIDENING * usual_usd * (job.remaining_s + market.changeover_s) / HOUR_S
    return _summary(
        job,
        found,
        share=max(LEAST_SHARE, *(spot_share(each, tick_s) for each in places)),
        widening_usd=0.0 if isinstance(policy, OnDemand) else widening_usd,
    )


def alternatives(
    job: JobOutlook,
    market: MarketState,
    policy: PlacementPolicy,
    *,
    runs: int = RUNS,
    seed: int = 0,
) -> dict[str, PlanForecast]:
    """How a job ends with a policy, on spot nodes alone, and on on-demand nodes alone.

    The last two are absent where no place sells such nodes. All are of the same markets.
    """
    found = {OURS: forecast(job, market, policy, runs=runs, seed=seed)}
    if any(each.spot_usd_per_hour is not None for each in market.places):
        found[SPOT] = forecast(
            replace(job, on_demand=False), market, SpotOnly(), runs=runs, seed=seed
        )
    if any(each.on_demand_usd_per_hour is not None for each in market.places):
        found[ON_DEMAND] = forecast(
            replace(job, on_demand=True), market, OnDemand(), runs=runs, seed=seed
        )
    return found


def _summary(job: JobOutlook, runs: Runs, *, share: float, widening_usd: float) -> PlanForecast:
    # What was left when runs were cut off takes as long as it does on average.
    tail_s = np.where(runs.tail_s < 0, runs.tail_s / share, runs.tail_s)
    cost = job.paid_usd + runs.cost_usd - runs.tail_usd
    end_s = runs.finish_s - tail_s
    costs, ends = _quantiles(cost), [job.now + timedelta(seconds=s) for s in _quantiles(end_s)]
    return PlanForecast(
        runs=len(cost),
        cost_p10_usd=max(job.paid_usd, costs[0] - widening_usd),
        cost_p50_usd=costs[1],
        cost_p90_usd=costs[2] + widening_usd,
        end_p10=ends[0],
        end_p50=ends[1],
        end_p90=ends[2],
        late=float((end_s > job.time_left_s + ROUNDING).mean()),
        over_budget=0.0 if job.budget_usd is None else float((cost > job.budget_usd).mean()),
        preemptions=float(runs.preemptions.mean()),
        lost_work_s=float(runs.lost_s.mean()),
    )


def _quantiles(values: Numbers) -> list[float]:
    return [float(each) for each in np.percentile(values, (10, 50, 90))]


def _beginning(job: JobOutlook, market: MarketState, places: Sequence[PlaceState]) -> Beginning:
    names = [each.name for each in places]
    held = _HELD[job.held]
    unseen_s = 0.0
    if held == Held.ON_DEMAND and not market.sees_all:
        seen = [(market.at - each.seen_at).total_seconds() for each in places if each.seen_at]
        unseen_s = max(0.0, min(seen, default=_elapsed_s(job)))
    return Beginning(
        elapsed_s=_elapsed_s(job),
        progress_s=max(job.work_s, job.remaining_s) - job.remaining_s,
        held=held,
        place=names.index(job.place) if job.place in names else -1,
        warm_up_s=job.warm_up_s,
        unseen_s=unseen_s,
    )


_HELD: Final = {
    None: Held.NOTHING,
    CapacityType.SPOT: Held.SPOT,
    CapacityType.ON_DEMAND: Held.ON_DEMAND,
}


def _with_held(place: PlaceState, job: JobOutlook, market: MarketState) -> PlaceState:
    """A place; spot nodes that are held there are seen now."""
    if job.held != CapacityType.SPOT or place.name != job.place:
        return place
    age_s = place.age_s if place.is_available else 0.0
    return replace(place, is_available=True, seen_at=market.at, age_s=age_s)


def _horizon_s(
    job: JobOutlook, market: MarketState, places: Sequence[PlaceState], *, waits: bool
) -> float:
    """Time after which runs are cut off."""
    start_s = market.changeover_s + job.margin_s + market.on_demand_wait_s
    least_s = job.remaining_s + start_s + job.lost_work_s + market.tick_s
    if np.isfinite(job.time_left_s) and not waits:
        return max(job.time_left_s, 0.0) + 2 * least_s
    share = max(LEAST_SHARE, *(spot_share(each, TICKS_S[3]) for each in places))
    return PATIENCE * least_s / share + PATIENCE_S


def _tick_s(horizon_s: float, least_s: float) -> float:
    for tick_s in TICKS_S:
        if tick_s >= least_s and horizon_s / tick_s <= MAX_TICKS:
            return tick_s
    hours = np.ceil(horizon_s / (LONG * MAX_TICKS * TICKS_S[-1]))
    return max(least_s, float(hours) * TICKS_S[-1])


def _elapsed_s(job: JobOutlook) -> float:
    return max(0.0, (job.now - job.submitted_at).total_seconds())


def _least(prices: Sequence[float | None]) -> float | None:
    return min((price for price in prices if price is not None), default=None)

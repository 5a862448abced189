"""Forecasts of a job from where it is: costs, ends, budgets, deadlines, and what is held."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from holdfast.domain.events.planning import CapacityType, MarketState, PlaceState
from holdfast.domain.planning.outlook import JobOutlook, alternatives, forecast
from holdfast.domain.planning.policies import (
    Fastest,
    OnDemand,
    SpotOnly,
    Threshold,
    UniformProgress,
)
from holdfast.domain.planning.replay import replay
from holdfast.domain.planning.situation import PlacementPolicy
from holdfast.domain.planning.survival import Survival
from holdfast.domain.planning.traces import Numbers, Trace
from support.spot_traces import (
    AWS_2022,
    AWS_2023,
    HOUR_S,
    ON_DEMAND_USD,
    SPOT_USD,
    markets_of,
    recorded,
    terms_of,
    windows_of,
)

NOW = datetime(2026, 3, 1, tzinfo=UTC)
POLICIES = (Threshold(), UniformProgress(), Fastest(), Survival())
CALM, GONE = 1e-9, 1e-9
"""Multipliers of a place that never changes."""


def place_of(name: str = "zone-a", **values: Any) -> PlaceState:
    """A place with spot nodes that are there, at a third of the price on demand."""
    usual = {
        "region": "region",
        "spot_usd_per_hour": 1.0,
        "on_demand_usd_per_hour": 3.0,
        "is_available": True,
        "seen_at": NOW,
        "age_s": 2 * HOUR_S,
    }
    return PlaceState(name=name, **{**usual, **values})


def market_of(*places: PlaceState, **values: Any) -> MarketState:
    """A market, seen at all times, with starts of six minutes."""
    usual = {"tick_s": 60.0, "changeover_s": 360.0, "sees_all": True}
    return MarketState(at=NOW, places=places or (place_of(),), **{**usual, **values})


def job_of(deadline_h: float | None = 30, work_h: float = 24, **values: Any) -> JobOutlook:
    """A new job."""
    deadline = None if deadline_h is None else NOW + timedelta(hours=deadline_h)
    usual = {"remaining_s": work_h * HOUR_S, "work_s": work_h * HOUR_S}
    return JobOutlook(now=NOW, submitted_at=NOW, deadline_at=deadline, **{**usual, **values})


def hours(at: datetime) -> float:
    """Hours from now."""
    return (at - NOW).total_seconds() / HOUR_S


def test_on_demand_nodes_cost_exactly_their_price() -> None:
    found = forecast(job_of(), market_of(), OnDemand())

    assert found.cost_p10_usd == found.cost_p90_usd == pytest.approx(24.1 * 3)
    assert hours(found.end_p50) == pytest.approx(24.1)
    assert (found.late, found.preemptions, found.lost_work_s) == (0.0, 0.0, 0.0)


def test_calm_place_costs_the_spot_price() -> None:
    found = forecast(job_of(), market_of(place_of(loss=CALM)), Survival())

    assert found.cost_p50_usd == pytest.approx(24.1)
    assert found.preemptions == 0.0


def test_same_seed_gives_the_same_forecast() -> None:
    first, second, other = (
        forecast(job_of(), market_of(), Threshold(), runs=32, seed=seed) for seed in (1, 1, 2)
    )

    assert first == second
    assert first.cost_p50_usd != other.cost_p50_usd


def test_cost_includes_what_is_paid() -> None:
    new = forecast(job_of(), market_of(), OnDemand())
    paid = forecast(job_of(paid_usd=10.0), market_of(), OnDemand())

    assert paid.cost_p50_usd == pytest.approx(new.cost_p50_usd + 10.0)


@pytest.mark.parametrize(("budget", "share"), [(24.1 * 3 + 1, 0.0), (24.1 * 3 - 1, 1.0)])
def test_chance_to_exceed_the_budget(budget: float, share: float) -> None:
    found = forecast(job_of(budget_usd=budget), market_of(), OnDemand())

    assert found.over_budget == share


@pytest.mark.parametrize(("deadline_h", "late"), [(24.2, 0.0), (24.0, 1.0), (-1.0, 1.0)])
def test_chance_to_be_late(deadline_h: float, late: float) -> None:
    found = forecast(job_of(deadline_h), market_of(), OnDemand())

    assert found.late == late


@pytest.mark.parametrize("deadline_h", [-30.0, -1.0, 0.0, 0.5, 10.0, 23.9])
@pytest.mark.parametrize("places", [1, 2])
@pytest.mark.parametrize("policy", POLICIES, ids=lambda policy: policy.name)
@pytest.mark.filterwarnings("error")
def test_job_that_must_be_late_ends_as_soon_as_it_can(
    policy: PlacementPolicy, places: int, deadline_h: float
) -> None:
    market = market_of(
        *(place_of(name, is_available=False, returns=GONE) for name in "ab"[:places])
    )

    found = forecast(job_of(deadline_h), market, policy, runs=4)

    assert found.late == 1.0
    assert hours(found.end_p90) == pytest.approx(24.1)


@pytest.mark.filterwarnings("error")
def test_forecast_of_weeks_in_a_bad_place_comes_to_an_end() -> None:
    """What is left when runs are cut off is estimated."""
    bad = market_of(place_of(returns=0.02))

    found = forecast(job_of(None, 1000), bad, SpotOnly(), runs=16)

    assert 1000 < hours(found.end_p10) <= hours(found.end_p90) < 100_000


def test_finished_work_costs_nothing_more() -> None:
    found = forecast(job_of(remaining_s=0.0, paid_usd=5.0), market_of(), Survival(), runs=4)

    assert found.cost_p50_usd == 5.0
    assert hours(found.end_p50) <= 0.1


def test_held_nodes_need_no_start() -> None:
    job = job_of(held=CapacityType.ON_DEMAND, place="zone-a", warm_up_s=60.0)

    found = forecast(job, market_of(), OnDemand())

    assert found.cost_p50_usd == pytest.approx((24 + 1 / 60) * 3)


def test_held_spot_node_is_there_whatever_was_last_seen() -> None:
    place = place_of(is_available=None, loss=CALM)
    job = job_of(held=CapacityType.SPOT, place="zone-a")

    found = forecast(job, market_of(place), SpotOnly())

    assert found.cost_p50_usd == pytest.approx(24.0)


def test_job_in_the_middle_has_less_before_it() -> None:
    job = replace(job_of(30), submitted_at=NOW - timedelta(hours=10), remaining_s=14 * HOUR_S)

    found = forecast(job, market_of(), OnDemand())

    assert found.cost_p50_usd == pytest.approx(14.1 * 3)
    assert hours(found.end_p50) == pytest.approx(14.1)


def test_without_deadline_it_waits_for_spot_nodes() -> None:
    found = alternatives(job_of(None), market_of(), Survival(), runs=64)

    assert found["ours"] == found["spot"]
    assert found["ours"].late == 0.0
    assert found["ours"].cost_p90_usd < found["on_demand"].cost_p10_usd


def test_alternatives_bound_what_a_policy_costs() -> None:
    found = alternatives(job_of(26), market_of(), Survival(), runs=128)

    cost = {name: each.cost_p50_usd for name, each in found.items()}
    assert cost["spot"] < cost["ours"] < cost["on_demand"]
    assert found["spot"].late > 0.5
    assert found["ours"].late == 0.0


def test_alternatives_are_those_that_places_sell() -> None:
    spot, on_demand = (
        place_of(on_demand_usd_per_hour=None),
        place_of(spot_usd_per_hour=None, is_available=None, seen_at=None),
    )

    assert [*alternatives(job_of(), market_of(spot), Survival(), runs=8)] == ["ours", "spot"]
    found = alternatives(job_of(), market_of(on_demand), Survival(), runs=8)
    assert [*found] == ["ours", "on_demand"]
    assert found["ours"] == found["on_demand"]


def test_job_without_on_demand_nodes_may_be_late() -> None:
    gone = place_of(is_available=False, returns=GONE)

    found = forecast(job_of(on_demand=False), market_of(gone), Survival(), runs=8)

    assert found.late == 1.0
    assert hours(found.end_p10) > 100


def test_unseen_place_is_drawn_from_all_times() -> None:
    unseen = market_of(place_of(is_available=None, seen_at=None))

    waits = forecast(job_of(None, 1.0), unseen, SpotOnly())

    # In some runs spot nodes are there, in others not.
    assert hours(waits.end_p10) < 1.2
    assert hours(waits.end_p90) > 2.0


def test_old_observation_counts_less() -> None:
    """Spot nodes that were there ten hours ago may be gone now."""
    there = {"age_s": 11 * HOUR_S}
    fresh, old = (
        forecast(job_of(None, 1.0), market_of(place_of(seen_at=at, **there)), SpotOnly())
        for at in (NOW, NOW - timedelta(hours=10))
    )

    assert hours(fresh.end_p50) < hours(old.end_p90)
    assert hours(fresh.end_p90) < hours(old.end_p90)


def test_margin_makes_the_safety_net_early() -> None:
    gone = market_of(place_of(is_available=False, returns=GONE))

    without, with_margin = (
        forecast(job_of(30, margin_s=margin), gone, Threshold(0.0), runs=8)
        for margin in (0.0, 2 * HOUR_S)
    )

    assert hours(with_margin.end_p50) == pytest.approx(hours(without.end_p50) - 2, abs=0.2)


def test_lost_work_is_half_of_what_may_be_lost() -> None:
    found = forecast(job_of(60, lost_work_s=HOUR_S), market_of(), SpotOnly())

    assert 0 < found.lost_work_s <= found.preemptions * HOUR_S / 2


def test_fastest_ends_early_within_the_budget() -> None:
    market, job = market_of(place_of(is_available=False)), job_of(60, budget_usd=200.0)

    fastest = forecast(job, market, Fastest(), runs=64)
    cheapest = forecast(job, market, Survival(), runs=64)

    assert fastest.end_p90 < cheapest.end_p50
    assert fastest.over_budget == 0.0


def test_blind_job_does_not_see_spot_nodes() -> None:
    job = job_of(30, held=CapacityType.ON_DEMAND, place="zone-a")
    seen, blind = (
        forecast(job, market_of(sees_all=sees_all), Survival(), runs=64)
        for sees_all in (True, False)
    )

    assert blind.cost_p50_usd > seen.cost_p50_usd


WARM_UP_H = 48
"""Hours of a recording before the first forecast."""
WORK_H, DEADLINE_H = 24, 30
WHOLE_USD = (WORK_H + 0.1) * ON_DEMAND_USD


def against_recording(
    policy: PlacementPolicy, traces: Sequence[Trace], starts: int, *, sees_all: bool = True
) -> tuple[Numbers, Numbers]:
    """Forecasts from starts in a recording, (P10, P50, P90), and what happened; as shares of the cost on demand."""
    recording = markets_of(*traces, together=True, spot_usd=SPOT_USD)
    gap_s = recording.gap_s
    first = WARM_UP_H * HOUR_S / gap_s
    last = recording.available.shape[2] - DEADLINE_H * HOUR_S / gap_s - 1
    ticks = np.linspace(first, last, starts).astype(int).tolist()
    window = windows_of(
        *ticks, work_s=WORK_H * HOUR_S, deadline_s=DEADLINE_H * HOUR_S, changeover_s=360.0
    )
    terms = terms_of(on_demand_usd_per_hour=ON_DEMAND_USD, sees_all=sees_all)
    runs = replay(policy, recording, window, terms)
    found = []
    for tick in ticks:
        believed = recording.beliefs
        places = [
            place_of(
                trace.name,
                region=trace.region,
                spot_usd_per_hour=SPOT_USD,
                on_demand_usd_per_hour=ON_DEMAND_USD,
                is_available=bool(trace.available[tick]),
                age_s=float(believed.age_s[0, number, tick]),
                loss=float(believed.loss[0, number, tick]),
                returns=float(believed.returns[0, number, tick]),
            )
            for number, trace in enumerate(traces)
        ]
        market = market_of(*places, tick_s=gap_s, sees_all=sees_all)
        one = forecast(job_of(), market, policy, runs=96, seed=tick)
        found.append((one.cost_p10_usd, one.cost_p50_usd, one.cost_p90_usd))
    # Jobs are not billed for whole ticks.
    return np.array(found).T / WHOLE_USD, (runs.cost_usd - runs.tail_usd) / WHOLE_USD


@pytest.mark.parametrize(
    ("folder", "policy", "starts"),
    [
        (AWS_2022, Threshold(), 12),
        *(
            pytest.param(folder, policy, 40, marks=pytest.mark.full)
            for folder in (AWS_2022, AWS_2023)
            for policy in (Threshold(), UniformProgress(), Survival())
        ),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
@pytest.mark.timeout(600)
def test_forecasts_agree_with_recorded_days(
    folder: Path, policy: PlacementPolicy, starts: int
) -> None:
    each = [against_recording(policy, [trace], starts) for trace in recorded(folder)]
    forecasts = np.concatenate([found for found, _ in each], axis=1)
    cost = np.concatenate([happened for _, happened in each])

    low, middle, high = forecasts
    assert 0.7 <= ((low <= cost) & (cost <= high)).mean() <= 0.95
    assert abs((middle - cost).mean()) <= 0.05


ZONES = (
    (AWS_2022, ("us-west-2a_v100_1", "us-west-2b_v100_1")),
    (AWS_2022, ("us-west-2a_v100_8", "us-west-2b_v100_8")),
    (AWS_2022, ("us-west-2a_k80_1", "us-west-2b_k80_1")),
    (AWS_2022, ("us-west-2a_k80_8", "us-west-2b_k80_8")),
    (AWS_2023, ("us-east-1a_v100_1", "us-east-1c_v100_1", "us-east-1f_v100_1")),
    (AWS_2023, ("us-west-2a_v100_1", "us-west-2b_v100_1")),
)
"""All recorded sets of zones of one region with the same nodes."""


@pytest.mark.full
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("sees_all", "most_error"), [(True, 0.12), (False, 0.13)])
def test_forecasts_over_zones_of_a_region_hold_what_they_say(
    *, sees_all: bool, most_error: float
) -> None:
    each = [
        against_recording(
            Threshold(),
            [trace for trace in recorded(folder) if trace.name in zones],
            40,
            sees_all=sees_all,
        )
        for folder, zones in ZONES
    ]
    low, middle, high = np.concatenate([found for found, _ in each], axis=1)
    cost = np.concatenate([happened for _, happened in each])

    assert abs((middle - cost).mean()) <= 0.03
    assert np.abs(middle - cost).mean() <= most_error
    assert 0.75 <= ((low <= cost) & (cost <= high)).mean() <= 0.90

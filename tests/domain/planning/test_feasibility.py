"""What no plan can keep: deadlines, budgets, both together, and places without nodes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from holdfast.domain.events.planning import MarketState, PlaceState, PlanForecast
from holdfast.domain.planning.feasibility import PlannedJob, plan_issues

NOW = datetime(2026, 3, 5, 15, 0, tzinfo=UTC)
HOUR_S = 3600.0


def place(name: str = "aws/us-east-1", **values: Any) -> PlaceState:
    usual: dict[str, Any] = {"spot_usd_per_hour": 1.0, "on_demand_usd_per_hour": 3.0}
    return PlaceState(name=name, region=name, **{**usual, **values})


def job(
    deadline_h: float | None = 30, budget_usd: float | None = None, **values: Any
) -> PlannedJob:
    usual: dict[str, Any] = {
        "now": NOW,
        "deadline_at": None if deadline_h is None else NOW + timedelta(hours=deadline_h),
        "budget_usd": budget_usd,
        "remaining_s": 24 * HOUR_S,
        "margin_s": 600.0,
        "on_demand": True,
        "market": MarketState(
            at=NOW, places=(place(),), tick_s=600.0, changeover_s=360.0, on_demand_wait_s=1200.0
        ),
    }
    return PlannedJob(**{**usual, **values})


def forecast(usd: float, hours: float, late: float = 0.0, over_budget: float = 0.0) -> PlanForecast:
    end = NOW + timedelta(hours=hours)
    return PlanForecast(
        runs=128, cost_p10_usd=0.9 * usd, cost_p50_usd=usd, cost_p90_usd=1.2 * usd, end_p10=end, end_p50=end,
        end_p90=end + timedelta(hours=1), late=late, over_budget=over_budget, preemptions=1.0, lost_work_s=0.0,
    )  # fmt: skip


USUAL = {
    "ours": forecast(40, 27),
    "spot": forecast(30, 33, late=0.6),
    "on_demand": forecast(73, 25),
}


def texts(each: PlannedJob, forecasts: dict[str, PlanForecast]) -> list[str]:
    return [f"{issue.pointer}: {issue.message}" for issue in plan_issues(each, forecasts)]


def test_possible_plan_has_no_issues() -> None:
    assert texts(job(budget_usd=60), USUAL) == []
    assert texts(job(deadline_h=None), USUAL) == []


def test_deadline_below_work_names_both_and_the_earliest() -> None:
    [text] = texts(job(deadline_h=20), USUAL)

    assert text == (
        "#/holdfast/limits/deadline: is 20.0 h away, but 24.0 h of work and 6 min to start need 24.1 h; "
        "write at least 2026-03-06T15:36:00Z, which leaves 0.5 h to wait for nodes"
    )


def test_deadline_that_nearly_all_runs_miss_is_refused() -> None:
    late = {"ours": forecast(40, 30, late=0.95), "on_demand": forecast(73, 26, late=1.0)}

    [text] = texts(job(deadline_h=24.2), late)

    assert text == (
        "#/holdfast/limits/deadline: is missed in 95 % of all simulated runs with this plan; write 2026-03-06T18:00:00Z or later"
    )


def test_budget_below_the_cheapest_names_what_is_needed() -> None:
    [text] = texts(job(budget_usd=20), USUAL)

    assert text == (
        "#/holdfast/limits/max_cost_usd: is $20.00, but even spot only nine of ten simulated runs cost more than $27; "
        "write at least $30, or name cheaper nodes"
    )


def test_limits_that_exclude_each_other_name_both_ways_out() -> None:
    apart = {
        "ours": forecast(60, 27, late=0.0, over_budget=1.0),
        "spot": forecast(30, 33, late=0.95, over_budget=0.1),
        "on_demand": forecast(73, 25, late=0.0, over_budget=1.0),
    }

    [text] = texts(job(budget_usd=40), apart)

    assert text == (
        "#/holdfast/limits/max_cost_usd: and the deadline exclude each other: to be done by 2026-03-06T21:00:00Z costs about "
        "$60 with this plan, and for $40.00 the job ends about Sat 00:00Z spot only; raise the one or postpone the other"
    )


def test_on_demand_nodes_that_are_not_allowed_save_nothing() -> None:
    slow = {
        "ours": forecast(30, 50, late=1.0),
        "spot": forecast(30, 50, late=1.0),
        "on_demand": forecast(73, 25),
    }

    assert texts(job(), slow) == []
    assert "over 99 % of all simulated runs" in texts(job(on_demand=False), slow)[0]


def test_places_that_nobody_sells_are_named() -> None:
    unsold = {"spot_usd_per_hour": None, "on_demand_usd_per_hour": None}
    places = (
        place(),
        place("aws/us-east-9", **unsold),
        place("gcp/old", observations=3, **unsold),
    )
    market = MarketState(at=NOW, places=places, tick_s=600.0, changeover_s=360.0)

    [text] = texts(job(market=market), USUAL)

    assert text == (
        "#/resources: name aws/us-east-9, where no such nodes are sold: no price is known, and no job has run there; "
        "correct its name, name other nodes, or remove it"
    )


@pytest.mark.parametrize("forecasts", [{}, USUAL])
def test_job_without_places_is_refused(forecasts: dict[str, PlanForecast]) -> None:
    market = MarketState(at=NOW, places=(), tick_s=600.0, changeover_s=360.0)

    assert (
        "#/resources: name no place that the launcher knows"
        in texts(job(market=market), forecasts)[0]
    )

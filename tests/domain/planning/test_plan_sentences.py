"""Choices of plans and forecasts in sentences."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from holdfast.domain.events.planning import (
    CapacityType,
    MarketState,
    PlanForecast,
    Planned,
    PlanReason,
)
from holdfast.domain.planning.plan_sentences import (
    ChosenNodes,
    choice_sentence,
    dollars,
    duration,
    forecast_sentence,
    moment,
    next_sentence,
    percent,
)

NOW = datetime(2026, 3, 5, 15, 0, tzinfo=UTC)  # A Thursday.
HOUR_S = 3600.0
ON_DEMAND, SPOT = CapacityType.ON_DEMAND, CapacityType.SPOT


def chosen(capacity: CapacityType | None = SPOT, **values: Any) -> ChosenNodes:
    usual: dict[str, Any] = {
        "at": NOW,
        "since": NOW - timedelta(minutes=40),
        "capacity": capacity,
        "places": ("aws/us-east-1/us-east-1a",),
        "reason": PlanReason.SAFETY_NET if capacity is ON_DEMAND else PlanReason.SPOT_IS_AVAILABLE,
        "remaining_s": 9.1 * HOUR_S,
        "slack_s": 5.2 * HOUR_S,
        "start_s": 0.6 * HOUR_S,
        "has_nodes": True,
    }
    return ChosenNodes(**{**usual, **values})


def forecast(**values: Any) -> PlanForecast:
    usual: dict[str, Any] = {
        "runs": 128,
        "cost_p10_usd": 380.4,
        "cost_p50_usd": 412.0,
        "cost_p90_usd": 533.0,
        "end_p10": NOW + timedelta(hours=20),
        "end_p50": NOW + timedelta(hours=23),
        "end_p90": NOW + timedelta(hours=28, minutes=20),
        "late": 0.02,
        "over_budget": 0.3,
        "preemptions": 2.0,
        "lost_work_s": 60.0,
    }
    return PlanForecast(**{**usual, **values})


def test_on_demand_nodes_name_work_deadline_and_loss() -> None:
    sentence = choice_sentence(chosen(ON_DEMAND, slack_s=-0.1 * HOUR_S))

    assert sentence == (
        "on-demand since 14:20Z: 9.1 h of work left, 9.6 h until the deadline, a lost spot node would cost 0.6 h"
    )
    assert choice_sentence(chosen(ON_DEMAND, has_nodes=False)).startswith(
        "waiting for on-demand since 14:20Z: "
    )


def test_spot_nodes_name_place_and_slack() -> None:
    assert choice_sentence(chosen()) == "spot in us-east-1a since 14:20Z: 5.2 h of slack"
    assert (
        choice_sentence(chosen(zone="us-east-1b"), since=False)
        == "spot in us-east-1b: 5.2 h of slack"
    )
    assert choice_sentence(chosen(slack_s=-1.0)).endswith(": no slack")
    assert choice_sentence(chosen(slack_s=None)).endswith(": 9.1 h of work left")


def test_waiting_names_places_and_latest_moment() -> None:
    waits = chosen(has_nodes=False, places=("a/b", "a/c", "d"), slack_s=2.5 * HOUR_S)

    assert choice_sentence(waits) == (
        "waiting for spot in 3 places since 14:20Z: on-demand at 17:30Z at the latest"
    )
    assert choice_sentence(replace(waits, on_demand=False)).endswith(
        ": on-demand nodes are not allowed"
    )
    assert choice_sentence(replace(waits, slack_s=None)).endswith(": without a deadline")
    assert choice_sentence(replace(waits, capacity=None)) == (
        "waiting without nodes since 14:20Z: spot nodes end too soon there, on-demand at 17:30Z at the latest"
    )


@pytest.mark.parametrize(
    ("capacity", "reason", "said"),
    [
        (ON_DEMAND, PlanReason.BEHIND_SCHEDULE, "progress is behind schedule, 9.1 h of work left"),
        (
            ON_DEMAND,
            PlanReason.LEAST_EXPECTED_COST,
            "to wait for spot nodes is expected to cost more",
        ),
        (ON_DEMAND, PlanReason.WITHIN_BUDGET, "they can do all that is left within the budget"),
        (SPOT, PlanReason.CHEAPER_PLACE, "cheaper than the place before, 5.2 h of slack"),
        (SPOT, PlanReason.AHEAD_OF_SCHEDULE, "progress is ahead of schedule, 5.2 h of slack"),
    ],
)
def test_reason_is_part_of_the_sentence(
    capacity: CapacityType, reason: PlanReason, said: str
) -> None:
    assert said in choice_sentence(chosen(capacity, reason=reason))


@pytest.mark.parametrize("reason", PlanReason)
@pytest.mark.parametrize("capacity", [None, *CapacityType])
@pytest.mark.parametrize("slack_s", [None, -5.0, 7200.0])
def test_every_choice_has_sentences(
    reason: PlanReason, capacity: CapacityType | None, slack_s: float | None
) -> None:
    planned = Planned(
        at=NOW, capacity=capacity, places=(), reason=reason, remaining_s=60.0, slack_s=slack_s, net_at=None, changeover_s=10.0,
        policy="holdfast", policy_version=1, market=MarketState(at=NOW, places=(), tick_s=60.0, changeover_s=10.0),
    )  # fmt: skip
    each = ChosenNodes.of_plan(planned)

    for one in (each, replace(each, has_nodes=not each.has_nodes), replace(each, on_demand=False)):
        assert choice_sentence(one)
        assert next_sentence(one)


@pytest.mark.parametrize(
    ("now", "said"),
    [
        (chosen(), "on-demand nodes at 20:12Z at the latest, if nothing is saved until then"),
        (chosen(slack_s=-9.0), "on-demand nodes at the next check, if nothing is saved until then"),
        (chosen(has_nodes=False), "spot nodes in any of the places; on-demand nodes at 20:12Z at the latest"),
        (chosen(on_demand=False), "other spot nodes if these are lost"),
        (chosen(reason=PlanReason.ON_DEMAND_DENIED, has_nodes=False), "spot nodes in any of the places; on-demand nodes are asked for again after the same wait"),
        (chosen(slack_s=None), "other spot nodes if these are lost; on-demand nodes when they can do all that is left within the budget"),
        (chosen(ON_DEMAND), "spot nodes, once a try costs less than it saves, with 5.2 h of slack"),
        (chosen(ON_DEMAND, slack_s=0.0), "nothing: only on-demand nodes still keep the deadline"),
        (chosen(ON_DEMAND, has_nodes=False), "the on-demand nodes are awaited; they are requested until they are there"),
    ],
)  # fmt: skip
def test_what_would_change_a_choice(now: ChosenNodes, said: str) -> None:
    assert next_sentence(now) == said


def test_forecast_has_two_digits_and_a_comparison() -> None:
    on_demand = forecast(cost_p50_usd=893.0)

    assert forecast_sentence(
        {"ours": forecast(), "on_demand": on_demand}, NOW, has_deadline=True, has_budget=True
    ) == (
        "about $410 ($380 to $530), done Fri 14:00Z (P90 19:20Z), 2 % late, 30 % over budget; on-demand only: $890"
    )
    assert forecast_sentence({"ours": forecast()}, NOW, has_deadline=False, has_budget=False) == (
        "about $410 ($380 to $530), done Fri 14:00Z (P90 19:20Z)"
    )
    assert forecast_sentence({}, NOW, has_deadline=True, has_budget=True) == ""


def test_numbers_do_not_promise_more_than_they_hold() -> None:
    assert [dollars(usd) for usd in (0, 0.0523, 0.95, 1.249, 9.99, 41.2, 1234.5)] == [
        "$0", "$0.052", "$0.95", "$1.2", "$10", "$41", "$1,200",
    ]  # fmt: skip
    assert [percent(p) for p in (0.0, 0.004, 0.023, 0.5, 0.999)] == [
        "under 1 %", "under 1 %", "2 %", "50 %", "over 99 %",
    ]  # fmt: skip
    assert [duration(s) for s in (45, 600, 1800, 32760)] == ["45 s", "10 min", "0.5 h", "9.1 h"]
    assert [moment(NOW + timedelta(days=d), NOW) for d in (0, 1, 8)] == [
        "15:00Z", "Fri 15:00Z", "2026-03-13 15:00Z",
    ]  # fmt: skip

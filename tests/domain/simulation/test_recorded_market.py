"""A recorded market: what a launch is offered in which tick, and how long it lasts."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from holdfast.clock import SIMULATION_START
from holdfast.domain.simulation.recorded_market import MarketRecording
from holdfast.domain.simulation.spot_market import MarketParameters, Offer, SpotMarket
from holdfast.errors import LaunchRefused
from support.recorded_markets import asks_for, recording_of_zones, zone_of

RECORDING = recording_of_zones(
    zone_of("a", "0012?1", micros=(9, 9, 3, 4, 5, 6)), zone_of("b", "100110")
)
CLIMATE = MarketParameters(
    provision_s=60.0, recording=RECORDING, mtbf_s=1.0, denial_rate=0.9, spot_micros=5
)


def at(seconds: float) -> datetime:
    return SIMULATION_START + timedelta(seconds=seconds)


def offer(
    seconds: float, *zones: str, nodes: int = 1, climate: MarketParameters = CLIMATE
) -> Offer:
    market = SpotMarket(climate.for_task(asks_for(*zones)) if zones else climate, "job-1", nodes)
    return market.offer(1, 0, at=at(seconds))


def test_first_wanted_zone_that_is_available_is_taken() -> None:
    first, second = offer(0, "a", "b"), offer(1300, "a", "b")

    assert (first.zone, first.denied, first.wait_s, first.passed) == ("b", False, 60.0, ("a",))
    assert (second.zone, second.denied, second.wait_s, second.passed) == ("a", False, 60.0, ())


def test_denied_request_is_repeated_in_the_next_tick() -> None:
    denied = offer(700, "a", "b")

    assert (denied.denied, denied.passed, denied.zone) == (True, ("a",), "b")
    assert (denied.wait_s, denied.retry_s) == (0.0, 500.0)
    assert offer(600, "a").retry_s == 600.0


def test_gang_needs_as_many_nodes_and_knows_of_them() -> None:
    assert [offer(tick * 600, "a", nodes=2).denied for tick in range(6)] == [True] * 3 + [
        False,
        True,
        True,
    ]
    assert [offer(tick * 600, "a").denied for tick in range(6)] == [
        True,
        True,
        False,
        False,
        True,
        False,
    ]


def test_nothing_is_available_after_the_end() -> None:
    ended = offer(3600, "a", "b")

    assert (ended.denied, ended.retry_s) == (True, math.inf)
    assert offer(3599, "b").retry_s == 1.0


def test_first_tick_also_holds_before_the_start() -> None:
    assert offer(-1, "b").denied is False


def test_launch_without_zones_takes_the_cheapest() -> None:
    assert [offer(tick * 600).zone for tick in (0, 3, 4)] == ["b", "a", "b"]
    assert offer(1800).micros_per_node_hour == 4
    assert offer(2400).micros_per_node_hour == CLIMATE.spot_micros


@pytest.mark.parametrize(
    ("ready_s", "lasts_s"), [(1200, 1200), (1799, 601), (2400, 0), (3000, 600)]
)
def test_nodes_last_until_the_first_tick_without_them(ready_s: float, lasts_s: float) -> None:
    found = SpotMarket(CLIMATE, "job-1").lifetime(1, "a", at(ready_s))

    assert (found.lifetime_s, found.notice_s, found.takes_all) == (lasts_s, 120.0, True)


def test_nodes_that_go_before_they_are_ready_are_denied() -> None:
    slow = replace(CLIMATE, provision_s=900.0)

    denied = offer(3100, "a", climate=slow)

    assert (denied.denied, denied.wait_s, denied.retry_s) == (True, 500.0, 0.0)
    assert offer(1200, "a", climate=slow).denied is False


def test_zone_that_has_given_notice_places_nobody() -> None:
    assert offer(2279, "a").denied is False
    assert (offer(2280, "a", "b").zone, offer(2280, "a").retry_s) == ("b", 120.0)
    hasty = replace(CLIMATE, notice_s=9_999.0)
    assert [offer(second, "a", climate=hasty).denied for second in (2099, 2100)] == [False, True]


def test_on_demand_nodes_are_available_in_any_tick() -> None:
    climate = replace(CLIMATE, on_demand_wait_s=30.0, on_demand_micros=7)
    market = SpotMarket(climate.for_task(asks_for("a", use_spot=False)), "job-1", 8)

    for seconds in (0, 900, 99_999):
        found = market.offer(1, 0, at=at(seconds))
        assert (found.zone, found.denied, found.wait_s) == ("a", False, 90.0)
        assert found.micros_per_node_hour == 7
        assert market.lifetime(1, "a", at(seconds)).lifetime_s is None


def test_on_demand_nodes_may_be_denied_until_the_next_tick() -> None:
    climate = replace(CLIMATE, on_demand_denial_rate=0.5)
    market = SpotMarket(climate.for_task(asks_for("a", "b", use_spot=False)), "job-1")

    found = [market.offer(1, attempt, at=at(99_700)) for attempt in range(400)]

    denied = [each for each in found if each.denied]
    assert 0.15 < len(denied) / len(found) < 0.35, (
        "both of two zones deny a quarter of the requests"
    )
    assert {(each.zone, each.passed, each.retry_s) for each in denied} == {("b", ("a",), 500.0)}


def test_zones_of_a_market_of_chance_are_asked_in_order() -> None:
    climate = MarketParameters(zones=("A", "b", "c"), zone_hazards=(1.0, 2.0, 3.0))
    market = SpotMarket(climate.for_task(asks_for("c", "a")), "job-1")

    assert [market.offer(1, attempt).zone for attempt in range(3)] == ["c", "A", "c"]


@pytest.mark.parametrize(
    ("resources", "message"),
    [
        (asks_for("a", "Mars"), "infra local/mars is no zone of this market; it has a, b"),
        (
            {
                "resources": {
                    "ordered": [
                        {"infra": "local/a", "use_spot": True},
                        {"infra": "local/b", "use_spot": False},
                    ]
                }
            },
            "resources.ordered names spot and on-demand nodes; use_spot must be the same in all of them",
        ),
    ],
)
def test_impossible_places_are_refused(resources: dict[str, Any], message: str) -> None:
    with pytest.raises(LaunchRefused) as refused:
        CLIMATE.for_task(resources)

    assert str(refused.value) == message


def test_options_inherit_how_nodes_are_bought() -> None:
    resources = {"use_spot": False, "ordered": [{"infra": "local/b"}, {"infra": "local/a"}]}

    found = CLIMATE.for_task({"resources": resources})

    assert (found.places, found.is_spot) == (("b", "a"), False)


def test_options_without_zones_change_nothing() -> None:
    assert CLIMATE.for_task({"resources": {"ordered": [{"infra": "local"}]}}) is CLIMATE


def test_parameters_survive_storage_as_json() -> None:
    climate = replace(CLIMATE, places=("a",), zone_hazards=(1.0,))
    stored = json.dumps(asdict(climate), default=datetime.isoformat)

    assert MarketParameters.parse(json.loads(stored)) == climate
    without = json.dumps(asdict(MarketParameters()))
    assert MarketParameters.parse(json.loads(without)) == MarketParameters()
    assert isinstance(MarketParameters.parse(json.loads(stored)).recording, MarketRecording)

"""What a policy sees of a recorded market at a moment."""

from __future__ import annotations

from datetime import timedelta

import numpy as np
import pytest
from holdfast.clock import SIMULATION_START
from holdfast.domain.planning.beliefs import beliefs_over
from holdfast.domain.planning.recorded_places import PlaceHistory, recording_of
from holdfast.domain.planning.traces import parse_json
from holdfast.domain.simulation.spot_market import MarketParameters
from support.spot_traces import AWS_2023, recorded

TRACES = recorded(AWS_2023)
HOUR_S = 3600.0


def test_states_are_those_of_a_replay() -> None:
    recording = recording_of(TRACES, None, SIMULATION_START)
    history = PlaceHistory(recording, MarketParameters(spot_micros=973_100))
    table = [beliefs_over(trace) for trace in TRACES]

    for tick in (0, 1, 77, 500):
        moment = SIMULATION_START + timedelta(seconds=(tick + 0.5) * recording.gap_s)
        states = history.states(moment)

        assert [state.name for state in states] == [f"local/{trace.name}" for trace in TRACES]
        assert [state.region for state in states] == [trace.region for trace in TRACES]
        assert [state.is_available for state in states] == [t.available[tick] for t in TRACES]
        assert [(each.age_s, each.loss, each.returns) for each in states] == [
            (age[tick], loss[tick], returns[tick]) for age, loss, returns in table
        ]
        assert {state.observations for state in states} == {tick + 1}
        assert {(state.seen_at, state.priced_at) for state in states} == {(moment, moment)}
        assert {state.spot_usd_per_hour for state in states} == {0.9731}


def test_after_the_end_nothing_more_is_seen() -> None:
    trace = parse_json("z", '{"metadata": {"gap_seconds": 60}, "data": [1, null, 4]}')
    recording = recording_of([trace], {"z": np.array([0.5, 1.5, 2.5])}, SIMULATION_START)
    history = PlaceHistory(recording, MarketParameters())

    [unknown] = history.states(SIMULATION_START + timedelta(seconds=60))
    [last] = history.states(SIMULATION_START + timedelta(seconds=179))
    [later] = history.states(SIMULATION_START + timedelta(seconds=99_999))

    assert (unknown.is_available, unknown.observations, unknown.spot_usd_per_hour) == (
        False,
        1,
        1.5,
    )
    assert (last.is_available, last.observations, last.spot_usd_per_hour) == (True, 2, 2.5)
    assert (later.is_available, later.observations, later.spot_usd_per_hour) == (False, 2, 2.5)


@pytest.mark.parametrize(("nodes", "is_available"), [(1, True), (4, True), (5, False)])
def test_availability_is_that_of_the_launch_size(nodes: int, is_available: bool) -> None:
    trace = parse_json("z", '{"metadata": {"gap_seconds": 60}, "data": [1, 4, 4]}')
    history = PlaceHistory(recording_of([trace], None, SIMULATION_START), MarketParameters())

    [state] = history.states(SIMULATION_START + timedelta(seconds=60), nodes)

    assert state.is_available is is_available
    assert state.age_s == {1: 60.0, 4: 0.0, 5: 60.0}[nodes]

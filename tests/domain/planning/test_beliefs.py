"""Beliefs about places from their own history."""

from __future__ import annotations

import numpy as np
import pytest
from holdfast.domain.planning.beliefs import (
    AGE_LIMITS_S,
    CHANCE_TICK_S,
    HALF_LIFE_S,
    PRIOR,
    USUAL_LOSS,
    USUAL_RETURN,
    Tracker,
    age_class,
    beliefs_over,
    chances,
    padded,
    table_of,
)
from support.spot_traces import trace_of


def test_ages_have_classes_by_their_upper_ends() -> None:
    ages = np.array([0.0, 1799.0, 1800.0, 7199.0, 7200.0, 21600.0, 1e9])

    assert age_class(ages).tolist() == [0, 0, 1, 1, 2, 3, 3]


def test_chances_of_two_steps_are_those_of_one_twice() -> None:
    twice = 1 - (1 - chances(USUAL_LOSS, 600)) ** 2

    assert np.allclose(chances(USUAL_LOSS, 1200), twice)
    assert np.allclose(chances(USUAL_RETURN, CHANCE_TICK_S), USUAL_RETURN)


def test_young_states_change_more_often() -> None:
    for usual in (USUAL_RETURN, USUAL_LOSS):
        assert list(usual) == sorted(usual, reverse=True)
        assert usual[0] / usual[-1] > 10
    assert len(USUAL_LOSS) == len(USUAL_RETURN) == len(AGE_LIMITS_S) + 1


def test_unseen_place_is_believed_to_be_usual() -> None:
    tracker = Tracker(600)
    tracker.miss()

    assert (tracker.age_s, tracker.loss, tracker.returns) == (0.0, 1.0, 1.0)


def test_multiplier_is_changes_seen_over_changes_expected() -> None:
    tracker = Tracker(600)
    for up in (True, True, False):
        tracker.see(up=up)

    fade = 0.5 ** (600 / HALF_LIFE_S)
    expected = USUAL_LOSS[0] * fade + USUAL_LOSS[0]
    assert tracker.loss == pytest.approx((1 + PRIOR) / (expected + PRIOR))
    assert tracker.returns == 1.0
    assert tracker.age_s == 0.0


def test_observations_halve_in_their_half_life() -> None:
    tracker = Tracker(HALF_LIFE_S)
    for up in (True, False):
        tracker.see(up=up)
    before = tracker.loss
    tracker.miss()

    chance = 1 - (1 - USUAL_LOSS[0]) ** (HALF_LIFE_S / CHANCE_TICK_S)
    assert before == pytest.approx((1 + PRIOR) / (chance + PRIOR))
    assert tracker.loss == pytest.approx((0.5 + PRIOR) / (chance / 2 + PRIOR))


def test_age_grows_also_while_nothing_is_known() -> None:
    age, _, _ = beliefs_over(trace_of("1?10??0"))

    assert age.tolist() == [0.0, 600.0, 1200.0, 0.0, 600.0, 1200.0, 1800.0]


def test_flapping_place_loses_more_than_a_steady_one() -> None:
    _, flapping, returns = beliefs_over(trace_of("01" * 100))
    _, steady, _ = beliefs_over(trace_of("1" * 200))

    assert flapping[-1] > 3
    assert returns[-1] > 2
    assert steady[-1] < 0.7


def test_beliefs_of_a_tick_come_from_it_and_those_before() -> None:
    past = "0110100"
    found = [np.stack(beliefs_over(trace_of(past + more)))[:, :7] for more in ("0000", "1111")]

    assert (found[0] == found[1]).all()


def test_tables_of_traces_with_other_lengths_are_padded() -> None:
    markets = [[trace_of("101")], [trace_of("1", name="b")]]

    table, available = table_of(markets), padded(markets)

    assert available.tolist() == [[[True, False, True]], [[True, False, False]]]
    assert table.loss[1, 0].tolist() == [1.0, 1.0, 1.0]
    at = table.at(np.array([1, 0]), np.array([0, 2]))
    assert at.age_s.tolist() == [[0.0], [0.0]]
    assert at.of_rows(np.array([True, False])).loss.tolist() == [[1.0]]

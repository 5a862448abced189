"""What a choice may cost at worst: the exact safety net, against replayed worst cases."""

from __future__ import annotations

import math

import numpy as np
import pytest
from holdfast.domain.planning.replay import replay
from holdfast.domain.planning.situation import (
    cheapest_place,
    is_idle_safe,
    is_spot_safe,
    of_place,
)
from hypothesis import given
from hypothesis import strategies as st
from support.spot_traces import Scripted, markets_of, terms_of, trace_of, windows_of

GAPS_S = (60.0, 195.0, 600.0, 3600.0)


def deadline_of(gap_s: float, work_s: float, start_s: float, slack_ticks: int) -> float:
    return (math.ceil((work_s + start_s) / gap_s - 1e-9) + slack_ticks) * gap_s


@given(
    gap_s=st.sampled_from(GAPS_S),
    ticks=st.integers(1, 9),
    part=st.sampled_from((0.0, 0.25, 0.5)),
    starts=st.sampled_from((0.0, 0.2, 1.0, 1.5, 2.7)),
    wait=st.sampled_from((0.0, 1.3)),
    idle=st.integers(1, 6),
    slack=st.integers(0, 7),
)
def test_idle_is_safe_exactly_if_on_demand_ends_in_time(
    *, gap_s: float, ticks: int, part: float, starts: float, wait: float, idle: int, slack: int
) -> None:
    work_s, changeover_s, wait_s = (ticks + part) * gap_s, starts * gap_s, wait * gap_s
    deadline_s = deadline_of(gap_s, work_s, changeover_s + wait_s, slack)
    policy = Scripted("." * idle + "d")

    runs = replay(
        policy,
        markets_of(trace_of("0" * 40, gap_s)),
        windows_of(0, work_s=work_s, deadline_s=deadline_s, changeover_s=changeover_s),
        terms_of(on_demand_wait_s=wait_s),
    )

    in_time = runs.finish_s[0] <= deadline_s
    assert bool(is_idle_safe(policy.seen[idle - 1])[0]) == in_time


@given(
    gap_s=st.sampled_from(GAPS_S),
    ticks=st.integers(2, 9),
    starts=st.sampled_from((0.0, 0.2, 1.0, 1.5)),
    spot=st.integers(1, 8),
    slack=st.integers(0, 7),
    risk=st.sampled_from((0.0, 0.4, 2.5)),
)
def test_spot_is_safe_exactly_if_a_loss_at_its_end_is_made_up(
    *, gap_s: float, ticks: int, starts: float, spot: int, slack: int, risk: float
) -> None:
    work_s, changeover_s = ticks * gap_s, starts * gap_s
    deadline_s = deadline_of(gap_s, work_s, changeover_s, slack)
    policy = Scripted("s" * spot + "d")

    runs = replay(
        policy,
        markets_of(trace_of("1" * spot + "0" * 40, gap_s)),
        windows_of(0, work_s=work_s, deadline_s=deadline_s, changeover_s=changeover_s),
        terms_of(lost_work_s=risk * gap_s),
    )

    if len(policy.seen) > spot:  # Otherwise spot nodes did all the work.
        at = policy.seen[spot - 1]
        is_safe = bool(is_spot_safe(at, is_start=np.array([spot == 1]))[0])
        assert is_safe == (runs.finish_s[0] <= deadline_s)


@pytest.mark.parametrize(("deadline_ticks", "is_safe"), [(3, True), (2, False)])
def test_last_tick_of_work_on_spot_needs_no_later_start(deadline_ticks: int, is_safe: bool) -> None:
    policy = Scripted("s")
    window = windows_of(0, work_s=1200, deadline_s=deadline_ticks * 600, changeover_s=300)
    replay(policy, markets_of(trace_of("1111")), window, terms_of())

    # Three ticks: a start of half a tick, and two ticks of work.
    assert bool(is_spot_safe(policy.seen[2], is_start=False)[0]) == is_safe


def test_cheapest_place_is_one_with_spot_nodes() -> None:
    market = markets_of(trace_of("0110"), trace_of("1100", name="b"), together=True)
    market.price[0, 0], market.price[0, 1] = 1.0, 2.0
    policy = Scripted("...d")
    window = windows_of(0, work_s=600, deadline_s=6000, changeover_s=0)
    replay(policy, market, window, terms_of())

    found = [cheapest_place(situation) for situation in policy.seen[:4]]

    assert [int(place[0]) for place, is_there in found if is_there[0]] == [1, 0, 0]
    assert not found[3][1][0]


def test_value_of_no_place_is_that_of_the_first() -> None:
    values = np.array([[1.0, 2.0], [3.0, 4.0]])

    assert of_place(values, np.array([-1, 1])).tolist() == [1.0, 4.0]
    assert of_place(values[:, :1], np.array([-1, 0])).tolist() == [1.0, 3.0]

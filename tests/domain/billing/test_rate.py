"""Price changes and daily allocation: each millisecond is paid once, at its own price."""

from __future__ import annotations

from datetime import timedelta

import pytest
from holdfast.domain.billing.allocation import CostAllocation, allocate_costs
from holdfast.domain.billing.bill import compute_bill
from holdfast.domain.billing.rate import RateSchedule
from support.events import DAWN, SPOT, at, launched, ready, restoring, saved, submitted, training

MIDNIGHT_S = 12 * 3600
"""Seconds from the start of these histories, at noon, to the end of the day."""


def test_price_change_at_first_moment_keeps_first_price() -> None:
    rate = RateSchedule.flat(at(10), 5)

    assert rate.with_price_change(at(10), 7) == rate
    assert rate.with_price_change(at(9), 7) == rate


def test_price_change_after_first_moment_is_kept() -> None:
    rate = RateSchedule.flat(at(10), 5).with_price_change(at(10) + timedelta(milliseconds=1), 7)

    assert [micros for _, micros in rate.steps] == [5, 7]


def test_late_price_of_nodes_that_were_lost_is_dropped() -> None:
    rate = RateSchedule.flat(at(10), 5).with_price_change(at(30), 7)

    assert rate.with_node_change(at(20), 0).steps == (rate.steps[0], (_at_ms(20), 0))
    assert rate.with_node_change(at(10), 0).steps == ((_at_ms(10), 0),)
    assert rate.with_node_change(at(40), 9).steps == (*rate.steps, (_at_ms(40), 9))


def test_node_change_before_the_first_moment_applies_from_it() -> None:
    rate = RateSchedule.flat(at(10), 0)

    assert rate.with_node_change(at(9), 7).steps == ((_at_ms(10), 7),)


@pytest.mark.parametrize("end_s", [MIDNIGHT_S + 1, MIDNIGHT_S + 600, 3 * MIDNIGHT_S])
def test_last_phase_over_midnight_is_split_and_paid_once(end_s: int) -> None:
    events = [submitted(), launched(), ready(10), restoring(20), training(30), saved(40, step=5)]
    account = compute_bill(events, {}, at(end_s))

    shares = [share for share in allocate_costs(account) if share.attempt == 1 and share.ms.total]
    first, *later = shares

    assert account.attempts[0].spans[-1].begin_ms < _ms(MIDNIGHT_S)
    assert [share.day for share in shares] == sorted({share.day for share in shares})
    assert first.paid_micros == (MIDNIGHT_S - 10) * SPOT // 3600
    assert _paid(later) == (end_s - MIDNIGHT_S) * SPOT // 3600
    assert _paid(shares) == account.paid_micros


def _ms(seconds: float) -> int:
    return round(DAWN.timestamp() * 1000 + seconds * 1000)


def _at_ms(seconds: float) -> int:
    return round(at(seconds).timestamp() * 1000)


def _paid(shares: list[CostAllocation]) -> int:
    return sum(share.paid_micros for share in shares)

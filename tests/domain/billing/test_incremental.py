"""A bill that extends an earlier one equals the recomputed bill, to the micro-dollar."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from holdfast.domain.billing.allocation import allocate_costs
from holdfast.domain.billing.incremental import extend_bill, first_open_attempt, is_closed
from holdfast.domain.billing.ledger import Bill, LatestPoint, compute_bill
from holdfast.domain.events import Event
from holdfast.domain.events.values import NodeGroup
from holdfast.domain.preemptions.placements import placement_records
from holdfast.store.billing.live_bills import LiveBill
from support.billing_oracle import Life, Plan, end
from support.events import at, finished, launched, lost, ready, saved, submitted, training

SEEDS = 300


def lived(draw: random.Random) -> Life:
    """A random history of a running job."""
    life = Life()
    last = draw.randint(1, 4)
    for attempt in range(1, last + 1):
        life.live(attempt, _plan(draw))
        if attempt < last:
            life.log.append(lost(life.now_s, attempt=attempt))
    end(life, last, draw.choice([None, "recovers"]))
    return life


def _plan(draw: random.Random) -> Plan:
    groups = tuple(
        NodeGroup(
            nodes=draw.randint(1, 4),
            zone=draw.choice("abc"),
            is_spot=True,
            micros_per_hour=draw.randrange(1, 99_999_999),
            on_demand_micros_per_hour=draw.randrange(1, 99_999_999),
        )
        for _ in range(draw.choice([0, 0, 1, 2]))
    )
    return Plan(
        wait=draw.randrange(10),
        setup=draw.randint(1, 9),
        restore=draw.randint(-1, 9),
        laps=[(draw.randint(1, 9), draw.randrange(5)) for _ in range(draw.randrange(4))],
        sprint=draw.randrange(10),
        idle=draw.randint(-2, 4),
        damaged=draw.choice([0, 0, 0, 1]),
        micros=draw.randrange(1, 99_999_999),
        groups=groups,
        changes=tuple(
            (draw.randint(1, 40), draw.randrange(len(groups) or 1), draw.randrange(1, 9_999_999))
            for _ in range(draw.choice([0, 0, 2]))
        ),
    )


def test_extended_bill_equals_a_recomputed_one() -> None:
    went_on = 0
    for seed in range(SEEDS):
        draw = random.Random(seed)
        life = lived(draw)
        first = at(life.now_s) + timedelta(milliseconds=draw.randrange(60))
        second = first + timedelta(milliseconds=draw.choice([0, 1, 7, 86_400_000, 90_000_001]))
        account = compute_bill(life.log, {}, first)
        if not is_closed(account, life.log):
            continue
        went_on += 1

        goes_on = extend_bill(account, second)

        anew = compute_bill(life.log, {}, second)
        assert goes_on == anew, seed
        begin = first_open_attempt(account)
        over = [share for share in allocate_costs(account) if 0 < share.attempt < begin]
        now_open = allocate_costs(anew, begin)
        assert sorted([*over, *now_open], key=str) == sorted(allocate_costs(anew), key=str), seed
        # The last that is over is told with what came after it.
        gone = placement_records(life.log, {}, {}, account)[: max(0, begin - 2)]
        assert gone == placement_records(life.log, {}, {}, anew)[: max(0, begin - 2)], seed
    assert went_on > SEEDS / 2


def test_new_point_moves_the_step_of_the_open_attempt() -> None:
    facts = [submitted(), launched(1), ready(2), training(3)]
    account = compute_bill(facts, {1: LatestPoint(step=5, at=at(9))}, at(10))
    newer = LatestPoint(step=9, at=at(19))

    assert extend_bill(account, at(20), newer) == compute_bill(facts, {1: newer}, at(20))


def test_running_bill_is_reused_while_only_its_end_moves() -> None:
    facts = [submitted(), launched(1), ready(2), training(3), saved(8, step=7), lost(9)]
    facts += [ready(20, attempt=2), training(21, attempt=2, step=7), saved(30, attempt=2, step=50)]
    points = {1: LatestPoint(step=8, at=at(9)), 2: LatestPoint(step=40, at=at(29))}
    living = LiveBill.from_events(compute_bill(facts, points, at(40)), facts, points)

    def at_50(reached: dict[int, LatestPoint]) -> Bill | None:
        return living.bill_at(at(50), reached)

    for step in (40, 45, 60):
        newer = points | {2: LatestPoint(step=step, at=at(49))}
        assert at_50(newer) == compute_bill(facts, newer, at(50))
    assert at_50(points | {2: LatestPoint(step=39, at=at(49))}) is None
    assert at_50(points | {1: LatestPoint(step=9, at=at(9))}) is None
    assert at_50({1: points[1]}) is None


def test_points_before_training_are_ignored() -> None:
    facts = [submitted(), launched(1), ready(2)]
    account, point = compute_bill(facts, {}, at(10)), LatestPoint(step=9, at=at(19))

    assert extend_bill(account, at(20), point) == compute_bill(facts, {1: point}, at(20))


def test_clock_moved_back_forces_recomputation() -> None:
    account = compute_bill([submitted(), launched(1), ready(2)], {}, at(10))

    assert extend_bill(account, at(9)) is None


@pytest.mark.parametrize(
    "fact", [training(10), training(11), saved(9, step=1, stall_ms=1000), finished(5)]
)
def test_bill_with_unsettled_events_is_not_extended(fact: Event) -> None:
    """Clocks of workers may be ahead: what they tell is then of a time that has not come."""
    facts = [submitted(), launched(1), ready(2), fact]

    assert not is_closed(compute_bill(facts, {}, at(10)), facts)
    assert is_closed(compute_bill(facts[:3], {}, at(10)), facts[:3])


def test_a_job_that_waits_waits_for_longer() -> None:
    facts = [submitted(), launched(1), ready(2), lost(5)]

    goes_on = extend_bill(compute_bill(facts, {}, at(10)), at(20))

    assert goes_on == compute_bill(facts, {}, at(20))
    assert goes_on is not None
    assert (goes_on.tail_ms, first_open_attempt(goes_on)) == (15_000, 2)

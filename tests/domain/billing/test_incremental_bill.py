"""A bill that extends an earlier one equals the recomputed bill, to the micro-dollar."""

from __future__ import annotations

import random
from datetime import timedelta

import pytest
from holdfast.domain.billing.allocation import allocate_costs
from holdfast.domain.billing.bill import Bill, LatestPoint, compute_bill
from holdfast.domain.billing.incremental_bill import extend_bill, first_open_attempt, is_closed
from holdfast.domain.events import Event
from holdfast.domain.events.values import NodeGroup
from holdfast.domain.preemptions.placements import PlacementRecord, placement_records
from holdfast.store.billing.live_bills import LiveBill
from support.billing_oracle import Life, Plan, end
from support.events import at, finished, launched, lost, ready, saved, submitted, training

SEEDS = 300


def random_history(draw: random.Random) -> Life:
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
    changes = tuple(
        (draw.randint(1, 40), draw.randrange(len(groups) or 1), draw.randrange(1, 9_999_999))
        for _ in range(draw.choice([0, 0, 2]))
    )
    has_lost_node = not groups and not changes and draw.random() < 0.5
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
        changes=changes,
        nodes=2,
        node_changes=((2, 1, 1_234_567), (9, 2, 7_654_321))[: draw.choice([1, 2])]
        if has_lost_node
        else (),
    )


def test_extended_bill_equals_a_recomputed_one() -> None:
    extended_count = 0
    for seed in range(SEEDS):
        draw = random.Random(seed)
        life = random_history(draw)
        first = at(life.now_s) + timedelta(milliseconds=draw.randrange(60))
        second = first + timedelta(milliseconds=draw.choice([0, 1, 7, 86_400_000, 90_000_001]))
        account = compute_bill(life.log, {}, first)
        if not is_closed(account, life.log):
            continue
        extended_count += 1

        extended = extend_bill(account, second)

        recomputed = compute_bill(life.log, {}, second)
        assert extended == recomputed, seed
        begin = first_open_attempt(account)
        over = [share for share in allocate_costs(account) if 0 < share.attempt < begin]
        now_open = allocate_costs(recomputed, begin)
        assert sorted([*over, *now_open], key=str) == sorted(allocate_costs(recomputed), key=str), (
            seed
        )
        # The last closed attempt includes the events after it.
        gone = _records_before(begin - 1, life, account)
        assert gone == _records_before(begin - 1, life, recomputed), seed
    assert extended_count > SEEDS / 2


def _records_before(attempt: int, life: Life, account: Bill) -> list[PlacementRecord]:
    records = placement_records(life.log, {}, {}, account)
    return [record for record in records if record.attempt < attempt]


def test_new_point_moves_the_step_of_the_open_attempt() -> None:
    events = [submitted(), launched(1), ready(2), training(3)]
    account = compute_bill(events, {1: LatestPoint(step=5, at=at(9))}, at(10))
    newer = LatestPoint(step=9, at=at(19))

    assert extend_bill(account, at(20), newer) == compute_bill(events, {1: newer}, at(20))


def test_running_bill_is_reused_while_only_its_end_moves() -> None:
    events = [submitted(), launched(1), ready(2), training(3), saved(8, step=7), lost(9)]
    events += [ready(20, attempt=2), training(21, attempt=2, step=7), saved(30, attempt=2, step=50)]
    points = {1: LatestPoint(step=8, at=at(9)), 2: LatestPoint(step=40, at=at(29))}
    live_bill = LiveBill.from_events(compute_bill(events, points, at(40)), events, points)

    def at_50(reached: dict[int, LatestPoint]) -> Bill | None:
        return live_bill.bill_at(at(50), reached)

    for step in (40, 45, 60):
        newer = points | {2: LatestPoint(step=step, at=at(49))}
        assert at_50(newer) == compute_bill(events, newer, at(50))
    assert at_50(points | {2: LatestPoint(step=39, at=at(49))}) is None
    assert at_50(points | {1: LatestPoint(step=9, at=at(9))}) is None
    assert at_50({1: points[1]}) is None


def test_points_before_training_are_ignored() -> None:
    events = [submitted(), launched(1), ready(2)]
    account, point = compute_bill(events, {}, at(10)), LatestPoint(step=9, at=at(19))

    assert extend_bill(account, at(20), point) == compute_bill(events, {1: point}, at(20))


def test_clock_moved_back_forces_recomputation() -> None:
    account = compute_bill([submitted(), launched(1), ready(2)], {}, at(10))

    assert extend_bill(account, at(9)) is None


@pytest.mark.parametrize(
    "event", [training(10), training(11), saved(9, step=1, stall_ms=1000), finished(5)]
)
def test_bill_with_unsettled_events_is_not_extended(event: Event) -> None:
    """Worker clocks may be ahead: the reported time is then in the future."""
    events = [submitted(), launched(1), ready(2), event]

    assert not is_closed(compute_bill(events, {}, at(10)), events)
    assert is_closed(compute_bill(events[:3], {}, at(10)), events[:3])


def test_waiting_time_of_an_extended_bill_grows() -> None:
    events = [submitted(), launched(1), ready(2), lost(5)]

    extended = extend_bill(compute_bill(events, {}, at(10)), at(20))

    assert extended == compute_bill(events, {}, at(20))
    assert extended is not None
    assert (extended.tail_ms, first_open_attempt(extended)) == (15_000, 2)

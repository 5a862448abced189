"""Placements of a launch with node groups: they only grow, and bill exactly the time in which each group stood."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest
from holdfast.domain.attempts import collect_attempts
from holdfast.domain.billing.allocation import allocate_costs
from holdfast.domain.billing.bill import Bill, compute_bill
from holdfast.domain.events import Cause, Event, NodesReady
from holdfast.domain.events.values import NodeGroup
from holdfast.domain.jobs.job import Job
from holdfast.domain.jobs.lifecycle import advance, fold
from holdfast.domain.jobs.observation import Denial, LaunchStatus, Observation, Placement
from holdfast.domain.jobs.reconcile import decide
from holdfast.launchers.skypilot.group_history import (
    GroupEvent,
    GroupEventKind,
    GroupShape,
    LaunchHistory,
    group_events,
    new_events,
)
from support.events import SPOT, at, launched, placement, submitted
from support.repetitions import repeat_count

HEAD, WORKERS, MORE = GroupShape("head", 1), GroupShape("workers", 2), GroupShape("more", 3)
GROUPS = (HEAD, WORKERS, MORE)
Stay = tuple[int, int, int, int, str]
"""Group, begin and end in milliseconds, price and zone."""


def up(seconds: float, group: int, number: int = 1, *, micros: int = SPOT, zone: str = "") -> GroupEvent:  # fmt: skip
    shape = GROUPS[group]
    placed = NodeGroup(
        name=shape.name,
        nodes=shape.nodes,
        zone=zone or f"aws/r{group}/z",
        is_spot=group > 0,
        micros_per_hour=micros,
        on_demand_micros_per_hour=3 * micros,
        cloud="aws",
        instance_type=f"type-{group}",
    )
    return GroupEvent(
        at=at(seconds), kind=GroupEventKind.UP, group=group, number=number, placed=placed
    )


def gone(seconds: float, group: int, number: int = 1, cause: Cause | None = Cause.NODE_FAILED) -> GroupEvent:  # fmt: skip
    kind = GroupEventKind.LOST if cause else GroupEventKind.ENDED
    return GroupEvent(at=at(seconds), kind=kind, group=group, number=number, cause=cause)


def placements(*events: GroupEvent, groups: Sequence[GroupShape] = GROUPS[:2]) -> list[Placement]:
    return LaunchHistory.of(groups, events).placements


def observed(history: LaunchHistory, seconds: float = 1e6) -> Observation:
    return Observation(
        status=LaunchStatus.UP if history.is_up else LaunchStatus.WAITING,
        since=at(seconds),
        placements=len(history.placements),
        recent_placements=tuple(history.placements),
        denials=tuple(history.denials),
    )


def test_placement_begins_when_the_first_group_stands() -> None:
    [first] = placements(up(10, 1), up(25, 0))

    assert (first.ready_at, first.nodes, first.absent_nodes) == (at(10), 3, (0,))
    assert [(g.name, g.zone, g.micros_per_hour) for g in first.groups] == [
        ("head", "", 0),
        ("workers", "aws/r1/z", SPOT),
    ]
    [joins] = first.node_changes
    assert (joins.at, joins.node, joins.group, joins.nodes, joins.cause) == (at(25), 0, 0, 1, None)


def test_loss_of_another_group_changes_its_nodes_together() -> None:
    [only] = placements(up(10, 0), up(10, 1), gone(40, 1), up(90, 1, 2, micros=500))

    changes = [(c.at, c.node, c.with_node, c.nodes, c.micros_per_hour) for c in only.node_changes]
    assert changes == [
        (at(10), 1, None, 1, SPOT // 2),
        (at(10), 2, None, 2, SPOT),
        (at(40), 1, None, 1, SPOT // 2),
        (at(40), 2, 1, 0, 0),
        (at(90), 1, None, 1, 250),
        (at(90), 2, None, 2, 500),
    ]
    assert only.lost_at is None


def test_loss_of_the_first_group_begins_another_placement() -> None:
    first, second = placements(up(10, 0), up(12, 1), gone(50, 0), up(95, 0, 2))

    assert (first.lost_at, first.cause) == (at(50), Cause.NODE_FAILED)
    assert (second.ready_at, second.absent_nodes) == (at(50), (0,))
    assert [change.at for change in second.node_changes] == [at(95)]


def test_loss_of_all_groups_leaves_no_placement_up() -> None:
    history = LaunchHistory.of(GROUPS[:2], [up(10, 0), up(12, 1), gone(40, 1), gone(50, 0)])

    assert not history.is_up
    assert len(history.placements) == 1


def test_first_group_that_ends_keeps_the_placement_of_the_others() -> None:
    [only] = placements(up(10, 0), up(12, 1), gone(50, 0, cause=None), gone(55, 1, cause=None))

    assert only.lost_at is None
    assert [(c.node, c.cause) for c in only.node_changes[2:]] == [
        (0, Cause.ENDED),
        (1, Cause.ENDED),
        (2, Cause.ENDED),
    ]


def test_kept_nodes_are_billed_from_the_failure_on() -> None:
    failed = gone(50, 0, cause=Cause.USER_ERROR)

    first, second = placements(up(10, 0), up(12, 1), failed, up(50, 0, 2))

    assert first.cause is Cause.USER_ERROR
    assert second.ready_at == second.node_changes[0].at == at(50)


def test_same_event_of_two_replicas_counts_once() -> None:
    again = replace(gone(41, 1), detail="read by another replica")

    once = placements(up(10, 0), up(10, 1), gone(40, 1))

    assert placements(up(10, 0), up(10, 1), gone(40, 1), again, up(11, 1)) == once


def test_events_are_recorded_once_in_order_and_stored() -> None:
    seen = Observation(
        status=LaunchStatus.UP,
        since=at(0),
        placements=2,
        recent_placements=(placement(10, 40), placement(60)),
        denials=(Denial(at=at(5), zone="aws/r1", detail="none left"),),
    )
    reported = group_events(HEAD, 0, seen)

    first = new_events([], reported, at(40))
    rest = new_events(first, reported, None)

    kinds = [event.kind for event in (*first, *rest)]
    assert kinds == [
        GroupEventKind.DENIED,
        GroupEventKind.UP,
        GroupEventKind.LOST,
        GroupEventKind.UP,
    ]
    assert [GroupEvent.decode(event.encode()) for event in (*first, *rest)] == [*first, *rest]
    assert new_events([*first, *rest], reported, None) == []


# Random histories


def random_events(rng: random.Random) -> tuple[list[GroupEvent], list[Stay]]:
    """Events of three groups in order of time, and the stays of each."""
    events, stays = list[GroupEvent](), list[Stay]()
    for group in range(len(GROUPS)):
        now_ms, zones = rng.randrange(5_000), ["aws/a/1", "aws/b/1", "aws/c/2"]
        for number in range(1, rng.randint(2, 6)):
            micros, zone = rng.choice([1, 7, SPOT, 123_456_789]), rng.choice(zones)
            begin_ms = now_ms
            now_ms += rng.randrange(1, 20_000)
            cause = rng.choice([Cause.NODE_FAILED, Cause.USER_ERROR])
            ends = gone(now_ms / 1000, group, number, cause)
            events += [up(begin_ms / 1000, group, number, micros=micros, zone=zone), ends]
            stays.append((group, begin_ms, now_ms, micros, zone))
            # Nodes that are kept stand again at once.
            now_ms += 0 if cause is Cause.USER_ERROR else rng.randrange(20_000)
    reported = sorted(events, key=lambda e: (e.at, e.kind is GroupEventKind.UP, e.group))
    return reported, stays


def histories(count: int) -> Iterator[tuple[random.Random, list[GroupEvent], list[Stay]]]:
    for seed in range(count):
        rng = random.Random(seed)
        yield rng, *random_events(rng)


def log_of(rng: random.Random, events: Sequence[GroupEvent]) -> tuple[list[Event], Job]:
    """The log of a job that is observed after random numbers of events."""
    log: list[Event] = [submitted(-10, infra="aws", nodes=(None, 6)), launched(-9)]
    job, history, before = fold("job-1", log), LaunchHistory(GROUPS), list[Placement]()
    for number, event in enumerate(events):
        history.apply(event)
        check_growth(before, history.placements)
        before = [*history.placements]
        if rng.random() < 0.5 or number == len(events) - 1:
            for fact in decide(job, observed(history), at(1e6)).record:
                log.append(fact)
                job = advance(job, fact)
    return log, job


def check_growth(before: Sequence[Placement], after: Sequence[Placement]) -> None:
    """Check that placements and their node changes are only appended."""
    assert len(after) >= len(before)
    for old, new in zip(before, after, strict=False):
        assert new.node_changes[: len(old.node_changes)] == old.node_changes
        was_open = replace(new, node_changes=old.node_changes, lost_at=None, cause=None, detail="")
        assert old in {was_open, replace(new, node_changes=old.node_changes)}
        if old.lost_at is not None:
            assert new == old


@pytest.fixture(scope="module")
def cases() -> list[tuple[list[Event], Job, list[Stay]]]:
    count = repeat_count(60, 1000)
    return [(*log_of(rng, events), stays) for rng, events, stays in histories(count)]


def test_bill_covers_exactly_the_time_of_each_stay(cases: list[tuple[list[Event], Job, list[Stay]]]) -> None:  # fmt: skip
    for log, job, stays in cases:
        bill = compute_bill(log, {}, at(1e5), with_rules=False)
        _check_node_time(bill, stays)
        _check_money(bill, job, stays)


def _check_node_time(bill: Bill, stays: Sequence[Stay]) -> None:
    expected, found = defaultdict[str, int](int), defaultdict[str, int](int)
    for group, begin_ms, end_ms, _, zone in stays:
        expected[zone] += (end_ms - begin_ms) * GROUPS[group].nodes
    for share in allocate_costs(bill):
        found[share.zone] += share.node_ms
    assert {zone: ms for zone, ms in found.items() if ms} == dict(expected)


def _check_money(bill: Bill, job: Job, stays: Sequence[Stay]) -> None:
    for number, shape in enumerate(GROUPS):
        hours = sum((end - begin) * micros for group, begin, end, micros, _ in stays if group == number)  # fmt: skip
        paid = sum(item.groups[number].micros.total for item in bill.attempts)
        # Each attempt rounds the sum of each group down once.
        assert 0 <= hours / 3_600_000 - paid <= len(bill.attempts), shape
    assert job.account.paid_micros_by(at(1e5)) == bill.paid_micros
    shares = allocate_costs(bill)
    assert sum(share.paid_micros for share in shares) == bill.paid_micros


def test_attempts_are_the_lives_of_the_first_group(cases: list[tuple[list[Event], Job, list[Stay]]]) -> None:  # fmt: skip
    for log, job, stays in cases:
        lives = sum(group == 0 for group, *_ in stays)
        ends = [attempt for attempt in collect_attempts(log, {}) if attempt.ended_at]
        assert len(ends) == lives
        ready = sum(isinstance(fact, NodesReady) for fact in log)
        assert job.attempt == ready
        assert ready in {lives, lives + 1}


def test_each_lost_group_counts_once(cases: list[tuple[list[Event], Job, list[Stay]]]) -> None:
    for log, job, _ in cases:
        lost = {
            (fact.at, getattr(fact, "group", 0))
            for fact in log
            if getattr(fact, "cause", None) is Cause.NODE_FAILED
        }
        assert job.preemptions == len(lost)

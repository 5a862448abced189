"""The node groups of a job over all attempts: their places, losses, missing time and cost."""

from __future__ import annotations

from dataclasses import replace

from holdfast.domain.billing.bill import Bill, compute_bill
from holdfast.domain.billing.group_timeline import GroupState, GroupTimeline, group_timelines
from holdfast.domain.billing.incremental_bill import extend_bill
from holdfast.domain.events import Cause, Event
from support.events import SPOT, at, finished, launched, lost, ready, restarted, submitted, training
from support.group_events import (
    SECOND,
    SECOND_LATER,
    group_events,
    group_lost,
    group_replaced,
    group_submission,
    groups_ready,
)

WAITING, PROVISIONING, RUNNING, MISSING = GroupState
START = (group_submission(), launched(1))


def bill(*events: Event, end_s: float = 5000) -> Bill:
    return compute_bill(events, {}, at(end_s))


def spans(group: GroupTimeline) -> list[tuple[GroupState, int, int]]:
    """State, begin and end of each span in seconds."""
    begin_ms = group.spans[0].begin_ms
    return [
        (span.state, (span.begin_ms - begin_ms) // 1000, (span.end_ms - begin_ms) // 1000)
        for span in group.spans
    ]


def test_group_is_provisioned_lost_missing_and_back() -> None:
    _, _, second = group_timelines(bill(group_submission(), *group_events()))

    assert spans(second) == [
        (WAITING, 0, 60),
        (PROVISIONING, 60, 200),
        (RUNNING, 200, 1000),
        (MISSING, 1000, 1400),
        (RUNNING, 1400, 2200),
        (MISSING, 2200, 2500),
        (RUNNING, 2500, 5000),
    ]
    stands = [span for span in second.spans if span.state is RUNNING]
    assert [span.placed and span.placed.zone for span in stands] == [SECOND.zone, SECOND_LATER.zone, SECOND.zone]  # fmt: skip
    assert [span.micros_per_hour // SPOT for span in stands] == [4, 6, 4]
    assert [span.cause for span in stands] == [Cause.PREEMPTED, Cause.NODE_FAILED, None]
    assert (second.preemptions, second.total_ms(MISSING)) == (2, 700_000)


def test_nodes_that_outlive_the_first_group_are_one_span() -> None:
    head, first, second = group_timelines(bill(group_submission(), *group_events()))

    assert spans(head) == [
        (WAITING, 0, 60),
        (RUNNING, 60, 3000),
        (MISSING, 3000, 3400),
        (RUNNING, 3400, 5000),
    ]
    assert [span.attempt for span in head.spans] == [1, 1, 2, 2]
    assert head.preemptions == 1
    assert spans(first) == [(WAITING, 0, 60), (RUNNING, 60, 5000)]
    for group in (first, second):
        last = group.spans[-1]
        assert (last.attempt, last.last_attempt, last.is_open) == (1, 2, True)


def test_costs_of_groups_add_up_to_the_bill() -> None:
    account = bill(group_submission(), *group_events())
    head, first, second = group_timelines(account)

    assert sum(group.micros for group in (head, first, second)) == account.micros.total
    assert head.micros == 1000 * 2 * (2940 + 1600)
    assert first.spans[-1].micros_per_hour == 3 * SPOT, "after the change of its price"
    assert first.micros == 1000 * (1 * 1540 + 3 * 3400)
    assert second.micros == 1000 * (4 * 800 + 6 * 800 + 4 * 2500)


def test_extended_bill_has_the_same_groups() -> None:
    events = (group_submission(), *group_events())

    extended = extend_bill(bill(*events, end_s=4000), at(5000))

    assert extended
    assert group_timelines(extended) == group_timelines(bill(*events))


def test_group_without_its_nodes_at_the_end_is_missing() -> None:
    *_, second = group_timelines(bill(*START, groups_ready(60), *group_lost(100, 2), end_s=160))

    last = second.spans[-1]
    assert (last.state, last.is_open, last.ms) == (MISSING, True, 60_000)
    assert (last.placed, last.micros, last.micros_per_hour) == (None, 0, 0)


def test_group_is_still_missing_after_a_loss_of_the_first() -> None:
    events = (
        *(groups_ready(60), *group_lost(100, 2), lost(200, cause=Cause.PREEMPTED)),
        *(groups_ready(200, attempt=2, absent=(0, 2)), *group_replaced(300, 2, attempt=2)),
    )

    head, _, second = group_timelines(bill(*START, *events, end_s=400))

    assert spans(second)[2:] == [(MISSING, 100, 300), (RUNNING, 300, 400)]
    assert [(span.attempt, span.last_attempt) for span in second.spans[2:]] == [(1, 2), (2, 2)]
    assert spans(head)[2:] == [(MISSING, 200, 400)]


def test_launch_after_a_pause_provisions_its_groups() -> None:
    events = (
        *(groups_ready(60), lost(200, cause=Cause.PAUSED)),
        *(launched(300, launch=2), groups_ready(400, attempt=2, absent=(2,))),
    )

    head, _, second = group_timelines(bill(*START, *events, end_s=500))

    assert spans(second) == [
        (WAITING, 0, 60),
        (RUNNING, 60, 200),
        (WAITING, 200, 400),
        (PROVISIONING, 400, 500),
    ]
    assert [span.cause for span in (head.spans[1], second.spans[1])] == [Cause.PAUSED] * 2
    assert (head.preemptions, second.preemptions) == (0, 0)


def test_group_whose_program_has_ended_is_not_missing() -> None:
    events = (groups_ready(60), *group_lost(100, 2, cause=Cause.ENDED), finished(160))

    head, _, second = group_timelines(bill(*START, *events))

    assert spans(second) == [(WAITING, 0, 60), (RUNNING, 60, 100)]
    assert spans(head) == [(WAITING, 0, 60), (RUNNING, 60, 160)]
    assert (head.spans[-1].is_open, head.spans[-1].cause, second.preemptions) == (False, None, 0)


def test_drill_is_no_preemption_of_a_group() -> None:
    drill = [replace(event, drill=True) for event in group_lost(100, 2)]

    *_, second = group_timelines(bill(*START, groups_ready(60), *drill, end_s=160))

    assert (second.preemptions, second.spans[1].is_drill) == (0, True)


def test_restarts_of_ranks_do_not_divide_a_stay() -> None:
    events = (groups_ready(60), training(80), restarted(100), training(120))

    *_, second = group_timelines(bill(*START, *events, end_s=160))

    assert spans(second) == [(WAITING, 0, 60), (RUNNING, 60, 160)]


def test_job_without_groups_has_no_timelines() -> None:
    assert group_timelines(bill(submitted(), launched(1), ready(2))) == ()
    assert group_timelines(bill(*START)) == ()

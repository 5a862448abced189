"""Single nodes that are lost and replaced while the other nodes of a placement keep running."""

from __future__ import annotations

from dataclasses import replace

import pytest
from holdfast.domain.events import CapacityLost, Cause, Event, NodeLost, NodeReplaced, NodesReady
from holdfast.domain.jobfile.limits import Limits
from holdfast.domain.jobs.guards import ms_until_trip, trip
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import fold
from holdfast.domain.jobs.observation import LaunchStatus, Observation, Placement
from holdfast.domain.jobs.reconcile import ReconcilePlan, decide
from support.events import (
    SPOT,
    at,
    launched,
    lost,
    node_change,
    node_lost,
    node_replaced,
    noticed,
    pausing,
    placement,
    ready,
    restarted,
    submitted,
    training,
)

NOW = at(60)
TRAINS = (submitted(), launched(), replace(ready(10, micros=2 * SPOT), nodes=2), training(12))
WAITS = "node 1 was lost; the others wait for its replacement"


def job(*events: Event) -> Job:
    return fold("job-1", (*TRAINS, *events))


def seen(*placements: Placement, status: LaunchStatus = LaunchStatus.UP) -> Observation:
    return Observation(
        status=status, since=at(50), placements=len(placements), recent_placements=placements
    )


def decided(events: tuple[Event, ...], observation: Observation) -> list[tuple[type[Event], float]]:
    """The recorded events and their times in seconds; a second observation records nothing."""
    record = decide(job(*events), observation, NOW).record
    assert decide(job(*events, *record), observation, NOW) == ReconcilePlan()
    return [(type(event), (event.at - at(0)).total_seconds()) for event in record]


def test_each_change_is_recorded_once_and_in_order() -> None:
    changes = (node_change(20, Cause.PREEMPTED), node_change(23), node_change(30, Cause.PREEMPTED))
    nodes = placement(10)

    first = decided((), seen(replace(nodes, node_changes=changes)))
    more = (*changes, node_change(33))
    known = (node_lost(20), node_replaced(23), node_lost(30))
    rest = decided(known, seen(replace(nodes, node_changes=more)))

    assert first == [(NodeLost, 20), (NodeReplaced, 23), (NodeLost, 30)]
    assert rest == [(NodeReplaced, 33)]


def test_changes_precede_the_loss_and_the_next_placement() -> None:
    late = node_change(41, Cause.PREEMPTED)
    changes = (node_change(20, Cause.PREEMPTED), node_change(23), late)
    gone = replace(placement(10, 40), node_changes=changes)
    again = replace(placement(45), node_changes=(node_change(47, Cause.NODE_FAILED),))

    recorded = decided((), seen(gone, again))

    assert recorded == [
        (NodeLost, 20),
        (NodeReplaced, 23),
        (CapacityLost, 40),
        (NodesReady, 45),
        (NodeLost, 47),
    ]


def test_change_of_the_next_placement_has_its_attempt_and_price() -> None:
    again = replace(placement(45), node_changes=(node_change(47, Cause.PREEMPTED, node=3),))

    *_, change = decide(job(), seen(placement(10, 40), again), NOW).record

    assert change == node_lost(47, attempt=2, node=3)


def test_notice_explains_the_first_loss_only() -> None:
    changes = tuple(node_change(s, Cause.NODE_FAILED, node=n) for n, s in enumerate((20, 30)))
    gone = replace(placement(10, 40, cause=Cause.NODE_FAILED), node_changes=changes)

    record = decide(job(noticed(15)), seen(gone, status=LaunchStatus.WAITING), NOW).record

    causes = [event.cause for event in record if isinstance(event, NodeLost | CapacityLost)]
    assert causes == [Cause.PREEMPTED, Cause.NODE_FAILED, Cause.NODE_FAILED]
    assert job(noticed(15), node_lost(20)).noticed == ()


def test_pausing_job_records_a_change_and_keeps_its_reason() -> None:
    pause = pausing(15, reason="maintenance")
    nodes = replace(placement(10), node_changes=(node_change(20, Cause.PREEMPTED), node_change(22)))

    plan = decide(job(pause), seen(nodes), NOW)
    after = job(pause, *plan.record)

    assert [type(event) for event in plan.record] == [NodeLost, NodeReplaced]
    assert (after.state, after.detail, after.preemptions) == (State.PAUSING, "maintenance", 1)


def test_loss_and_replacement_change_detail_and_count_not_state() -> None:
    missing, whole = job(node_lost(20)), job(node_lost(20), node_replaced(23))

    assert (missing.state, missing.detail, missing.preemptions) == (State.TRAINING, WAITS, 1)
    assert (whole.state, whole.detail, whole.preemptions) == (State.TRAINING, "", 1)
    assert (missing.lost_nodes, whole.lost_nodes, whole.node_changes) == ((1,), (), 2)


def test_detail_names_all_lost_nodes() -> None:
    two = job(node_lost(20), node_lost(21, node=0, nodes=0, micros=0))
    both = "nodes 0 and 1 were lost; the others wait for their replacement"

    assert (two.detail, two.preemptions) == (both, 2)
    assert fold("job-1", (*TRAINS, node_lost(20), restarted(21))).detail.startswith("the ranks")


def test_replacement_keeps_the_report_of_a_restart() -> None:
    result = job(node_lost(20), restarted(21), node_replaced(23))

    assert result.detail == "the ranks start again: rank 1 was killed"


def test_loss_by_the_program_is_no_preemption() -> None:
    assert job(node_lost(20, cause=Cause.USER_ERROR)).preemptions == 0


@pytest.mark.parametrize(
    ("events", "count"),
    [
        ((node_lost(20), lost(30)), 1),
        ((node_lost(20), node_replaced(22), lost(30)), 2),
        ((node_lost(20, cause=Cause.LAUNCHER_RESTARTED), lost(30)), 1),
        ((node_lost(20), lost(30, cause=Cause.USER_ERROR)), 1),
        ((node_lost(20), lost(30), ready(40, attempt=2), lost(50, attempt=2)), 2),
    ],
)
def test_attempt_lost_with_a_missing_node_counts_once(
    events: tuple[Event, ...], count: int
) -> None:
    result = job(*events)

    assert (result.preemptions, result.lost_nodes, result.preempted_nodes) == (count, (), ())


def test_counter_of_changes_starts_again_with_each_placement() -> None:
    result = job(node_lost(20), node_replaced(22), lost(30), ready(40, attempt=2))

    assert result.node_changes == 0


def test_missing_node_costs_nothing_and_changes_the_rate() -> None:
    missing, whole = job(node_lost(20)), job(node_lost(20), node_replaced(30, micros=3 * SPOT))

    assert missing.account.micros_per_hour == SPOT
    assert missing.account.paid_micros_by(at(30)) == 2 * 10_000 + 10_000
    assert whole.account.paid_micros_by(at(40)) == 2 * 10_000 + 10_000 + 3 * 10_000
    # The next attempt pays for all nodes.
    assert missing.micros_per_hour == 2 * SPOT


def test_guards_extrapolate_with_the_rate_of_running_nodes() -> None:
    limits = Limits(max_cost_usd=1, max_hourly_cost_usd=4)
    micros_left = 1_000_000 - 2 * 10_000

    missing, whole = job(node_lost(20)), job(node_lost(20), node_replaced(20, micros=2 * SPOT))

    assert ms_until_trip(missing, limits, at(20)) == micros_left - 120_000
    assert ms_until_trip(whole, limits, at(20)) == micros_left // 2 - 120_000
    dearer = job(node_lost(20), node_replaced(22, micros=2 * SPOT))
    assert trip(dearer, limits, at(23)) is not None
    assert trip(missing, limits, at(23)) is None

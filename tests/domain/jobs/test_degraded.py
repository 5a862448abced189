"""A job trains on fewer nodes while the ranks of missing ones run on others, in any order of reports."""

from __future__ import annotations

import itertools

import pytest
from holdfast.domain.events import Event, Guard
from holdfast.domain.jobs.drills import with_drill_mark
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import advance, fold
from support.events import (
    SPOT,
    drill_requested,
    finished,
    launched,
    lost,
    node_lost,
    node_replaced,
    paused,
    pausing,
    ready,
    replaced,
    restarted,
    submitted,
    training,
    tripped,
)

NODES = 3
BEGIN = (submitted(nodes=(2, NODES)), launched())
TRAINS = (*BEGIN, ready(10, micros=NODES * SPOT, nodes=NODES), training(12))
GONE = node_lost(20, nodes=2, micros=2 * SPOT)
BACK = node_replaced(60, nodes=NODES, micros=NODES * SPOT)
HOSTED = replaced(23, step=5, hosted=(1,))
MOVED = replaced(70, step=9)
ON_TWO = "training on 2 of 3 nodes: the ranks of node 1 run on another node"


def job(*events: Event) -> Job:
    return fold("job-1", (*TRAINS, *events))


@pytest.mark.parametrize("events", [*itertools.permutations((GONE, HOSTED))])
def test_loss_and_report_in_either_order_give_one_state(events: tuple[Event, ...]) -> None:
    result = job(*events)

    assert (result.state, result.detail) == (State.DEGRADED, ON_TWO)
    assert (result.lost_nodes, result.hosted_nodes, result.awaited_nodes) == ((1,), (1,), ())
    assert (result.nodes_in_training, result.step, result.preemptions) == (2, 5, 1)
    assert result.is_training


def test_job_stays_degraded_until_the_ranks_have_moved() -> None:
    back, moved = job(GONE, HOSTED, BACK), job(GONE, HOSTED, BACK, MOVED)

    assert (back.state, back.detail, back.lost_nodes) == (State.DEGRADED, ON_TWO, ())
    assert (moved.state, moved.detail, moved.hosted_nodes) == (State.TRAINING, "", ())
    assert moved == job(HOSTED, GONE, BACK, MOVED) == job(GONE, HOSTED, MOVED, BACK)
    assert (job(GONE, HOSTED, MOVED).state, job(GONE, HOSTED, MOVED).detail) == (State.TRAINING, "")


def test_replacement_of_a_rank_keeps_missing_nodes_missing() -> None:
    again = job(GONE, HOSTED, replaced(30, step=7, ranks=(0,), hosted=(1,)))

    assert (again.state, again.detail, again.step) == (State.DEGRADED, ON_TWO, 7)


def test_detail_counts_and_names_all_missing_nodes() -> None:
    both = job(GONE, HOSTED, node_lost(30, node=2, nodes=1), replaced(33, hosted=(2, 1, 1)))

    text = "training on 1 of 3 nodes: the ranks of nodes 1 and 2 run on other nodes"
    assert (both.state, both.detail, both.hosted_nodes) == (State.DEGRADED, text, (1, 2))
    assert job(GONE, HOSTED, replaced(33, hosted=(2,))).hosted_nodes == (2,)


def test_lost_nodes_are_awaited_only_below_the_minimum() -> None:
    one, two = job(GONE), job(GONE, HOSTED, node_lost(30, node=2, nodes=1))

    assert one.detail == "node 1 was lost; its ranks move to another node"
    waits = "node 2 was lost; the others wait for its replacement"
    assert two.detail == f"{waits}; the ranks of node 1 run on another node"
    assert (two.state, two.awaited_nodes, two.counted_nodes) == (State.DEGRADED, (2,), (2,))
    fixed = fold("job-1", (submitted(nodes=(None, 3)), *TRAINS[1:], GONE))
    assert fixed.detail == "node 1 was lost; the others wait for its replacement"


def test_restart_of_ranks_leads_back_to_degraded() -> None:
    starts = job(GONE, HOSTED, restarted(30))
    again = advance(starts, training(40, step=5))

    assert (starts.state, starts.hosted_nodes) == (State.STARTING, (1,))
    assert (again.state, again.detail) == (State.DEGRADED, ON_TWO)


@pytest.mark.parametrize(
    ("event", "state"),
    [
        (lost(30), State.RECOVERING),
        (finished(30), State.ENDED),
        (pausing(30), State.PAUSING),
        (tripped(30, Guard.MAX_FAILURES), State.STOPPING),
    ],
)
def test_degraded_job_ends_like_a_training_job(event: Event, state: State) -> None:
    assert job(GONE, HOSTED, event).state is state
    assert job(event).state is state


@pytest.mark.parametrize(
    "events",
    [
        (lost(30),),
        (lost(30), ready(40, attempt=2, nodes=NODES)),
        (finished(30),),
        (pausing(30), lost(31), paused(32)),
    ],
)
def test_end_of_the_nodes_ends_hosting(events: tuple[Event, ...]) -> None:
    result = job(GONE, HOSTED, *events)

    assert (result.hosted_nodes, result.lost_nodes) == ((), ())


def test_next_attempt_trains_on_all_nodes() -> None:
    again = job(GONE, HOSTED, lost(30), ready(40, attempt=2, nodes=NODES), training(42, attempt=2))

    assert (again.state, again.detail) == (State.TRAINING, "")


def test_report_of_an_earlier_attempt_changes_nothing() -> None:
    again = (lost(30), ready(40, attempt=2, nodes=NODES), training(42, attempt=2))

    assert job(*again, HOSTED).state is State.TRAINING
    assert job(*again, HOSTED).hosted_nodes == ()


def test_reports_before_the_nodes_are_known_count() -> None:
    early = fold("job-1", (*BEGIN, training(12), HOSTED))
    placed = advance(early, ready(10, nodes=NODES))

    assert (early.state, early.hosted_nodes) == (State.PROVISIONING, ())
    assert (placed.state, placed.detail) == (State.DEGRADED, ON_TWO)


def test_leaving_job_keeps_its_reason() -> None:
    result = job(pausing(15, reason="maintenance"), GONE, HOSTED)

    assert (result.state, result.detail, result.hosted_nodes) == (
        State.PAUSING,
        "maintenance",
        (1,),
    )


def test_loss_after_training_continued_is_another_preemption() -> None:
    assert job(GONE, HOSTED, lost(90)).preemptions == 2
    assert job(GONE, lost(90)).preemptions == 1
    assert job(GONE, HOSTED, node_lost(30, node=2), lost(90)).preemptions == 2


def test_loss_after_a_drill_is_a_drill_only_if_it_was_awaited() -> None:
    drill = (drill_requested(18, node=1), node_lost(20, drill=True))

    assert with_drill_mark(job(*drill), lost(90)) == lost(90, drill=True)
    # The drill explains the node, not the loss of the others an hour later.
    assert with_drill_mark(job(*drill, HOSTED), lost(90)) == lost(90)

"""What the end of a placement means."""

from __future__ import annotations

import pytest
from holdfast.domain.events import Cause, Outcome
from holdfast.launchers.local.outcome import (
    LaunchEnded,
    NodeExit,
    PlacementLost,
    PlacementOutcome,
    RecallReason,
    classify_exit,
)

TAKEN = RecallReason(cancelled=False, detail="node 1 preempted without notice")
CANCELLED = RecallReason(cancelled=True, detail="cancelled on request")


def judged(
    *codes: int | None,
    nodes: int = 2,
    call: RecallReason | None = None,
    trained: bool = True,
    failures_left: int = 3,
) -> PlacementOutcome:
    """The verdict on nodes that ended with these codes, in the order of their numbers."""
    exits = [NodeExit(node, code) for node, code in enumerate(codes)]
    return classify_exit(
        exits, nodes=nodes, call=call, trained=trained, failures_left=failures_left
    )


@pytest.mark.parametrize(
    ("verdict", "expected"),
    [
        (judged(0, 0), LaunchEnded(Outcome.SUCCEEDED, 0, "")),
        (judged(0, 0, call=TAKEN), LaunchEnded(Outcome.SUCCEEDED, 0, "")),
        (judged(0, 0, call=CANCELLED), LaunchEnded(Outcome.CANCELLED, None, CANCELLED.detail)),
        (judged(0, call=TAKEN), PlacementLost(Cause.PREEMPTED, TAKEN.detail)),
        (judged(75, 75, call=TAKEN), PlacementLost(Cause.PREEMPTED, TAKEN.detail)),
        (judged(1, 1, call=TAKEN), PlacementLost(Cause.PREEMPTED, TAKEN.detail)),
        (judged(None), PlacementLost(Cause.NODE_FAILED, "node 0 was lost")),
        (judged(0, 1), PlacementLost(Cause.USER_ERROR, "node 1 exited with 1")),
        (judged(75, 1), PlacementLost(Cause.USER_ERROR, "node 1 exited with 1")),
        (judged(1, failures_left=1), LaunchEnded(Outcome.FAILED, 1, "node 0 exited with 1")),
        (judged(1, trained=False), LaunchEnded(Outcome.FAILED, 1, "node 0 exited with 1")),
        (judged(2), LaunchEnded(Outcome.FAILED, 2, "node 0 exited with 2")),
        (judged(78), LaunchEnded(Outcome.FAILED, 78, "node 0 exited with 78")),
        (
            judged(None, trained=False, failures_left=1),
            PlacementLost(Cause.NODE_FAILED, "node 0 was lost"),
        ),
    ],
)
def test_the_first_true_reason_counts(
    verdict: PlacementOutcome, expected: PlacementOutcome
) -> None:
    assert verdict == expected


def test_leaving_without_a_notice_is_no_preemption() -> None:
    """Only a notice proves a reclaim: a signal from anybody else would spoil the time between failures."""
    decision = judged(75, 75)

    assert isinstance(decision, PlacementLost)
    assert decision.cause is Cause.NODE_FAILED


def test_failure_detail_includes_error_of_the_program() -> None:
    failure = NodeExit(0, 1, "ModuleNotFoundError: No module named 'foo'")

    decision = classify_exit([failure], nodes=1, call=None, trained=False, failures_left=3)

    assert decision.detail == "node 0 exited with 1: ModuleNotFoundError: No module named 'foo'"

"""Classification of the exit codes of a placement's nodes."""

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

PREEMPTED = RecallReason(cancelled=False, detail="node 1 preempted without notice")
CANCELLED = RecallReason(cancelled=True, detail="cancelled on request")


def classified(
    *codes: int | None,
    nodes: int = 2,
    call: RecallReason | None = None,
    trained: bool = True,
    failures_left: int = 3,
) -> PlacementOutcome:
    """Classify nodes that exited with these codes, in the order of their numbers."""
    exits = [NodeExit(node, code) for node, code in enumerate(codes)]
    return classify_exit(
        exits, nodes=nodes, call=call, trained=trained, failures_left=failures_left
    )


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (classified(0, 0), LaunchEnded(Outcome.SUCCEEDED, 0, "")),
        (classified(0, 0, call=PREEMPTED), LaunchEnded(Outcome.SUCCEEDED, 0, "")),
        (classified(0, 0, call=CANCELLED), LaunchEnded(Outcome.CANCELLED, None, CANCELLED.detail)),
        (classified(0, call=PREEMPTED), PlacementLost(Cause.PREEMPTED, PREEMPTED.detail)),
        (classified(75, 75, call=PREEMPTED), PlacementLost(Cause.PREEMPTED, PREEMPTED.detail)),
        (classified(1, 1, call=PREEMPTED), PlacementLost(Cause.PREEMPTED, PREEMPTED.detail)),
        (classified(None), PlacementLost(Cause.NODE_FAILED, "node 0 was lost")),
        (classified(0, 1), PlacementLost(Cause.USER_ERROR, "node 1 exited with 1")),
        (classified(75, 1), PlacementLost(Cause.USER_ERROR, "node 1 exited with 1")),
        (classified(1, failures_left=1), LaunchEnded(Outcome.FAILED, 1, "node 0 exited with 1")),
        (classified(1, trained=False), LaunchEnded(Outcome.FAILED, 1, "node 0 exited with 1")),
        (classified(2), LaunchEnded(Outcome.FAILED, 2, "node 0 exited with 2")),
        (classified(78), LaunchEnded(Outcome.FAILED, 78, "node 0 exited with 78")),
        (
            classified(None, trained=False, failures_left=1),
            PlacementLost(Cause.NODE_FAILED, "node 0 was lost"),
        ),
    ],
)
def test_first_matching_rule_determines_the_outcome(
    outcome: PlacementOutcome, expected: PlacementOutcome
) -> None:
    assert outcome == expected


def test_exit_as_preempted_without_notice_is_a_node_failure() -> None:
    """Only a notice proves a reclaim; other signals would distort the time between failures."""
    decision = classified(75, 75)

    assert isinstance(decision, PlacementLost)
    assert decision.cause is Cause.NODE_FAILED


def test_failure_detail_includes_error_of_the_program() -> None:
    failure = NodeExit(0, 1, "ModuleNotFoundError: No module named 'foo'")

    decision = classify_exit([failure], nodes=1, call=None, trained=False, failures_left=3)

    assert decision.detail == "node 0 exited with 1: ModuleNotFoundError: No module named 'foo'"

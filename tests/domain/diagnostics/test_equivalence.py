"""A comparison of two runs lists the compared values, and holds only if all are equal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from holdfast.domain.diagnostics.equivalence import LoggedSteps, compare_runs, comparison_refusal
from holdfast.domain.events import Event
from holdfast.domain.jobs.lifecycle import fold
from support.events import (
    at,
    finished,
    launched,
    lost,
    node_lost,
    node_replaced,
    ready,
    saved,
    submitted,
    training,
)

COMPARED = LoggedSteps(batches=40, other_batches=0, values=20, other_values=0)
UNINTERRUPTED: list[Event] = [submitted(), launched(1), ready(2), training(3), saved(9, step=20), finished(10)]  # fmt: skip
PREEMPTED: list[Event] = [
    submitted(), launched(1), ready(2), training(3), lost(5), ready(6, attempt=2),
    training(7, attempt=2), saved(9, step=20, attempt=2), finished(10),
]  # fmt: skip


def proof(
    compared: LoggedSteps = COMPARED,
    mine: list[Event] = PREEMPTED,
    other: list[Event] = UNINTERRUPTED,
) -> Any:
    return compare_runs(
        fold("j2", mine), mine, other, compared, at(20), against="j1", by="ada", version="0.1.0"
    )


def test_preempted_run_with_equal_result_is_proven() -> None:
    event = proof()

    assert event.is_equivalent
    assert (event.steps, event.preemptions, event.against, event.by) == (20, 1, "j1", "ada")
    assert event.versions == {"holdfast": "0.1.0"}
    assert event.explanation == (
        "preempted once; after 20 steps its weights are bit-identical to those of job j1; all 40 batches are identical"
    )
    assert proof(replace(COMPARED, batches=0)).explanation.endswith(
        "batches of each step were not recorded"
    )


def test_nodes_replaced_alone_are_part_of_the_proof() -> None:
    events = [
        *(submitted(), launched(1), ready(2), training(3)),
        *(node_lost(4), node_replaced(5), node_lost(6), node_replaced(7)),
        *(saved(9, step=20), finished(10)),
    ]

    event = proof(mine=events)

    assert (event.is_equivalent, event.preemptions, event.replaced_nodes) == (True, 2, 2)
    assert event.explanation.startswith(
        "preempted 2 times, 2 nodes replaced while the others waited; after 20 steps"
    )
    assert proof(mine=events[:6] + events[8:]).explanation.startswith(
        "preempted once, a node replaced while the others waited; after"
    )


def changed(**fields: Any) -> list[Event]:
    """The other run, with a different last checkpoint."""
    *begin, save, end = UNINTERRUPTED
    return [*begin, replace(save, **fields), end]


@pytest.mark.parametrize(
    ("event", "why"),
    [
        (proof(replace(COMPARED, other_batches=3)), "3 of 40 batches differ"),
        (proof(replace(COMPARED, other_values=1)), "1 of 20 logged values differ"),
        (proof(other=changed(weights_sha256="bb")), "the weights differ"),
        (proof(mine=UNINTERRUPTED), "the run was not preempted"),
        (
            proof(mine=[e for e in PREEMPTED if type(e).__name__ != "CheckpointCommitted"]),
            "the weights differ; no weights were saved",
        ),
    ],
)
def test_any_difference_is_named_and_prevents_a_proof(event: Any, why: str) -> None:
    assert not event.is_equivalent
    assert event.explanation == why


def test_incomparable_runs_are_refused() -> None:
    uninterrupted, preempted = fold("j1", UNINTERRUPTED), fold("j2", PREEMPTED)

    assert comparison_refusal(preempted, uninterrupted) is None
    assert comparison_refusal(preempted, preempted) == "both names refer to one job; name a second run of it without preemptions"  # fmt: skip
    assert "j2 was also preempted" in str(comparison_refusal(uninterrupted, preempted))
    assert "j1 is training" in str(comparison_refusal(preempted, fold("j1", UNINTERRUPTED[:4])))

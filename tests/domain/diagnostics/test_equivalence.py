"""A comparison of two runs lists the compared values, and holds only if all are equal."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from holdfast.domain.diagnostics.equivalence import LoggedSteps, compare_runs, comparison_refusal
from holdfast.domain.events import Event
from holdfast.domain.jobs.lifecycle import fold
from support.events import at, finished, launched, lost, ready, saved, submitted, training

HEARD = LoggedSteps(batches=40, other_batches=0, values=20, other_values=0)
STRAIGHT: list[Event] = [submitted(), launched(1), ready(2), training(3), saved(9, step=20), finished(10)]  # fmt: skip
TAKEN: list[Event] = [
    submitted(), launched(1), ready(2), training(3), lost(5), ready(6, attempt=2),
    training(7, attempt=2), saved(9, step=20, attempt=2), finished(10),
]  # fmt: skip


def proof(
    heard: LoggedSteps = HEARD, mine: list[Event] = TAKEN, other: list[Event] = STRAIGHT
) -> Any:
    return compare_runs(
        fold("j2", mine), mine, other, heard, at(20), against="j1", by="ada", version="0.1.0"
    )


def test_a_run_that_was_taken_and_came_to_the_same_is_proven() -> None:
    fact = proof()

    assert fact.is_equivalent
    assert (fact.steps, fact.preemptions, fact.against, fact.by) == (20, 1, "j1", "ada")
    assert fact.versions == {"holdfast": "0.1.0"}
    assert fact.explanation == (
        "preempted once; after 20 steps its weights are bit-identical to those of job j1; all 40 batches are identical"
    )
    assert proof(replace(HEARD, batches=0)).explanation.endswith(
        "batches of each step were not recorded"
    )


def changed(**words: Any) -> list[Event]:
    """The other run, whose last checkpoint is another."""
    *begin, save, end = STRAIGHT
    return [*begin, replace(save, **words), end]


@pytest.mark.parametrize(
    ("fact", "why"),
    [
        (proof(replace(HEARD, other_batches=3)), "3 of 40 batches differ"),
        (proof(replace(HEARD, other_values=1)), "1 of 20 logged values differ"),
        (proof(other=changed(weights_sha256="bb")), "the weights differ"),
        (proof(mine=STRAIGHT), "the run was not preempted"),
        (
            proof(mine=[e for e in TAKEN if type(e).__name__ != "CheckpointCommitted"]),
            "the weights differ; no weights were saved",
        ),
    ],
)
def test_any_difference_is_named_and_prevents_a_proof(fact: Any, why: str) -> None:
    assert not fact.is_equivalent
    assert fact.explanation == why


def test_only_runs_that_can_be_compared_are() -> None:
    straight, taken = fold("j1", STRAIGHT), fold("j2", TAKEN)

    assert comparison_refusal(taken, straight) is None
    assert comparison_refusal(taken, taken) == "both names refer to one job; name a second run of it without preemptions"  # fmt: skip
    assert "j2 was also preempted" in str(comparison_refusal(straight, taken))
    assert "j1 is training" in str(comparison_refusal(taken, fold("j1", STRAIGHT[:4])))

"""Every save attempt and its outcome, derived from events alone."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import pytest
from holdfast.domain.checkpoints.history import (
    CheckpointHistory,
    Fate,
    ResumePoint,
    UnusableCheckpoint,
)
from holdfast.domain.events import CheckpointsRemoved, Event, Removal
from holdfast.domain.events.values import Metric, PassedOver
from hypothesis import given
from hypothesis import strategies as st
from support.events import at, failing, finished, left, lost, restoring, saved, training


def recorded(*events: Event) -> CheckpointHistory:
    saves = CheckpointHistory()
    for seq, event in enumerate(events, 1):
        saves.apply(seq, event)
    return saves


def outcomes(saves: CheckpointHistory) -> dict[int, Fate]:
    """Outcomes by step, newest first."""
    return {save.step: save.fate for save in saves.attempts()}


def removed(*names: str, seconds: float = 100, why: Removal = Removal.SUPERSEDED) -> CheckpointsRemoved:  # fmt: skip
    return CheckpointsRemoved(at=at(seconds), checkpoints=names, removal=why, size_bytes=1)


def test_save_attempt_holds_all_reported_details() -> None:
    metrics = {"loss": Metric(value=0.5, step=9)}
    event = saved(10, step=10, name="a", durable_s=12, stall_ms=30, metrics=metrics)

    [save] = recorded(training(), event).attempts()

    assert (save.name, save.step, save.attempt, save.size_bytes) == ("a", 10, 1, 1)
    assert (save.snapshot_at, save.at, save.stall_ms) == (at(10), at(12), 30)
    assert (save.metrics, save.weights_sha256, save.fate) == (metrics, "00", Fate.COMPLETE)


def test_snapshot_in_memory_is_no_checkpoint_of_the_store() -> None:
    held = replace(training(40, step=25), restored_from="a", held_at=at(30))

    saves = recorded(training(), saved(10, step=10, name="a"), saved(30, step=30), held)

    assert saves.attempts()[1].restored_by == ()
    assert outcomes(saves) == {30: Fate.COMPLETE, 10: Fate.COMPLETE}


def test_save_attempts_are_newest_first_and_include_failures() -> None:
    saves = recorded(training(), saved(10, step=10), failing(20, step=20), saved(30, step=30))

    assert outcomes(saves) == {30: Fate.COMPLETE, 20: Fate.FAILED, 10: Fate.COMPLETE}
    assert [save.failure for save in saves.attempts()] == ["", "no room", ""]


def test_failure_without_detail_is_a_failure() -> None:
    assert outcomes(recorded(failing(20, step=20, detail=""))) == {20: Fate.FAILED}


def test_checkpoint_names_the_attempts_that_restored_it() -> None:
    again = [replace(training(n, attempt=n, step=10), restored_from="a") for n in (2, 3)]

    saves = recorded(training(), saved(10, step=10, name="a"), *again)

    assert saves.attempts()[0].restored_by == (2, 3)


def test_unusable_checkpoint_is_damaged_with_its_reason() -> None:
    over = (PassedOver(checkpoint="b", reason="rank-0/000000 is missing"),)
    resumed = replace(training(30, attempt=2, step=10), restored_from="a", passed_over=over)

    saves = recorded(
        training(), saved(10, step=10, name="a"), saved(20, step=20, name="b"), resumed
    )

    assert outcomes(saves) == {20: Fate.DAMAGED, 10: Fate.COMPLETE}
    assert saves.attempts()[0].passed_over == (UnusableCheckpoint(2, "rank-0/000000 is missing"),)


def test_steps_beyond_a_later_start_are_abandoned() -> None:
    late = saved(50, step=25, name="zombie's")

    saves = recorded(
        training(), saved(10, step=10), saved(20, step=20), training(30, attempt=2, step=10), late
    )

    assert outcomes(saves) == {25: Fate.ABANDONED, 20: Fate.ABANDONED, 10: Fate.COMPLETE}
    assert saves.attempts()[0].abandoned_by == ResumePoint(2, 10)


def test_removed_checkpoint_keeps_reason_and_time() -> None:
    saves = recorded(
        saved(10, step=10, name="a"), saved(20, step=20, name="b"), removed("a", seconds=90)
    )

    [newer, older] = saves.attempts()
    assert (newer.fate, older.fate) == (Fate.COMPLETE, Fate.REMOVED)
    assert (older.removal, older.removed_at) == (Removal.SUPERSEDED, at(90))
    assert (newer.is_stored, older.is_stored) == (True, False)


def test_unreported_checkpoint_is_no_save_attempt() -> None:
    resumed = replace(training(attempt=2), restored_from="stranger")

    saves = recorded(removed("stranger"), resumed)

    assert saves.attempts() == []
    assert (saves.is_removed("stranger"), saves.is_removed("other")) == (True, False)


def test_fate_may_be_recorded_before_the_save() -> None:
    """The last report of a node arrives late, or in a spool that is found afterwards."""
    over = (PassedOver(checkpoint="b", reason="torn"),)
    resumed = replace(training(30, attempt=2, step=10), restored_from="a", passed_over=over)

    saves = recorded(
        resumed, removed("b"), saved(10, step=10, name="a"), saved(20, step=20, name="b")
    )

    [b, a] = saves.attempts()
    assert (a.fate, a.restored_by) == (Fate.COMPLETE, (2,))
    assert (b.fate, b.passed_over) == (Fate.REMOVED, (UnusableCheckpoint(2, "torn"),))


def test_pruned_checkpoints_are_still_known_as_removed() -> None:
    events = [saved(10, step=10, name="a"), saved(20, step=20, name="b"), failing(25, step=25)]
    saves = recorded(training(), *events, removed("a"))

    saves.prune()

    assert (
        [save.name for save in saves.attempts()] == [save.name for save in saves.stored()] == ["b"]
    )
    assert (saves.is_removed("a"), saves.find("a")) == (True, None)


def test_resume_uses_the_furthest_complete_checkpoint() -> None:
    events = [
        training(),
        saved(10, step=10, name="a"),
        saved(20, step=20, name="b"),
        training(30, attempt=2, step=10),
        saved(40, attempt=2, step=15, name="c"),
    ]

    newest = recorded(*events).newest()
    without = recorded(*events, removed("c")).newest()

    assert newest
    assert without
    assert (newest.name, without.name) == ("c", "a")
    assert recorded(training()).newest() is None


@pytest.mark.parametrize(
    ("events", "is_restoring"),
    [
        ([restoring()], True),
        ([restoring(), training()], False),
        ([restoring(), left(5, step=0)], False),
        ([restoring(), lost(5)], False),
        ([restoring(), lost(5), restoring(6, attempt=2)], True),
        ([lost(5), restoring()], False),  # Reported late, by a spool found afterwards.
        ([restoring(), lost(5), restoring(6, attempt=2), training(7, attempt=2)], False),
        ([restoring(), training(), restoring(8)], True),  # The same attempt after a restart.
        ([restoring(), finished(9)], False),
    ],
)
def test_restore_in_progress_is_derived_from_events(
    events: Iterable[Event], is_restoring: bool
) -> None:
    assert recorded(*events).is_restoring is is_restoring


STARTS = st.lists(st.tuples(st.integers(1, 6), st.integers(0, 9)), max_size=8)


@given(STARTS, st.integers(1, 6), st.integers(0, 9))
def test_checkpoint_is_abandoned_iff_cut_off_by_a_later_start(
    starts: list[tuple[int, int]], attempt: int, step: int
) -> None:
    """The store itself is read by the same rule: `Lineage.cut`."""
    begun = [training(n, attempt=a, step=s) for n, (a, s) in enumerate(starts)]

    [save] = recorded(*begun, saved(50, attempt=attempt, step=step)).attempts()

    is_cut = any(a > attempt and s < step for a, s in starts)
    assert (save.fate is Fate.ABANDONED) == is_cut
    if save.abandoned_by:
        assert (save.abandoned_by.attempt, save.abandoned_by.step) in starts

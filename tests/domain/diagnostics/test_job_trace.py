"""Spans of a job: complete once the event that ends them is known, nested, and the same after a restart."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from holdfast.domain.diagnostics.job_trace import JobTrace, TraceSpan
from holdfast.domain.events import Cause, Event, LeftReason, Moved, Outcome
from support.events import (
    at,
    denied,
    finished,
    launched,
    left,
    lost,
    node_lost,
    noticed,
    paused,
    ready,
    restarted,
    restoring,
    resumed,
    saved,
    submitted,
    training,
)

PREEMPTED_ONCE = (
    submitted(0),
    launched(5),
    denied(6),
    ready(10),
    restoring(12),
    training(13),
    saved(20, step=40, durable_s=22, stall_ms=500),
    noticed(30, step=80),
    left(31, step=90),
    lost(32),
    ready(50, attempt=2),
    restoring(52, attempt=2),
    training(54, attempt=2, step=40),
    left(60, attempt=2, step=100, reason=LeftReason.FINISHED, exit_code=0),
    finished(62),
)


def spans(*events: Event) -> list[TraceSpan]:
    trace = JobTrace()
    return [span for event in events for span in trace.add(event)]


def times(found: Sequence[TraceSpan]) -> list[tuple[str, str, float, float]]:
    """Name, parent, begin and end of each span, in seconds."""
    return [
        (
            span.name,
            span.parent,
            (span.begin - at(0)).total_seconds(),
            (span.end - at(0)).total_seconds(),
        )
        for span in found
    ]


def test_trace_of_a_preempted_job() -> None:
    assert times(spans(*PREEMPTED_ONCE)) == [
        ("queue", "job", 0, 5),
        ("provision", "launch-1", 5, 10),
        ("start", "attempt-1", 10, 12),
        ("restore", "attempt-1", 12, 13),
        ("save", "attempt-1", 19.5, 22),
        ("train", "attempt-1", 13, 31),
        ("release", "attempt-1", 31, 32),
        ("attempt", "launch-1", 10, 32),
        ("provision", "launch-1", 32, 50),
        ("start", "attempt-2", 50, 52),
        ("restore", "attempt-2", 52, 54),
        ("train", "attempt-2", 54, 60),
        ("release", "attempt-2", 60, 62),
        ("attempt", "launch-1", 50, 62),
        ("launch", "job", 5, 62),
        ("job", "", 0, 62),
    ]


def test_spans_say_what_happened() -> None:
    found = {(span.name, span.parent): span for span in spans(*PREEMPTED_ONCE)}

    first, job = found["attempt", "launch-1"], found["job", ""]
    attempts = [span for span in spans(*PREEMPTED_ONCE) if span.name == "attempt"]
    assert [(span.error, span.attributes.get("cause")) for span in attempts] == [
        ("preempted", "preempted"),
        ("", None),
    ]
    assert [note.name for note in attempts[0].notes] == ["preemption notice"]
    assert first.attributes["zone"] == "a"
    assert found["save", "attempt-1"].attributes["step"] == 40
    assert found["train", "attempt-1"].attributes["last_step"] == 90
    provisions = [span for span in spans(*PREEMPTED_ONCE) if span.name == "provision"]
    assert [note.name for note in provisions[0].notes] == ["no capacity"]
    assert (job.attributes["outcome"], job.error) == ("succeeded", "")


def test_spans_have_unique_keys_within_a_job() -> None:
    found = spans(*PREEMPTED_ONCE)

    assert len({span.key for span in found}) == len(found)
    assert {span.parent for span in found} <= {"", *(span.key for span in found)}


@pytest.mark.parametrize("known", range(1, len(PREEMPTED_ONCE)))
def test_spans_do_not_change_after_a_restart(known: int) -> None:
    trace = JobTrace()
    for event in PREEMPTED_ONCE[:known]:
        trace.add(event)

    later = [span for event in PREEMPTED_ONCE[known:] for span in trace.add(event)]

    whole = spans(*PREEMPTED_ONCE)
    assert later == whole[len(whole) - len(later) :]


def test_paused_job_has_two_launches() -> None:
    found = times(
        spans(
            submitted(0),
            launched(1),
            ready(2),
            lost(5, cause=Cause.PAUSED),
            paused(6),
            resumed(20),
            launched(21, launch=2),
            finished(22, outcome=Outcome.CANCELLED),
        )
    )

    assert found == [
        ("queue", "job", 0, 1),
        ("provision", "launch-1", 1, 2),
        ("start", "attempt-1", 2, 5),
        ("attempt", "launch-1", 2, 5),
        ("launch", "job", 1, 6),
        ("paused", "job", 6, 20),
        ("queue", "job", 20, 21),
        ("provision", "launch-2", 21, 22),
        ("launch", "job", 21, 22),
        ("job", "", 0, 22),
    ]


def test_move_ends_a_launch_without_an_error() -> None:
    found = spans(
        submitted(0),
        launched(1),
        ready(2),
        lost(5, cause=Cause.MOVED),
        Moved(at=at(6), launch=1),
        launched(7, launch=2),
    )

    assert [(span.name, span.error) for span in found if span.name in {"attempt", "launch"}] == [
        ("attempt", ""),
        ("launch", ""),
    ]


def test_failure_names_its_cause() -> None:
    found = spans(
        submitted(0),
        launched(1),
        ready(2),
        training(3),
        node_lost(4),
        restarted(5, step=7, detail="rank 1 was killed"),
        training(8, step=5),
        left(9, step=9, reason=LeftReason.FAILED, exit_code=1),
        finished(10, outcome=Outcome.FAILED),
    )

    assert [(span.name, span.error) for span in found if span.error] == [
        ("train", "rank 1 was killed"),
        ("train", "failed"),
        ("job", "failed"),
    ]


def test_late_reports_of_an_older_attempt_change_no_phase() -> None:
    found = spans(
        submitted(0),
        launched(1),
        ready(2),
        lost(9),
        ready(12, attempt=2),
        training(13, attempt=2),
        training(3),
        saved(5, step=4),
        left(8, step=6),
        left(20, attempt=2, step=9),
    )

    trained = [span for span in times(found) if span[0] in {"train", "save"}]
    assert trained == [("save", "attempt-1", 5, 5), ("train", "attempt-2", 13, 20)]


def test_end_before_a_beginning_is_no_negative_time() -> None:
    """The clock of a worker may be wrong."""
    [start] = [
        span
        for span in spans(submitted(0), launched(1), ready(10), restoring(4))
        if span.name == "start"
    ]

    assert start.begin == start.end == at(10)

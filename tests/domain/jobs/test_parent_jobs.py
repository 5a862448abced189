"""Jobs that can be continued, the response to a retry in each state, and its record."""

from __future__ import annotations

from dataclasses import replace

import pytest
from holdfast.domain.billing.bill import compute_bill
from holdfast.domain.checkpoints.history import CheckpointAttempt, CheckpointHistory
from holdfast.domain.diagnostics.timeline import timeline
from holdfast.domain.events import Cause, Event, Outcome, Submitted
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs.commands import parent_refusal, retry_refusal
from holdfast.domain.jobs.lifecycle import fold
from support.events import (
    at,
    finished,
    launched,
    lost,
    noticed,
    paused,
    pausing,
    ready,
    restarted,
    saved,
    submitted,
    training,
)

STORE = "s3://bucket/runs"
ASKED = submitted(checkpoint={"store": STORE})
LIVES = (ASKED, launched(), ready(10), training(20), saved(50, step=30))
FAILED = (*LIVES, finished(60, Outcome.FAILED, exit_code=1))


def newest(events: tuple[Event, ...]) -> CheckpointAttempt | None:
    saves = CheckpointHistory()
    for seq, event in enumerate(events, start=1):
        saves.apply(seq, event)
    return saves.newest()


def retry(*events: Event) -> str | None:
    return retry_refusal(fold("j1", events), newest(events))


def refusal_to_continue(*events: Event, store: str = STORE) -> str | None:
    submission = events[0]
    assert isinstance(submission, Submitted)
    spec = JobSpec.model_validate(submission.spec)
    return parent_refusal(fold("j1", events), spec, newest(events), store)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.CANCELLED])
def test_failed_or_cancelled_job_with_checkpoint_can_be_retried(outcome: Outcome) -> None:
    assert retry(*LIVES, finished(60, outcome)) is None


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ((ASKED,), "it is queued; only ended jobs can be retried"),
        (LIVES, "it is training; only ended jobs can be retried"),
        (
            (*LIVES, pausing(60)),
            "it is pausing; only ended jobs can be retried",
        ),
        (
            (*LIVES, pausing(60), lost(70, cause=Cause.PAUSED), paused(70)),
            "it is paused; resume it with: holdfast resume j1",
        ),
        (
            (*LIVES, finished(60)),
            "it succeeded; submit a copy with: holdfast clone j1",
        ),
        (
            (*LIVES[:4], finished(60, Outcome.FAILED, exit_code=1)),
            "it has no checkpoint to continue from; submit a copy with: holdfast clone j1",
        ),
    ],
)
def test_refused_retry_states_reason_and_alternative(events: tuple[Event, ...], why: str) -> None:
    assert retry(*events) == why


def test_succeeded_job_can_be_continued() -> None:
    assert refusal_to_continue(*LIVES, finished(60)) is None


def test_checkpoint_abandoned_by_later_attempt_is_unusable() -> None:
    """Its newest attempt started again at step 0, as the saved checkpoints were unreadable."""
    restarted = (*LIVES, lost(60), ready(70, attempt=2), training(80, attempt=2))

    assert refusal_to_continue(*restarted, finished(90, Outcome.FAILED, exit_code=1)) == (
        "job j1 has no checkpoint to continue from; remove from"
    )


def test_trailing_slash_does_not_change_a_store() -> None:
    assert refusal_to_continue(*FAILED, store=f"{STORE}/") is None
    assert refusal_to_continue(*FAILED, store=f"{STORE}-2") == (
        f"job j1 stores its checkpoints in {STORE}; set store to that"
    )


@pytest.mark.parametrize(
    ("origin", "step", "message"),
    [
        ("j0/step-30-e1-0a", 30, "resumed at step 30 from checkpoint step-30-e1-0a of job j0;"),
        ("step-40-e1-0b", 40, "resumed at step 40 from checkpoint step-40-e1-0b;"),
        (None, 0, "at step 0 without a checkpoint (no usable checkpoint of job j0);"),
    ],
)
def test_timeline_names_the_checkpoint_of_the_resume(
    origin: str | None, step: int, message: str
) -> None:
    first_event = submitted(checkpoint={"store": STORE, "from": "j0"})
    started = replace(training(20, step=step), restored_from=origin)
    events = (first_event, launched(), ready(10), started)

    items = timeline(fold("j1", events), events, compute_bill(events, {}, at(60)))

    texts = [sentence.text for sentence in items]
    assert 'Job "tiny-gpt" submitted to continue job j0.' in texts
    assert any(message in text for text in texts)


def test_timeline_tells_of_a_restart_from_memory() -> None:
    restart = replace(restarted(40, step=28, detail="node 2 was lost"), node_lost=True)
    resumed = replace(training(45, step=26), restored_from="step-26-e1-0a", held_at=at(39))
    events = (submitted(), launched(), ready(10), training(20), restart, resumed)

    items = timeline(fold("j1", events), events, compute_bill(events, {}, at(60)))

    texts = [sentence.text for sentence in items]
    assert "Ranks started again with a new node after step 28: node 2 was lost." in texts
    assert "Training resumed at step 26 from a snapshot in the memory of the nodes." in texts


def test_steps_of_the_parent_job_are_never_lost() -> None:
    """The nodes are preempted twice: before any save, and 20 steps after a checkpoint."""
    first_event = submitted(checkpoint={"store": STORE, "from": "j0"})
    first = (ready(10), training(20, step=300), noticed(50, step=310), lost(60))
    second = (ready(70, attempt=2), training(80, attempt=2, step=300))
    saves = (saved(110, attempt=2, step=330), noticed(130, attempt=2, step=350))
    events = (first_event, launched(), *first, *second, *saves, lost(140, attempt=2))

    account = compute_bill(events, {}, at(200))

    assert [item.first_step for item in account.attempts] == [300, 300]
    assert [item.lost_steps for item in account.attempts] == [10, 20]
    assert [item.ms.useful for item in account.attempts] == [0, 30_000]

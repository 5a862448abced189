"""Late events of an older attempt annotate the job, and never move it back."""

from __future__ import annotations

from holdfast.domain.events import Cause, Event, LeftReason
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import fold
from support.events import at, launched, left, lost, ready, submitted, training

SECOND = (submitted(), launched(), ready(10), training(20), lost(30), ready(40, attempt=2))
"""A job whose second attempt has nodes."""


def job(*events: Event) -> Job:
    return fold("job-1", events)


def failed(seconds: float, *, attempt: int, exit_code: int) -> Event:
    return left(seconds, attempt=attempt, step=0, reason=LeftReason.FAILED, exit_code=exit_code)


def test_late_start_of_older_attempt_starts_no_training() -> None:
    one = job(*SECOND, training(45, attempt=1, step=7))

    assert one.state is State.STARTING


def test_early_start_of_newer_attempt_waits_for_its_nodes() -> None:
    early = (submitted(), launched(), ready(10), training(20, attempt=2))

    assert job(*early).state is State.STARTING
    assert job(*early, lost(30), ready(40, attempt=2)).state is State.TRAINING


def test_late_start_of_older_attempt_keeps_newer_step() -> None:
    resumed = training(50, attempt=2, step=300)

    one = job(*SECOND, resumed, training(55, attempt=1, step=7, total=900))

    assert (one.state, one.started_attempt) == (State.TRAINING, 2)
    assert (one.step, one.total_steps, one.resumes) == (300, 1000, 1)


def test_late_exit_of_older_attempt_keeps_newer_exit() -> None:
    newer = failed(50, attempt=2, exit_code=78)

    one = job(*SECOND, newer, failed(55, attempt=1, exit_code=1))

    assert one.left_attempt == 2
    assert one.hopeless == "exit code 78: "


def test_late_exit_of_older_attempt_does_not_end_newer() -> None:
    newer = failed(50, attempt=2, exit_code=1)
    gone = lost(60, attempt=2, cause=Cause.USER_ERROR)

    one = job(*SECOND, newer, failed(55, attempt=1, exit_code=78), gone)

    assert one.hopeless == ""
    assert one.updated_at == at(60)

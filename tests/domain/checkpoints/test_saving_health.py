"""Checkpoint health of a job: guarantee of the store, save interval with reason, failures."""

from __future__ import annotations

from dataclasses import replace

import pytest
from holdfast.domain.checkpoints.history import SaveHealth
from holdfast.domain.events import CleanupFailed, Event, SavingFailed
from holdfast.domain.events.values import Interval
from holdfast.domain.jobs.job import Job, State
from holdfast.domain.jobs.lifecycle import fold
from holdfast_worker.protocol.policies import ConsistencyGuarantee, OnFailure
from support.events import (
    at,
    finished,
    launched,
    lost,
    ready,
    restoring,
    saved,
    submitted,
    training,
)

OFTEN = Interval(interval_s=600, stall_ms=300, durable_ms=8000, between_failures_s=6480, losses=1)
SELDOM = replace(OFTEN, interval_s=1200, losses=0)


def failing(
    seconds: float, *, attempt: int = 1, policy: OnFailure = OnFailure.STOP, safe_step: int = 1200
) -> SavingFailed:
    return SavingFailed(
        at=at(seconds),
        attempt=attempt,
        step=1500,
        failures=3,
        safe_step=safe_step,
        policy=policy,
        detail="403 Forbidden",
    )


def job(*events: Event) -> Job:
    return fold("job-1", [submitted(), launched(), ready(1), *events])


def test_saving_health_is_unknown_before_any_report() -> None:
    assert job().saving == SaveHealth()
    assert job(training(3), saved(5, step=10)).saving == SaveHealth()


def test_store_guarantee_is_the_last_reported_one() -> None:
    first = replace(restoring(2), guarantee=ConsistencyGuarantee.OVERWRITES)
    second = replace(restoring(9, attempt=2), guarantee=ConsistencyGuarantee.CONDITIONAL)

    one = job(first, restoring(3))
    two = job(first, lost(5), ready(8, attempt=2), second)

    assert one.saving.guarantee is ConsistencyGuarantee.OVERWRITES
    assert two.saving.guarantee is ConsistencyGuarantee.CONDITIONAL


def test_save_interval_is_that_of_the_newest_checkpoint() -> None:
    now = job(
        training(3),
        replace(saved(5, step=10), interval=SELDOM),
        replace(saved(9, step=20), interval=OFTEN),
    )

    assert now.saving.interval == OFTEN
    assert OFTEN.description == (
        "every 10 min: a checkpoint stalls training for 300 ms and is durable after 8 s; "
        "the estimated time between failures is 108 min, after 1 interrupted attempt so far"
    )
    assert SELDOM.description.endswith("after 0 interrupted attempts so far")


@pytest.mark.parametrize(
    ("policy", "safe_step", "message"),
    [
        (OnFailure.STOP, 1200, "the last durable step is 1,200; attempt 1 stopped"),
        (OnFailure.CONTINUE, 0, "none is durable; attempt 1 continues and retries"),
    ],
)
def test_job_that_cannot_save_has_a_warning(
    policy: OnFailure, safe_step: int, message: str
) -> None:
    now = job(training(3), failing(9, policy=policy, safe_step=safe_step))

    assert now.state is State.TRAINING
    assert now.warning == (f"3 consecutive checkpoints failed, and {message}: 403 Forbidden")


def test_saving_warning_lasts_until_any_attempt_saves() -> None:
    stopped = (training(3), failing(9), lost(10), ready(20, attempt=2), training(30, attempt=2))

    before = job(*stopped)
    after = job(*stopped, saved(40, attempt=2, step=1300))

    assert "attempt 1 stopped" in before.warning
    assert after.warning == ""


def test_saving_warning_joins_cleanup_warning_after_the_end() -> None:
    now = job(training(3), failing(9), finished(10), CleanupFailed(at=at(11), detail="disk b"))

    assert now.warning.startswith("nodes may still be billed: disk b; 3 consecutive checkpoints")

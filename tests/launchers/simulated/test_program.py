"""The simulated program behaves like the worker."""

from __future__ import annotations

import math
from dataclasses import replace

from holdfast.launchers.simulated.program import (
    AttemptConditions,
    Failure,
    SimulatedAttempt,
    SimulatedCheckpoint,
    SimulatedProgram,
    simulate_attempt,
)
from holdfast_worker.protocol.reports import ReportKind

K = ReportKind
# Nodes ready at 0, program started at 10, training from 15; snapshots at 25, 36, 47, 58 stall 1 s and upload in 4 s.
PROGRAM = SimulatedProgram(
    total_steps=40,
    step_s=1,
    setup_s=10,
    restore_s=5,
    checkpoint_every_steps=10,
    stall_s=1,
    upload_s=4,
    progress_every_steps=5,
    ranks_per_node=4,
)


def simulated(
    program: SimulatedProgram = PROGRAM,
    *,
    found: SimulatedCheckpoint | None = None,
    fails: bool = False,
    notice_s: float = math.inf,
    kill_s: float = math.inf,
) -> SimulatedAttempt:
    met = AttemptConditions(
        attempt=3,
        nodes=2,
        checkpoint=found,
        fails=fails,
        notice_s=notice_s,
        deadline_s=kill_s,
        kill_s=kill_s,
    )
    return simulate_attempt(program, met)


def reported(
    attempt: SimulatedAttempt, *kinds: ReportKind
) -> list[tuple[float, ReportKind, object]]:
    """Time, kind and step of the reports of these kinds; by default, of all but progress."""
    expected = kinds or set(ReportKind) - {K.PROGRESS}
    return [
        (report.at_s, report.kind, report.body.get("step"))
        for report in attempt.reports
        if report.kind in expected
    ]


def test_undisturbed_attempt_trains_saves_and_exits() -> None:
    attempt = simulated()

    assert (attempt.ended_s, attempt.exit_code) == (63, 0)
    assert reported(attempt) == [
        (10, K.RESTORE_STARTED, None),
        (15, K.TRAINING_STARTED, 0),
        (30, K.CHECKPOINT_COMMITTED, 10),
        (41, K.CHECKPOINT_COMMITTED, 20),
        (52, K.CHECKPOINT_COMMITTED, 30),
        (63, K.CHECKPOINT_COMMITTED, 40),
        (63, K.WORKER_LEFT, 40),
    ]
    assert [step for _, _, step in reported(attempt, K.PROGRESS)] == [
        1,
        5,
        10,
        15,
        20,
        25,
        30,
        35,
        40,
    ]


def test_attempt_resumes_from_the_found_checkpoint() -> None:
    attempt = simulated(found=SimulatedCheckpoint(30, "step-30"))
    started = next(report for report in attempt.reports if report.kind is K.TRAINING_STARTED)

    assert started.body["restored_from"] == "step-30"
    assert started.body["world_size"] == 8
    assert reported(attempt, K.TRAINING_STARTED, K.WORKER_LEFT) == [
        (15, K.TRAINING_STARTED, 30),
        (30, K.WORKER_LEFT, 40),
    ]


def test_notice_with_time_to_save_saves_the_last_step() -> None:
    attempt = simulated(notice_s=28.5, kill_s=60)

    assert (attempt.ended_s, attempt.exit_code) == (34, 75)
    assert attempt.checkpoint
    assert attempt.checkpoint.step == 13
    assert reported(attempt)[-4:] == [
        (29, K.PREEMPTION_NOTICED, 13),
        (30, K.CHECKPOINT_COMMITTED, 10),
        (34, K.CHECKPOINT_COMMITTED, 13),
        (34, K.WORKER_LEFT, 13),
    ]


def test_notice_too_short_to_save_loses_steps_not_durable() -> None:
    attempt = simulated(notice_s=28.5, kill_s=33)

    assert (attempt.ended_s, attempt.exit_code) == (33, None)
    assert attempt.checkpoint
    assert attempt.checkpoint.step == 10
    assert reported(attempt)[-1] == (30, K.CHECKPOINT_COMMITTED, 10)


def test_kill_during_an_upload_loses_the_checkpoint() -> None:
    attempt = simulated(kill_s=29.9)

    assert attempt.checkpoint is None
    assert attempt.exit_code is None
    assert reported(attempt)[-1] == (15, K.TRAINING_STARTED, 0)


def test_notice_during_setup_ends_the_attempt_at_once() -> None:
    attempt = simulated(notice_s=3, kill_s=60)

    assert (attempt.ended_s, attempt.exit_code, attempt.reports) == (3, 75, ())


def test_program_error_ends_the_run_at_its_step() -> None:
    program = SimulatedProgram(total_steps=40, setup_s=10, restore_s=5, failure=Failure(12, 7))

    attempt = simulated(program, fails=True)

    assert (attempt.ended_s, attempt.exit_code, attempt.trained) == (27, 7, True)
    assert reported(attempt)[-1] == (27, K.WORKER_LEFT, 12)
    assert simulated(program).exit_code == 0, "only in the placements that it concerns"


def test_import_error_ends_the_run_before_training() -> None:
    program = SimulatedProgram(setup_s=10, failure=Failure(0))

    attempt = simulated(program, fails=True)

    assert (attempt.ended_s, attempt.trained) == (10, False)


def test_repeated_step_has_the_same_simulated_loss() -> None:
    program = replace(PROGRAM, loss_noise=0.05, tokens_per_step=1000)

    once = [report.body for report in simulated(program).reports if report.kind is K.PROGRESS]
    resumed = [
        report.body
        for report in simulated(program, found=SimulatedCheckpoint(20, "step-20")).reports
        if report.kind is K.PROGRESS
    ]

    losses = {body["step"]: body["values"]["loss"] for body in once}  # type: ignore[call-overload, index]
    again = {body["step"]: body["values"]["loss"] for body in resumed}  # type: ignore[call-overload, index]
    assert again.items() - {(21, again[21])} <= losses.items()
    smooth = [
        body["values"]["loss"]
        for body in (report.body for report in simulated().reports if report.kind is K.PROGRESS)
    ]  # type: ignore[call-overload, index]
    assert list(losses.values()) != smooth
    assert all(
        abs(one / other - 1) <= 0.051 for one, other in zip(losses.values(), smooth, strict=True)
    )
    paces = [body["values"]["tokens_per_s"] for body in once]  # type: ignore[call-overload, index]
    assert len(set(paces)) > 1
    assert all(960 <= pace <= 1040 for pace in paces)

"""Training and interruptions of a job, from its events."""

from __future__ import annotations

from holdfast.domain.attempts import LatestPoint
from holdfast.domain.events import Event
from holdfast.domain.throughput.run_history import Interruption, RunHistory, run_history
from support.events import (
    at,
    finished,
    launched,
    left,
    lost,
    paused,
    pausing,
    ready,
    restarted,
    resumed,
    saved,
    submitted,
    training,
)

STARTED: tuple[Event, ...] = (submitted(), launched(), ready(10))


def test_job_without_training_has_no_history() -> None:
    assert run_history(STARTED, {}) == RunHistory()


def test_preemption_costs_its_downtime_and_the_lost_steps() -> None:
    facts = (
        *STARTED,
        training(20),
        saved(120, step=100),
        lost(200),
        ready(300, attempt=2),
        training(350, attempt=2, step=100),
    )

    found = run_history(facts, {1: LatestPoint(step=170, at=at(190))})

    assert found.first_training_at == at(20)
    assert found.trained_s == 180
    assert found.losses == 1
    assert found.interruptions == (Interruption(150, 70),)
    assert found.training_since == at(350)
    assert found.waiting_since is None


def test_restart_of_the_ranks_is_an_interruption() -> None:
    facts = (*STARTED, training(20), restarted(100, step=50), training(130, step=40))

    found = run_history(facts, {})

    assert found.losses == 1
    assert found.interruptions == (Interruption(30, 10),)


def test_drills_are_no_losses_but_measure_downtime() -> None:
    facts = (
        *STARTED,
        training(20),
        lost(100, drill=True),
        ready(150, attempt=2),
        training(160, attempt=2),
    )

    found = run_history(facts, {})

    assert found.losses == 0
    assert found.interruptions == (Interruption(60, 0),)


def test_pauses_are_no_interruptions() -> None:
    facts = (
        *STARTED,
        training(20),
        pausing(90),
        left(100, step=80),
        paused(110),
        resumed(5000),
        launched(5001, launch=2),
        ready(5010, attempt=2),
        training(5020, attempt=2, step=80),
    )

    found = run_history(facts, {})

    assert (found.losses, found.interruptions) == (0, ())
    assert run_history(facts[:7], {}).waiting_since is None


def test_job_waits_from_the_exit_of_its_worker() -> None:
    facts = (*STARTED, training(20), left(100, step=80), lost(130))

    assert run_history(facts, {}).waiting_since == at(100)


def test_ended_job_does_not_train() -> None:
    found = run_history((*STARTED, training(20), finished(100)), {})

    assert found.training_since is None
    assert found.trained_s == 80

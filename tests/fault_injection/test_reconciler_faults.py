"""Storms: whatever goes wrong, in whatever order, nothing is done twice, nothing is missed, and every cent adds up.

One seed is one storm, and the same storm every time: `pytest "tests/fault_injection/test_reconciler_faults.py::test_a_storm[137]"`.
FAULT_SEEDS says how many there are.
"""

from __future__ import annotations

import asyncio

import pytest
from fault_injection.faulty_service import LIVE, FaultyService, spans
from holdfast.domain.billing.ledger import compute_bill
from holdfast.domain.events import (
    CancelRequested,
    CapacityLost,
    Cause,
    Event,
    Finished,
    GuardTripped,
    LaunchRequested,
    LeftReason,
    NodesReady,
    Outcome,
    Paused,
    PauseRequested,
    PreemptionNoticed,
    ResumeRequested,
    WorkerLeft,
)
from holdfast.domain.jobs.job import State
from holdfast.domain.jobs.lifecycle import fold
from sqlalchemy import Engine
from support.repetitions import FAULT_SEEDS

MOVES = 120
GIVEN_UP = {Cause.LAUNCHER_FORGOT, Cause.PAUSED}
"""Why nodes are lost that the cloud says nothing of."""
PATIENCE = 200
"""Sweeps after which people end what comes no further, instead of taking it up again."""
LONGEST_CALM = 500
"""Sweeps until everything must have ended once nothing goes wrong any more."""


def ride_out(seed: int, engines: list[Engine]) -> None:
    world = FaultyService(seed, *engines)

    for _ in range(MOVES):
        world.move()
    world.calm_down()
    _until_all_is_over(world)

    for job_id in world.folds:
        _check_history(world, job_id)
        _check_bill(world, job_id)


def _until_all_is_over(world: FaultyService) -> None:
    for turn in range(LONGEST_CALM):
        if all(job.state is State.ENDED for job in world.folds.values()) and turn % 2 == 0:
            break
        world.take_up() if turn < PATIENCE else world.give_up()
        asyncio.run(world.replicas[turn % 2].reconciler.sweep())
        world.clock.advance(20)
        world.check()
    stuck = [job for job in world.folds.values() if job.state is not State.ENDED]
    assert not stuck, f"never ended: {stuck}"


def _check_history(world: FaultyService, job_id: str) -> None:
    """What was recorded is what happened, each thing once and at its own time; nothing is left behind."""
    log = [item.event for item in world.journal.events(job_id)]
    launches = world.launches(job_id)
    truth = list(spans(launches))

    assert world.journal.read(job_id) == fold(job_id, log)
    assert not [seen for seen in launches if seen.status in LIVE]
    assert sum(isinstance(fact, Finished) for fact in log) == 1
    assert [(e.attempt, e.at) for e in log if isinstance(e, NodesReady)] == [
        (span.attempt, span.ready_at) for span in truth
    ]
    turns = [fact for fact in log if isinstance(fact, LaunchRequested | Paused)]
    over = bool(turns) and isinstance(turns[-1], Paused)  # It was cancelled while it was paused.
    assert [(e.attempt, e.at) for e in log if isinstance(e, CapacityLost) and e.attempt] == [
        (span.attempt, span.ended_at) for span in truth if span.lost or over
    ]
    _check_causes(log, {span.attempt: span.cause for span in truth})
    _check_end(log)


def _check_causes(log: list[Event], told: dict[int, Cause | None]) -> None:
    """A reclaim is what the cloud calls one, or what a worker was warned of before its nodes were gone."""
    warned: set[int] = set()
    stopping = False
    for fact in log:
        match fact:
            case CancelRequested() | GuardTripped() | PauseRequested():
                stopping = True
            case ResumeRequested():
                stopping = False
            case PreemptionNoticed(attempt=attempt):
                warned |= set() if stopping else {attempt}
            case WorkerLeft(attempt=attempt, reason=LeftReason.PREEMPTED):
                warned |= set() if stopping else {attempt}
            case CapacityLost(attempt=attempt, cause=cause) if attempt:
                truth = told[attempt] or (cause if cause in GIVEN_UP else Cause.LAUNCHER_FORGOT)
                proven = truth is Cause.NODE_FAILED and attempt in warned
                assert cause is (Cause.PREEMPTED if proven else truth)


def _check_end(log: list[Event]) -> None:
    """A job that a guard has stopped has failed by its sentence, unless it was done in time."""
    trips = [fact for fact in log if isinstance(fact, GuardTripped)]
    [end] = [fact for fact in log if isinstance(fact, Finished)]
    stops = [trip for trip in trips if not trip.guard.pauses]

    assert len(stops) + sum(isinstance(fact, CancelRequested) for fact in log) <= 1
    pauses = [type(fact) for fact in log if isinstance(fact, Paused | ResumeRequested)]
    assert all(kind is (Paused, ResumeRequested)[n % 2] for n, kind in enumerate(pauses))
    for trip in stops:
        succeeded = end.outcome is Outcome.SUCCEEDED
        assert succeeded or (end.outcome, end.detail) == (Outcome.FAILED, trip.detail)


def _check_bill(world: FaultyService, job_id: str) -> None:
    """The bill is what the cloud would send, cut into phases without a rest."""
    log = [item.event for item in world.journal.events(job_id)]
    reached = world.reading.latest_points([job_id]).get(job_id, {})
    truth = list(spans(world.launches(job_id)))

    account = compute_bill(log, reached, world.clock.now())

    assert [item.micros.total for item in account.attempts] == [span.micros for span in truth]
    assert account.paid_micros == sum(span.micros for span in truth)
    assert account.paid_micros == world.folds[job_id].account.paid_micros
    assert account.ms.total == world.folds[job_id].account.node_ms
    assert account.ms.total == sum(item.ms.total for item in account.attempts)
    for item in account.attempts:
        for phases in (item.ms, item.micros, item.on_demand_micros):
            assert min(getattr(phases, name) for name in phases.__slots__) >= 0


@pytest.mark.parametrize("seed", range(FAULT_SEEDS))
def test_a_storm(fast_sqlite: list[Engine], seed: int) -> None:
    ride_out(seed, fast_sqlite)


@pytest.mark.parametrize("seed", range(max(1, FAULT_SEEDS // 10)))
def test_a_storm_over_postgresql(postgresql: list[Engine], seed: int) -> None:
    ride_out(seed, postgresql)

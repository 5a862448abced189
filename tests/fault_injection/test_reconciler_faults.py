"""Random faults of the reconciler: nothing happens twice or is missed, and bills are exact.

A seed determines one scenario: `pytest
"tests/fault_injection/test_reconciler_faults.py::test_history_and_bill_are_exact[137]"`. FAULT_SEEDS sets the
number of scenarios.
"""

from __future__ import annotations

import asyncio

import pytest
from fault_injection.faulty_service import LIVE, FaultyService, spans
from holdfast.domain.billing.bill import compute_bill
from holdfast.domain.events import (
    PREEMPTION_CAUSES,
    CancelRequested,
    CapacityLost,
    Cause,
    Event,
    Finished,
    GuardTripped,
    LaunchRequested,
    LeftReason,
    Moved,
    MoveRequested,
    NodesReady,
    Outcome,
    Paused,
    PauseRequested,
    Planned,
    PreemptionNoticed,
    ResumeRequested,
    WorkerLeft,
)
from holdfast.domain.jobs.job import State
from holdfast.domain.jobs.lifecycle import fold
from holdfast.domain.queue.quotas import Quota, QuotaScope
from sqlalchemy import Engine
from support.repetitions import FAULT_SEEDS

MOVES = 120
GIVEN_UP = {Cause.LAUNCHER_FORGOT, Cause.PAUSED, Cause.MOVED}
"""Causes of losses that the cloud does not report."""
RESUMED_SWEEPS = 200
"""Sweeps after which users cancel unfinished jobs instead of resuming them."""
MAX_SWEEPS = 500
"""Sweeps after which all jobs must have ended once faults are disabled."""


QUOTA = Quota(scope=QuotaScope.SERVICE, name="all", nodes=3)
"""Room for one of the largest jobs, or for several small ones."""


def run_scenario(
    seed: int, engines: list[Engine], *, has_plans: bool = False, quota: Quota | None = None
) -> FaultyService:
    service = FaultyService(seed, *engines, has_plans=has_plans, quota=quota)

    for _ in range(MOVES):
        service.move()
    service.disable_faults()
    _run_until_ended(service)

    for job_id in service.folds:
        _check_history(service, job_id)
        _check_bill(service, job_id)
    return service


def _run_until_ended(service: FaultyService) -> None:
    for number in range(MAX_SWEEPS):
        if all(job.state is State.ENDED for job in service.folds.values()) and number % 2 == 0:
            break
        service.resume_paused() if number < RESUMED_SWEEPS else service.cancel_all()
        asyncio.run(service.replicas[number % 2].reconciler.sweep())
        service.clock.advance(20)
        service.check()
    stuck = [job for job in service.folds.values() if job.state is not State.ENDED]
    assert not stuck, f"never ended: {stuck}"


def _check_history(service: FaultyService, job_id: str) -> None:
    """Check that every event was recorded once with its own time, and that nothing still runs."""
    log = [item.event for item in service.journal.events(job_id)]
    launches = service.launches(job_id)
    actual = list(spans(launches))

    assert service.journal.read(job_id) == fold(job_id, log)
    assert not [seen for seen in launches if seen.status in LIVE]
    assert sum(isinstance(fact, Finished) for fact in log) == 1
    assert [(e.attempt, e.at) for e in log if isinstance(e, NodesReady)] == [
        (span.attempt, span.ready_at) for span in actual
    ]
    begins_and_ends = [fact for fact in log if isinstance(fact, LaunchRequested | Paused | Moved)]
    # The job was cancelled while it was paused, or waited.
    is_paused_at_end = bool(begins_and_ends) and isinstance(begins_and_ends[-1], Paused | Moved)
    assert [(e.attempt, e.at) for e in log if isinstance(e, CapacityLost) and e.attempt] == [
        (span.attempt, span.ended_at) for span in actual if span.lost or is_paused_at_end
    ]
    _check_causes(log, {span.attempt: span.cause for span in actual})
    _check_end(log)


def _check_causes(log: list[Event], causes: dict[int, Cause | None]) -> None:
    """A reclaim was reported by the cloud, or by a notice to the worker before the loss."""
    warned: set[int] = set()
    stopping = False
    for fact in log:
        match fact:
            case CancelRequested() | GuardTripped() | PauseRequested() | MoveRequested():
                stopping = True
            case ResumeRequested() | Moved():
                stopping = False
            case PreemptionNoticed(attempt=attempt):
                warned |= set() if stopping else {attempt}
            case WorkerLeft(attempt=attempt, reason=LeftReason.PREEMPTED):
                warned |= set() if stopping else {attempt}
            case CapacityLost(attempt=attempt, cause=cause) if attempt:
                actual = causes[attempt] or (cause if cause in GIVEN_UP else Cause.LAUNCHER_FORGOT)
                proven = actual is Cause.NODE_FAILED and attempt in warned
                assert cause is (Cause.PREEMPTED if proven else actual)


def _check_end(log: list[Event]) -> None:
    """A job that a guard stopped has failed with its detail, unless it succeeded in time."""
    trips = [fact for fact in log if isinstance(fact, GuardTripped)]
    [end] = [fact for fact in log if isinstance(fact, Finished)]
    stops = [trip for trip in trips if not trip.guard.pauses]

    assert len(stops) + sum(isinstance(fact, CancelRequested) for fact in log) <= 1
    pauses = [type(fact) for fact in log if isinstance(fact, Paused | ResumeRequested)]
    assert all(kind is (Paused, ResumeRequested)[n % 2] for n, kind in enumerate(pauses))
    for trip in stops:
        succeeded = end.outcome is Outcome.SUCCEEDED
        assert succeeded or (end.outcome, end.detail) == (Outcome.FAILED, trip.detail)


def _check_bill(service: FaultyService, job_id: str) -> None:
    """The bill equals the actual cost, divided completely into phases."""
    log = [item.event for item in service.journal.events(job_id)]
    reached = service.queries.latest_points([job_id]).get(job_id, {})
    actual = list(spans(service.launches(job_id)))

    account = compute_bill(log, reached, service.clock.now())

    assert [item.micros.total for item in account.attempts] == [span.micros for span in actual]
    assert account.paid_micros == sum(span.micros for span in actual)
    assert account.paid_micros == service.folds[job_id].account.paid_micros
    assert account.ms.total == service.folds[job_id].account.node_ms
    assert account.ms.total == sum(item.ms.total for item in account.attempts)
    for item in account.attempts:
        for phases in (item.ms, item.micros, item.on_demand_micros):
            assert min(getattr(phases, name) for name in phases.__slots__) >= 0


@pytest.mark.parametrize("seed", range(FAULT_SEEDS))
def test_history_and_bill_are_exact(fast_sqlite: list[Engine], seed: int) -> None:
    run_scenario(seed, fast_sqlite)


@pytest.mark.parametrize("seed", range(max(1, FAULT_SEEDS // 10)))
def test_history_and_bill_are_exact_on_postgresql(postgresql: list[Engine], seed: int) -> None:
    run_scenario(seed, postgresql)


@pytest.mark.parametrize("has_plans", [False, True], ids=["", "plans"])
@pytest.mark.parametrize("seed", range(FAULT_SEEDS))
def test_quota_is_never_exceeded(fast_sqlite: list[Engine], seed: int, has_plans: bool) -> None:
    service = run_scenario(seed, fast_sqlite, has_plans=has_plans, quota=QUOTA)

    assert service.held == {}
    assert not service.journal.queue.state().holding


@pytest.mark.parametrize("seed", range(max(1, FAULT_SEEDS // 10)))
def test_quota_is_never_exceeded_on_postgresql(postgresql: list[Engine], seed: int) -> None:
    run_scenario(seed, postgresql, quota=QUOTA)


@pytest.mark.parametrize("seed", range(FAULT_SEEDS))
def test_jobs_with_plans_move_without_a_second_launch(fast_sqlite: list[Engine], seed: int) -> None:
    service = run_scenario(seed, fast_sqlite, has_plans=True)

    for job_id, job in service.folds.items():
        log = [item.event for item in service.journal.events(job_id)]
        _check_moves(log)
        assert job.preemptions == sum(
            fact.cause in PREEMPTION_CAUSES for fact in log if isinstance(fact, CapacityLost)
        )


def _check_moves(log: list[Event]) -> None:
    """Each move ends one launch, and only a launch that asks for what its plan chose follows."""
    planned: Planned | None = None
    launch = 0
    for fact in log:
        match fact:
            case Planned():
                planned = fact
            case LaunchRequested(launch=number, placement=placement):
                assert number == launch + 1
                launch = number
                if planned:
                    assert placement
                    assert (placement.capacity, placement.places) == (
                        planned.capacity,
                        planned.places,
                    )
            case Moved(launch=number):
                assert number == launch

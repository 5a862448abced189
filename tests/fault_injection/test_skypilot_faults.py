"""Random faults of SkyPilot: no launch starts twice, and nothing runs after its job ended.

A seed determines one scenario. FAULT_SEEDS sets the number of scenarios.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fake_skypilot.job_simulation import EMERGENCY, FAILED, LEFT, PLUGIN, PREEMPTED
from fault_injection.faulty_skypilot import FaultySkyPilot
from holdfast.domain.events import CapacityLost, Cause, Finished, NodesReady
from holdfast.domain.jobs.job import State
from holdfast.domain.jobs.lifecycle import fold
from sqlalchemy import Engine
from support.repetitions import FAULT_SEEDS

SEEDS = max(1, FAULT_SEEDS // 12)
MOVES = 600
MAX_SWEEPS = 200
POSSIBLE_CAUSES = {
    PREEMPTED: {Cause.NODE_FAILED, Cause.LAUNCHER_RESTARTED},
    FAILED: {Cause.USER_ERROR},
    LEFT: {Cause.NODE_FAILED},
    EMERGENCY: {Cause.LAUNCHER_RESTARTED},
    PLUGIN: {Cause.NODE_FAILED},
    "restart": {Cause.LAUNCHER_RESTARTED, Cause.NODE_FAILED},
}
"""Possible causes of a recorded loss, by its actual cause.

A preemption just after a restart of SkyPilot counts as the restart, and a restart that was followed by
another before an observation counts as a preemption: SkyPilot reports only its last start.
"""


async def run_scenario(seed: int, engines: list[Engine], folder: Path, *, gated: bool) -> None:
    service = FaultySkyPilot(seed, *engines, folder, gated=gated)
    for _ in range(MOVES):
        await service.move()
    await service.disable_faults()
    await _run_until_ended(service)
    for job_id in service.folds:
        _check_history(service, job_id)


async def _run_until_ended(service: FaultySkyPilot) -> None:
    for number in range(MAX_SWEEPS):
        over = all(job.state is State.ENDED for job in service.folds.values())
        if over and not service.state.running_clusters() and not _running(service):
            break
        if number == 40:
            service.check_numbers()
            service.cancel_all()
        replica = service.replicas[number % 2]
        await replica.reconciler.sweep()
        await replica.reconciler.orphan_cleaner.sweep()
        service.clock.advance(30)
        service.check()
    stuck = [job for job in service.folds.values() if job.state is not State.ENDED]
    assert not stuck, f"never ended: {stuck}"
    assert not service.state.running_clusters(), "clusters are left"
    assert not _running(service), "jobs are left"


def _running(service: FaultySkyPilot) -> list[str]:
    return [job.name for job in service.state.jobs.values() if not job.is_over]


def _check_history(service: FaultySkyPilot, job_id: str) -> None:
    """Check that each loss was recorded once with its cause."""
    log = [item.event for item in service.journal.events(job_id)]
    job = service.folds[job_id]

    assert service.journal.read(job_id) == fold(job_id, log)
    assert sum(isinstance(fact, Finished) for fact in log) == 1
    service.check_gone(job)
    if not service.gated or service.lost_jobs:
        return  # Which of several managed jobs belonged to the launch is unknown, and so are causes of lost jobs.
    found = [fact for fact in log if isinstance(fact, CapacityLost) and fact.attempt]
    expected = [loss for each in service.jobs_of(job) for loss in each.losses]
    assert len(found) == len(expected)
    for fact, loss in zip(found, expected, strict=True):
        assert fact.cause in POSSIBLE_CAUSES[loss.cause], f"{loss} was recorded as {fact}"
        assert abs((fact.at - loss.at).total_seconds()) < 1
    ready = [fact for fact in log if isinstance(fact, NodesReady)]
    placements = sum(each.placements for each in service.jobs_of(job))
    assert len(ready) == placements


@pytest.mark.parametrize("seed", range(SEEDS))
def test_no_launch_starts_twice_with_admission_plugin(
    fast_sqlite: list[Engine], tmp_path: Path, seed: int
) -> None:
    asyncio.run(run_scenario(seed, fast_sqlite, tmp_path, gated=True))


@pytest.mark.parametrize("seed", range(max(1, SEEDS // 4)))
def test_launches_end_without_admission_plugin(
    fast_sqlite: list[Engine], tmp_path: Path, seed: int
) -> None:
    asyncio.run(run_scenario(seed, fast_sqlite, tmp_path, gated=False))


@pytest.mark.parametrize("seed", range(max(1, SEEDS // 8)))
def test_no_launch_starts_twice_on_postgresql(
    postgresql: list[Engine], tmp_path: Path, seed: int
) -> None:
    asyncio.run(run_scenario(seed, postgresql, tmp_path, gated=True))

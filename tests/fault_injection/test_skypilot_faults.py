"""Storms around SkyPilot: whatever is lost, repeated, forgotten or late, nothing is launched twice and nothing is left.

One seed is one storm, and the same storm every time. FAULT_SEEDS says how many there are.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from fake_skypilot.job_simulation import EMERGENCY, FAILED, LEFT, PREEMPTED, TOLD
from fault_injection.faulty_skypilot import FaultySkyPilot
from holdfast.domain.events import CapacityLost, Cause, Finished, NodesReady
from holdfast.domain.jobs.job import State
from holdfast.domain.jobs.lifecycle import fold
from sqlalchemy import Engine
from support.repetitions import FAULT_SEEDS

SEEDS = max(1, FAULT_SEEDS // 12)
MOVES = 600
LONGEST_CALM = 200
RIGHT = {
    PREEMPTED: {Cause.NODE_FAILED, Cause.LAUNCHER_RESTARTED},
    FAILED: {Cause.USER_ERROR},
    LEFT: {Cause.NODE_FAILED},
    EMERGENCY: {Cause.LAUNCHER_RESTARTED},
    TOLD: {Cause.NODE_FAILED},
    "restart": {Cause.LAUNCHER_RESTARTED, Cause.NODE_FAILED},
}
"""What may be said of a loss. Who preempts right after SkyPilot's restart is taken for the restart, and a restart that
was followed by another before anybody looked is taken for a preemption: SkyPilot tells of its last start alone."""


async def ride_out(seed: int, engines: list[Engine], folder: Path, *, gated: bool) -> None:
    world = FaultySkyPilot(seed, *engines, folder, gated=gated)
    for _ in range(MOVES):
        await world.move()
    await world.calm_down()
    await _until_all_is_over(world)
    for job_id in world.folds:
        _check_history(world, job_id)


async def _until_all_is_over(world: FaultySkyPilot) -> None:
    for turn in range(LONGEST_CALM):
        over = all(job.state is State.ENDED for job in world.folds.values())
        if over and not world.truth.standing() and not _running(world):
            break
        if turn == 40:
            world.check_numbers()
            world.cancel_all()
        replica = world.replicas[turn % 2]
        await replica.reconciler.sweep()
        await replica.reconciler.orphan_cleaner.sweep()
        world.clock.advance(30)
        world.check()
    stuck = [job for job in world.folds.values() if job.state is not State.ENDED]
    assert not stuck, f"never ended: {stuck}"
    assert not world.truth.standing(), "clusters are left"
    assert not _running(world), "jobs are left"


def _running(world: FaultySkyPilot) -> list[str]:
    return [job.name for job in world.truth.jobs.values() if not job.is_over]


def _check_history(world: FaultySkyPilot, job_id: str) -> None:
    """What was recorded is what happened, each loss once and with its cause."""
    log = [item.event for item in world.journal.events(job_id)]
    job = world.folds[job_id]

    assert world.journal.read(job_id) == fold(job_id, log)
    assert sum(isinstance(fact, Finished) for fact in log) == 1
    world.check_gone(job)
    if not world.gated or world.lost_jobs:
        return  # Which of several managed jobs was ours is not told here, nor what befell those that are lost.
    found = [fact for fact in log if isinstance(fact, CapacityLost) and fact.attempt]
    truth = [loss for each in world.jobs_of(job) for loss in each.losses]
    assert len(found) == len(truth)
    for fact, loss in zip(found, truth, strict=True):
        assert fact.cause in RIGHT[loss.why], f"{loss} was told as {fact}"
        assert abs((fact.at - loss.at).total_seconds()) < 1
    ready = [fact for fact in log if isinstance(fact, NodesReady)]
    stood = sum(each.placements for each in world.jobs_of(job))
    assert len(ready) == stood


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_storm_with_the_gate(fast_sqlite: list[Engine], tmp_path: Path, seed: int) -> None:
    asyncio.run(ride_out(seed, fast_sqlite, tmp_path, gated=True))


@pytest.mark.parametrize("seed", range(max(1, SEEDS // 4)))
def test_a_storm_without_the_gate(fast_sqlite: list[Engine], tmp_path: Path, seed: int) -> None:
    asyncio.run(ride_out(seed, fast_sqlite, tmp_path, gated=False))


@pytest.mark.parametrize("seed", range(max(1, SEEDS // 8)))
def test_a_storm_over_postgresql(postgresql: list[Engine], tmp_path: Path, seed: int) -> None:
    asyncio.run(ride_out(seed, postgresql, tmp_path, gated=True))

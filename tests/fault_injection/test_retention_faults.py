"""Storms over a checkpoint store: whatever falls, rots or comes back, nothing is removed that a rule asks for.

One seed is one storm, and the same storm every time. FAULT_SEEDS says how many there are.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from fault_injection.faulty_store import FaultyStore
from holdfast.api.views.checkpoints import checkpoint_history
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from sqlalchemy import Engine
from support.repetitions import FAULT_SEEDS
from support.retention import JOB
from worker.support.stores import LATER_S

SEEDS = max(1, FAULT_SEEDS // 5)
MOVES = 60


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_storm_over_a_store(fast_sqlite: list[Engine], tmp_path: Path, seed: int) -> None:
    world = FaultyStore(seed, fast_sqlite[0], tmp_path)

    for _ in range(MOVES):
        world.move()
    world.calm_down()

    _check_that_it_is_tidy(world)
    _check_that_what_is_shown_is_there(world)


def _check_that_it_is_tidy(world: FaultyStore) -> None:
    """Only requested checkpoints remain, and undetected damaged ones, which count as sound."""
    there = {
        name for name in CheckpointRepository(world.store).names(LATER_S) if world._is_there(name)
    }
    asked_for = world._asked_for()
    data = {CheckpointName.of_key(key) for key in world.harness.bucket_objects.keys("step-")}

    assert asked_for <= there
    assert there - asked_for <= world.rotten
    assert data <= there
    assert world.harness.tidiness.error is None


def _check_that_what_is_shown_is_there(world: FaultyStore) -> None:
    """By the facts alone one knows what the store holds, of what was ever told."""
    saves = checkpoint_history(world.harness.journal.events(JOB)).attempts()
    shown = {save.name for save in saves if save.is_stored}
    removed = {save.name for save in saves if save.removed_at}
    there = {
        str(name)
        for name in CheckpointRepository(world.store).names(LATER_S)
        if world._is_there(name)
    }

    assert shown <= there
    assert not removed & there

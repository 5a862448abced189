"""Random faults of a checkpoint store never delete a checkpoint that the policy retains.

A seed determines one scenario. FAULT_SEEDS sets the number of scenarios.
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
def test_retained_checkpoints_are_never_deleted(
    fast_sqlite: list[Engine], tmp_path: Path, seed: int
) -> None:
    faulty = FaultyStore(seed, fast_sqlite[0], tmp_path)

    for _ in range(MOVES):
        faulty.move()
    faulty.finish_without_faults()

    _check_store(faulty)
    _check_recorded_checkpoints(faulty)


def _check_store(faulty: FaultyStore) -> None:
    """Only retained checkpoints remain, and undetected damaged ones, which count as sound."""
    existing = {
        name for name in CheckpointRepository(faulty.store).names(LATER_S) if faulty._exists(name)
    }
    retained = faulty._retained()
    data = {CheckpointName.of_key(key) for key in faulty.harness.bucket_objects.keys("step-")}

    assert retained <= existing
    assert existing - retained <= faulty.damaged
    assert data <= existing
    assert faulty.harness.tidiness.error is None


def _check_recorded_checkpoints(faulty: FaultyStore) -> None:
    """The recorded events describe the store as far as checkpoints were reported."""
    saves = checkpoint_history(faulty.harness.journal.events(JOB)).attempts()
    shown = {save.name for save in saves if save.is_stored}
    removed = {save.name for save in saves if save.removed_at}
    existing = {
        str(name)
        for name in CheckpointRepository(faulty.store).names(LATER_S)
        if faulty._exists(name)
    }

    assert shown <= existing
    assert not removed & existing

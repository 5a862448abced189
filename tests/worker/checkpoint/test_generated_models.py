"""Generated models resume bit for bit on every rank, or are refused by the unsupported name."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import pytest
import torch.distributed as dist
from support.repetitions import repeat_count
from worker.support.generated_models import check_model

MODELS: Final = int(os.environ.get("GENERATED_MODELS", repeat_count(60, 500)))
"""Number of models. A higher value costs 30 CPU-ms each; a lower one covers fewer combinations."""


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    """A process group, which DDP requires."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# torch calls some of the types experimental.
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_generated_models_resume_bit_for_bit_on_every_rank() -> None:
    for seed in range(MODELS):
        check_model(seed)

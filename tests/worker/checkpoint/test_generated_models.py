"""Drawn models are saved and resumed bit for bit on every rank, or refused by the name of what cannot be held."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Final

import pytest
import torch.distributed as dist
from support.repetitions import repeat_count
from worker.support.generated_models import play

MODELS: Final = int(os.environ.get("GENERATED_MODELS", repeat_count(150, 500)))
"""More take longer, about 30 ms of a core each; fewer meet fewer combinations."""


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    """A process group, without which there is no DDP."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


# torch calls some of the types experimental.
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_drawn_models_resume_bit_for_bit_on_every_rank() -> None:
    for seed in range(MODELS):
        play(seed)

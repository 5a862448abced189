"""The order of model setup: built, wrapped, optimized, tracked."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from holdfast_worker.config import Config
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.distributed.sharding import has_unsharded_parameters, shardable_blocks
from holdfast_worker.run import Run
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter
from torch import nn


class Layered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(4, 2)
        rows = (nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Dropout(), nn.Linear(2, 2))
        self.layers = nn.ModuleList(rows)


def test_each_block_with_parameters_is_fetched_separately() -> None:
    model = Layered()

    assert list(shardable_blocks(model)) == [model.layers[0], model.layers[2]]


def test_optimizer_of_replaced_parameters_is_detected() -> None:
    before, after = nn.Linear(2, 2), nn.Linear(2, 2)
    optimizer = torch.optim.SGD(before.parameters())

    assert has_unsharded_parameters(optimizer, after)
    assert not has_unsharded_parameters(optimizer, before)


def test_model_wrapped_after_its_load_is_refused(tmp_path: Path) -> None:
    run = Run(Config.read({}), ProcessGroup.single(), Reporter(None), None, HeartbeatWriter())
    run.track(model=nn.Linear(2, 2))

    with pytest.raises(RuntimeError, match=r"call wrap\(\) before track\(\)"):
        run.wrap(nn.Linear(2, 2))


def test_track_after_steps_began_is_refused(tmp_path: Path) -> None:
    run = Run(Config.read({}), ProcessGroup.single(), Reporter(None), None, HeartbeatWriter())

    for _ in run.steps([1, 2], total=2):
        with pytest.raises(RuntimeError, match=r"call track\(\) before steps\(\)"):
            run.track(model=nn.Linear(2, 2))


def test_eight_micro_batches_equal_one_large_batch() -> None:
    """Gradient accumulation: one batch of `steps` is one optimizer step, however it is split."""
    x, y = torch.randn(128, 4, dtype=torch.float64), torch.randn(128, 1, dtype=torch.float64)
    whole, split = nn.Linear(4, 1).double(), nn.Linear(4, 1).double()
    split.load_state_dict(whole.state_dict())

    nn.functional.mse_loss(whole(x), y).backward()
    for x_16, y_16 in zip(x.split(16), y.split(16), strict=True):
        (nn.functional.mse_loss(split(x_16), y_16) / 8).backward()

    assert whole.weight.grad is not None
    torch.testing.assert_close(split.weight.grad, whole.weight.grad)

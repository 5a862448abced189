"""Training script for fault injection: `python training_script.py {ddp,fsdp} TOTAL`.

Writes one line for each step to one file for each rank and attempt: the step, the samples, the loss, and
bit-exact digests of the rank's state. Two runs can be compared, and the first differing step found. The first
line describes the initial state.
"""

# ruff: noqa: N803, N806, N815 - names of tensors end in their shapes

import os
import random
import sys
import threading
from pathlib import Path

import numpy as np
import torch
from holdfast_worker import Run
from holdfast_worker.checkpoint.checksums import state_dict_digest
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler

SAMPLES = 96
STEP = 16
"""Samples of all ranks in a step: every step has the same samples on any number of ranks.

Six steps use all samples.
"""


class Noisy(Dataset[tuple[int, Tensor, Tensor]]):
    """Points with noise that is drawn at each access from the global generators."""

    def __init__(self) -> None:
        self.x_NC = torch.linspace(-1, 1, SAMPLES * 8).reshape(SAMPLES, 8)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, i: int) -> tuple[int, Tensor, Tensor]:
        drawn = random.random() + float(np.random.rand())  # noqa: NPY002 - as in typical user code
        x_C = self.x_NC[i] + 0.1 * torch.randn(8) * drawn
        return i, x_C, x_C.sum().sin()


class Drift(nn.Module):
    """Subtracts a running mean that differs between ranks, until a restore uses that of rank 0."""

    mean_C: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean_C", torch.zeros(channels))

    def forward(self, x_BC: Tensor) -> Tensor:
        self.mean_C.lerp_(x_BC.detach().mean(0), 0.1)
        return x_BC - self.mean_C


def build(kind: str, run: Run) -> nn.Module:
    layers = [nn.Linear(8, 33), nn.ReLU(), nn.Dropout(0.2), nn.Linear(33, 7), nn.Tanh()]
    if kind == "ddp":
        return run.wrap(nn.Sequential(Drift(8), *layers, nn.Linear(7, 1)))
    model = nn.Sequential(*layers, nn.Linear(7, 1))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    return model


def local_part(tensor: Tensor) -> Tensor:
    """The local part of a tensor."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def gathered(tensor: Tensor) -> Tensor:
    """The whole tensor, gathered from all ranks."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def digests(model: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Digests of the weights, equal on all ranks, and of the local optimizer moments."""
    weights = getattr(model, "module", model).state_dict()
    moments = {
        f"{number}.{name}": local_part(value)
        for number, item in optimizer.state_dict()["state"].items()
        for name, value in item.items()
    }
    whole_weights = {name: gathered(value) for name, value in weights.items()}
    return f"{state_dict_digest(whole_weights)} {state_dict_digest(moments)}"


def wait_for_save() -> None:
    """Wait for the current save, with a timeout: it may wait for a rank that was killed."""
    for thread in threading.enumerate():
        if thread.name == "holdfast-saver":
            thread.join(2.0)


def main() -> None:
    kind, total = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    run = Run.start()
    data = Noisy()
    sampler = DistributedSampler(data, run.world_size, run.rank)
    loader = DataLoader(data, STEP // run.world_size, sampler=sampler)
    torch.manual_seed(7)
    model = build(kind, run)
    torch.manual_seed(run.rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=total)
    run.track(model=model, optimizer=optimizer, scheduler=scheduler)

    logbook = Path(os.environ["LOGBOOK_DIR"]) / f"{os.environ['HOLDFAST_ATTEMPT']}-{run.rank}"
    with logbook.open("a", buffering=1) as file:
        file.write(f"{run.step} begun {digests(model, optimizer)}\n")
        for i_B, x_BC, y_B in run.steps(loader, total=total):
            loss = (model(x_BC).squeeze(1) - y_B).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            run.log(loss=loss)
            samples = ",".join(map(str, i_B.tolist()))
            drawn = state_dict_digest({"torch": torch.get_rng_state()})
            line = f"{run.step + 1} {samples} {digests(model, optimizer)} {loss.item().hex()}"
            file.write(f"{line} {drawn} {optimizer.param_groups[0]['lr']!r}\n")
            if "WAIT_FOR_SAVES" in os.environ:
                wait_for_save()


if __name__ == "__main__":
    main()

"""A training script for an elastic number of nodes, which records the samples of each step.

python elastic.py TOTAL FOLDER: the number of steps, and the output folder. Steps are slow until a file `hurry` exists.
"""

# ruff: noqa: N806 - names of tensors end in their shapes

import os
import sys
import threading
from pathlib import Path

import torch
from holdfast_worker import ExactSampler, Run
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

SAMPLES = 240
STEP = 12
"""Samples of a step on any number of ranks, so that they divide every pass evenly."""
PAUSE_S = 0.2


def main() -> None:
    torch.set_num_threads(1)
    run = Run.start()
    numbers = TensorDataset(torch.arange(SAMPLES))
    sampler = ExactSampler(numbers, run.world_size, run.rank)
    loader: DataLoader[tuple[Tensor]] = DataLoader(numbers, STEP // run.world_size, sampler=sampler)
    model = run.wrap(nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    run.track(model=model, optimizer=optimizer)
    folder = Path(sys.argv[2])
    file = folder / f"{run.step}-{run.world_size}-{run.rank}-{os.getpid()}.seen"

    with file.open("w", buffering=1) as seen:
        for [x_B] in run.steps(loader, total=int(sys.argv[1])):
            loss = model(x_B[:, None].float()).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen.write(f"{run.step + 1} {' '.join(map(str, x_B.tolist()))}\n")
            if not (folder / "hurry").exists():
                threading.Event().wait(PAUSE_S)


if __name__ == "__main__":
    main()

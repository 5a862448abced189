"""A training script whose nodes come and go: it writes down which samples each step has seen.

python elastic.py TOTAL FOLDER: the number of steps, and where it writes. It takes its time until there is a file `hurry`.
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
"""Samples of a step, however many ranks share them: so that every pass comes out even."""
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

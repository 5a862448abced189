"""A training script with injected failures, for the tests of whole runs.

python ddp.py TOTAL [--fall RANK:STEP:SIGNAL [--once]] [--error STEP] [--after CODE] [--settle STEPS] [--hold STEP]

The first STEPS steps end once no save is in progress on their rank, as steps are faster than uploads here. Ranks stay in step `--hold`.
"""

# ruff: noqa: N806 - names of tensors end in their shapes

import argparse
import os
import random
import signal
import threading
import time
from pathlib import Path

import numpy as np
import torch
from holdfast_worker import Run
from holdfast_worker.checkpoint.checksums import state_dict_digest
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, DistributedSampler


class Noisy(Dataset[tuple[Tensor, Tensor]]):
    """Points with new noise at each read, from the generator that the training also uses."""

    def __init__(self) -> None:
        self.x_NC = torch.linspace(-1, 1, 200 * 8).reshape(200, 8)

    def __len__(self) -> int:
        return len(self.x_NC)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        x_C = self.x_NC[i] + 0.1 * torch.randn(8)
        return x_C, x_C.sum().sin()


def wait_for_a_checkpoint() -> None:
    """Wait for the first checkpoint, as steps are faster than uploads here."""
    store = Path(os.environ["HOLDFAST_STORE"].removeprefix("file://"))
    while not any(store.glob("*/commits/*.json")):
        threading.Event().wait(0.01)


def is_settled(run: Run) -> bool:
    """Whether nothing of this rank is being saved or copied."""
    if not (checkpointer := run._checkpointer):
        return True
    memory = checkpointer.memory
    return not (checkpointer._active_writer.is_busy or (memory and memory.is_copying))


def settle(run: Run) -> None:
    """Wait until nothing of this rank is being saved or copied, as the next save would be put off."""
    end = time.monotonic() + 300
    while not is_settled(run):
        assert time.monotonic() < end, "a save or a copy did not end"
        time.sleep(0.01)


class InjectedSignal:
    """A signal to one rank after a step, once a checkpoint exists: `RANK:STEP:SIGNAL`.

    It is sent once, if LESSON_SIGNALLED names a file that does not exist yet.
    """

    def __init__(self, text: str) -> None:
        self.rank, self.step, self.number = map(int, text.split(":"))

    def send(self, rank: int, step: int) -> None:
        """Send the signal if rank and step match."""
        if (rank, step) == (self.rank, self.step):
            if sent := os.environ.get("LESSON_SIGNALLED"):
                if Path(sent).exists():
                    return
                Path(sent).touch()
            wait_for_a_checkpoint()
            os.kill(os.getpid(), signal.Signals(self.number))


NOTHING = InjectedSignal("-1:-1:0")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("total", type=int)
    parser.add_argument("--fall", type=InjectedSignal, default=NOTHING)
    parser.add_argument("--once", action="store_true", help="fall only in a run from the beginning")
    parser.add_argument("--error", type=int, default=-1)
    parser.add_argument("--after", type=int, default=0)
    parser.add_argument("--settle", type=int, default=0)
    parser.add_argument("--hold", type=int, default=-1)
    args = parser.parse_args()

    torch.set_num_threads(1)
    run = Run.start()
    data = Noisy()
    sampler = DistributedSampler(data, run.world_size, run.rank) if run.world_size > 1 else None
    loader = DataLoader(data, 8, shuffle=sampler is None, sampler=sampler)
    layers = (nn.Linear(8, 32), nn.BatchNorm1d(32), nn.Dropout(0.2), nn.Linear(32, 1))
    model = run.wrap(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters())
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=args.total)
    run.track(model=model, optimizer=optimizer, scheduler=scheduler)

    is_resumed = run.step > 0

    for x_BC, y_B in run.steps(loader, total=args.total):
        loss = (model(x_BC).squeeze(1) - y_B).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        run.log(loss=loss)
        if run.step + 1 == args.error:
            raise ValueError(f"this lesson ends at step {args.error}")
        while run.step == args.hold:
            threading.Event().wait(1)
        if run.step < args.settle:
            settle(run)
        if not (args.once and is_resumed):
            args.fall.send(run.rank, run.step + 1)

    if run.rank == 0:
        inner = model.module if run.world_size > 1 else model
        digest = state_dict_digest(inner.state_dict())
        result = Path(os.environ["LESSON_RESULT"])
        result.write_text(digest)
        drawn = [random.random(), np.random.rand(), torch.rand(()).item()]  # noqa: NPY002 - what a script draws from
        result.with_suffix(".drawn").write_text(f"{drawn}")
    raise SystemExit(args.after)


if __name__ == "__main__":
    main()

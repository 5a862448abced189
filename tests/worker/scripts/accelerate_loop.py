"""A training loop with accelerate: python accelerate_loop.py STEPS [--fall RANK:STEP:SIGNAL]

At the end the same training is repeated by accelerate alone.
"""

# ruff: noqa: N806 - names of tensors end in their shapes

import argparse
import os
from collections.abc import Iterable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from ddp import NOTHING, InjectedSignal, Noisy
from holdfast_worker import Run
from holdfast_worker.checkpoint.checksums import state_dict_digest
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler

Batches = Iterable[tuple[Tensor, Tensor]]


class Training:
    """The initial training state, always the same."""

    def __init__(self, run: Run) -> None:
        torch.manual_seed(7 + run.rank)
        self.accelerator = Accelerator(
            cpu=run.device.type == "cpu", gradient_accumulation_steps=2, mixed_precision="bf16"
        )
        data = Noisy()
        sampler = DistributedSampler(data, run.world_size, run.rank)
        self.loader = DataLoader(data, 8, sampler=sampler)
        net = nn.Sequential(nn.Linear(8, 32), nn.Dropout(0.2), nn.Linear(32, 1))
        optimizer = torch.optim.AdamW(net.parameters())
        scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=60)
        self.model, self.optimizer, self.scheduler = self.accelerator.prepare(
            net, optimizer, scheduler
        )

    def tracked(self) -> dict[str, Any]:
        """Objects to track in a checkpoint."""
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def train(self, batches: Batches) -> Iterator[None]:
        """Run step after step, each with two micro-batches."""
        for x_BC, y_B in batches:
            for x_bC, y_b in zip(x_BC.chunk(2), y_B.chunk(2), strict=True):
                with self.accelerator.accumulate(self.model):
                    loss = (self.model(x_bC).squeeze(1) - y_b).square().mean()
                    self.accelerator.backward(loss)
                    if self.accelerator.sync_gradients:
                        self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0)
                    self.optimizer.step()
                    self.scheduler.step()
                    self.optimizer.zero_grad()
            yield

    def digest(self) -> str:
        """Digest of the weights."""
        return state_dict_digest(self.accelerator.unwrap_model(self.model).state_dict())


def passes(loader: DataLoader[tuple[Tensor, Tensor]]) -> Batches:
    """Batches of all passes, as a script with accelerate iterates over its data."""
    for epoch in count():
        loader.sampler.set_epoch(epoch)
        yield from loader


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("--fall", type=InjectedSignal, default=NOTHING)
    args = parser.parse_args()

    torch.set_num_threads(1)
    run = Run.start()
    kept = Training(run)
    run.track(**kept.tracked())
    for _ in kept.train(run.steps(kept.loader, total=args.steps)):
        args.fall.send(run.rank, run.step + 1)

    plain = Training(run)
    for _, _step in zip(range(args.steps), plain.train(passes(plain.loader)), strict=False):
        pass

    if run.rank == 0:
        result = f"{kept.accelerator.num_processes} {kept.digest()} {plain.digest()}"
        Path(os.environ["LESSON_RESULT"]).write_text(result)


if __name__ == "__main__":
    main()

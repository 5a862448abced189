"""A training loop with common features: python full_loop.py TOTAL [--fall RANK:STEP:SIGNAL]

Half precision with a loss scale that grows every few steps, gradient accumulation over two micro-batches, clipping.
"""

# ruff: noqa: N806 - names of tensors end in their shapes

import argparse
import json
import os
from pathlib import Path

import torch
from ddp import NOTHING, InjectedSignal, Noisy
from holdfast_worker import Run
from holdfast_worker.checkpoint.checksums import state_dict_digest
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler


class RecordedPoints(Noisy):
    """Points that record the order in which they were read."""

    def __init__(self) -> None:
        super().__init__()
        self.order: list[int] = []

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        self.order.append(i)
        return super().__getitem__(i)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("total", type=int)
    parser.add_argument("--fall", type=InjectedSignal, default=NOTHING)
    args = parser.parse_args()

    torch.set_num_threads(1)
    run = Run.start()
    data = RecordedPoints()
    loader = DataLoader(data, 8, sampler=DistributedSampler(data, run.world_size, run.rank))
    layers = (nn.Linear(8, 32), nn.Dropout(0.2), nn.Linear(32, 1))
    model = run.wrap(nn.Sequential(*layers))
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=7)
    run.track(model=model, optimizer=optimizer, scaler=scaler)

    scales = []
    for x_BC, y_B in run.steps(loader, total=args.total):
        optimizer.zero_grad()
        for x_bC, y_b in zip(x_BC.chunk(2), y_B.chunk(2), strict=True):
            with torch.autocast("cpu", torch.float16):
                loss = (model(x_bC).squeeze(1) - y_b).square().mean() / 2
            scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        args.fall.send(run.rank, run.step + 1)

    if run.rank == 0:
        digest = state_dict_digest(model.module.state_dict())
        found = {"weights": digest, "scaler": scaler.state_dict(), "scales": scales}
        text = json.dumps({**found, "order": data.order})
        Path(os.environ["LESSON_RESULT"]).write_text(text)


if __name__ == "__main__":
    main()

"""A training loop over a stream that continues from pass to pass.

python streaming.py TOTAL CONTINUES [--fall RANK:STEP:SIGNAL]

CONTINUES: 1 or 0, the value of the loop's `continues` option.
"""
# ruff: noqa: N806 - names of tensors end in their shapes

import argparse
import json
import os
from collections.abc import Iterator
from pathlib import Path

import torch
from ddp import NOTHING, InjectedSignal
from holdfast_worker import Run
from holdfast_worker.checkpoint.checksums import state_dict_digest
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset


class Stream(IterableDataset[Tensor]):
    """Numbers of one rank with noise; each pass yields the next forty."""

    def __init__(self, rank: int) -> None:
        self.at = 10_000 * rank

    def __iter__(self) -> Iterator[Tensor]:
        for _ in range(40):
            self.at += 1
            yield torch.rand(4) + self.at


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("total", type=int)
    parser.add_argument("continues", type=int)
    parser.add_argument("--fall", type=InjectedSignal, default=NOTHING)
    args = parser.parse_args()

    torch.set_num_threads(1)
    run = Run.start()
    model = run.wrap(nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.2)))
    optimizer = torch.optim.AdamW(model.parameters())
    run.track(model=model, optimizer=optimizer)

    seen = {}
    loader = DataLoader(Stream(run.rank), 8)
    for x_BC in run.steps(loader, total=args.total, continues=bool(args.continues)):
        seen[run.step] = x_BC.sum().item()
        optimizer.zero_grad()
        model(x_BC / 10_000).square().mean().backward()
        optimizer.step()
        args.fall.send(run.rank, run.step + 1)

    inner = model.module if run.world_size > 1 else model
    found = {"weights": state_dict_digest(inner.state_dict()), "seen": seen}
    Path(f"{os.environ['LESSON_RESULT']}-{run.rank}").write_text(json.dumps(found))


if __name__ == "__main__":
    main()

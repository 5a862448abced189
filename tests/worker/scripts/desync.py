"""A training script with different gradients on one rank from step 16 on.

python desync.py RANK
"""

# ruff: noqa: N806 - names of tensors end in their shapes

import sys

import torch
from holdfast_worker import Run
from torch import nn


def main() -> None:
    torch.set_num_threads(1)
    run = Run.start()
    model = run.wrap(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run.track(model=model, optimizer=optimizer)
    for x_BC in run.steps([torch.ones(2, 4)], total=60):
        optimizer.zero_grad()
        model(x_BC).square().mean().backward()
        if run.step >= 15 and run.rank == int(sys.argv[1]):
            for parameter in model.parameters():
                assert parameter.grad is not None
                parameter.grad *= 3
        optimizer.step()


if __name__ == "__main__":
    main()

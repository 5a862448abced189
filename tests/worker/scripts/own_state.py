"""A training script with per-rank state: python own_state.py MODE TOTAL

Each rank writes its final state to LESSON_RESULT-RANK.
"""

# ruff: noqa: N806 - names of tensors end in their shapes

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from holdfast_worker import Run
from torch import Tensor, nn


class Hidden:
    """Hidden state of truncated backpropagation through time, and the mean of a rank's inputs."""

    def __init__(self) -> None:
        self.h_C = torch.zeros(4)
        self.mean = 0.0

    def state_dict(self) -> dict[str, Any]:
        return {"h": self.h_C, "mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.h_C, self.mean = state["h"], state["mean"]


def leave_residuals(optimizer: torch.optim.Optimizer, rank: int) -> None:
    """Add per-rank residuals to the optimizer state, as gradient compression does."""
    for parameter, state in optimizer.state.items():
        state["residual"] = torch.full_like(parameter, rank + 1.0)


def batches(rank: int) -> list[Tensor]:
    """Batches that differ between ranks."""
    return [torch.full((2, 4), float(rank + 1 + i)) for i in range(6)]


def main() -> None:
    mode, total = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    run = Run.start()
    torch.manual_seed(7)
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    model = run.wrap(net, gradients_agree=mode != "apart")
    optimizer = torch.optim.AdamW(model.parameters())
    hidden = Hidden()
    if mode == "residual":
        optimizer.register_step_post_hook(lambda *_: leave_residuals(optimizer, run.rank))
    tracked: dict[str, Any] = {"model": model, "optimizer": optimizer, "hidden": hidden}
    if mode == "names" and run.rank == 1:
        del tracked["hidden"]
    if mode == "values" and run.rank == 1:
        hidden.h_C += 1
    kept = ["hidden"] if mode in ("kept", "apart") else []
    run.track(per_rank=kept, **tracked)

    for x_BC in run.steps(batches(run.rank), total=total):
        module = net if mode == "apart" else model
        loss = (module(x_BC) + hidden.h_C.to_dense()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if mode == "sparse" and run.step == 3 and run.rank == 1:
            hidden.h_C = hidden.h_C.to_sparse()
        if mode in ("kept", "apart") or (mode == "shared" and run.step >= 3):
            hidden.h_C = hidden.h_C * 0.5 + x_BC.mean(0)
            hidden.mean += float(x_BC.mean())

    found = {
        "hidden": [*hidden.h_C.tolist(), hidden.mean],
        "model": {name: value.tolist() for name, value in net.state_dict().items()},
        "moments": [s["exp_avg"].sum().item() for s in optimizer.state_dict()["state"].values()],
    }
    Path(f"{os.environ['LESSON_RESULT']}-{run.rank}").write_text(json.dumps(found))


if __name__ == "__main__":
    main()

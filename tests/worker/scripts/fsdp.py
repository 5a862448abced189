"""A training script with FSDP2 or DDP: python fsdp.py {fsdp,ddp} TOTAL"""

# ruff: noqa: N806 - names of tensors end in their shapes

import json
import os
import sys
from pathlib import Path

import torch
from holdfast_worker import Run
from holdfast_worker.checkpoint.checksums import state_dict_digest
from torch import Tensor, nn
from torch.distributed.tensor import DTensor


def whole(tensor: Tensor) -> Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def main() -> None:
    kind, total = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(1)
    run = Run.start()
    torch.manual_seed(7)
    # Sizes that no number of ranks divides evenly, and a layer without elements on some ranks.
    model: nn.Module = nn.Sequential(nn.Linear(5, 33), nn.ReLU(), nn.Linear(33, 1))
    model = run.wrap(model, shard=kind == "fsdp")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    run.track(model=model, optimizer=optimizer)

    x_NC = torch.linspace(-1, 1, 240 * 5).reshape(240, 5)
    for x_BC in run.steps(list(x_NC.split(24)), total=total):
        loss = (model(x_BC).squeeze(1) - x_BC.sum(1).sin()).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    inner = getattr(model, "module", model)
    weights = {name: whole(value) for name, value in inner.state_dict().items()}
    moments = [
        whole(state[name]).double().sum().item()
        for state in optimizer.state_dict()["state"].values()
        for name in ("exp_avg", "exp_avg_sq", "step")
    ]
    if run.rank == 0:
        found = {"weights": state_dict_digest(weights), "moments": moments}
        Path(os.environ["LESSON_RESULT"]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()

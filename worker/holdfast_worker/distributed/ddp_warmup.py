"""A rehearsal of DDP's first backward pass, so that all steps sum gradients in the same order, those after a resume too.

DDP sums gradients over the ranks in buckets. Of its first step it learns in which order they come, and fills the buckets
in that order from the second step on. Where in a bucket a number lies decides at which rank its sum begins, and of three
numbers or more the sum depends, in its last bits, on where it begins. So the first step of a process is unlike the same
step of a run that was left alone, and a job that was resumed would end with other weights. Two numbers have one sum.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from holdfast_worker.console import log_info
from holdfast_worker.distributed.process_group import ProcessGroup

ALIKE: Final = 2
"""Up to so many ranks every order gives the same sums."""


def warm_up_ddp(objects: Iterable[object], ranks: ProcessGroup) -> None:
    """Let those of the objects that DDP wrapped learn their order of gradients now; all ranks call it.

    The order is that of the parameters, backwards: close to that of the real ones, and the same in every process. What
    cannot be rehearsed is said.
    """
    for item in objects:
        ddp = getattr(item, "_orig_mod", item)  # What `torch.compile` made of it.
        if not isinstance(ddp, DistributedDataParallel) or ddp.find_unused_parameters:
            # Who looks for unused parameters keeps the first buckets.
            continue
        if dist.get_world_size(ddp.process_group) <= ALIKE:
            continue
        # One rank may have what the others have not, such as a hook that shows gradients.
        why = ranks.first_message(obstacle(ddp))
        if not why:
            play(ddp)
        elif ranks.rank == 0:
            log_info(
                f"{why}, so DDP sums the gradients of its first step in another order than those of later ones: "
                "after a resume the weights may differ in their last bits from those of an undisturbed run"
            )


def play(ddp: DistributedDataParallel) -> None:
    """One pass in which every gradient is zero. Weights, gradients and random generators are as before."""
    parameters = [p for p in ddp.module.parameters() if p.requires_grad]
    gradients = [p.grad for p in parameters]
    for parameter in parameters:
        parameter.grad = None
    model = ddp.module
    ddp.module = _Understudy(parameters)
    ddp.require_forward_param_sync = False  # The understudy has no buffers; the call puts it back.
    try:
        with torch.enable_grad():
            ddp(torch.zeros(1)).sum().backward()
    finally:
        ddp.module = model
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


def obstacle(ddp: DistributedDataParallel) -> str:
    """What such a pass would disturb, or be disturbed by; empty if nothing."""
    parameters, modules = list(ddp.module.parameters()), list(ddp.module.modules())
    obstacles = {
        "with static_graph=True the first step is to be a real one": ddp.static_graph,
        "DDP's mixed precision needs the real model": ddp.mixed_precision is not None,
        "some parameters are sharded": any(isinstance(p, DTensor) for p in parameters),
        "some gradients are sparse": any(getattr(m, "sparse", False) for m in modules),
        "DDP has a communication hook, which takes each gradient for that of a real step": bool(
            getattr(ddp, "_comm_hooks", None)
        ),
        "parameters have hooks, which take each gradient for that of a real step": any(
            getattr(p, hooks, None)
            for p in parameters
            for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks")
        ),
    }
    return next((words for words, is_so in obstacles.items() if is_so), "")


class _Understudy(nn.Module):
    """In place of the model: depends on all of its parameters, in their order, and on the value of none."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__()
        # In a tuple, as they are not to be known by a second name.
        self._parameters_of_model = tuple(parameters)

    def forward(self, _nothing: Tensor) -> Tensor:
        nothing = [p.flatten()[:0].abs().sum().float() for p in self._parameters_of_model]
        return torch.stack(nothing)

"""A warm-up of DDP's first backward pass, so that all steps sum gradients in one order.

DDP sums gradients over the ranks in buckets. In its first step it learns the order of the gradients, and fills the buckets
in that order from the second step on. The position in a bucket determines at which rank a sum begins. With three or more
numbers, the last bits of a sum depend on that. The first step of a process therefore differs from the same step of
an uninterrupted run, and a resumed job would end with different weights. Two numbers have only one sum.
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

MAX_ORDER_FREE_RANKS: Final = 2
"""Number of ranks up to which every order gives the same sums."""


def warm_up_ddp(objects: Iterable[object], ranks: ProcessGroup) -> None:
    """Make DDP models learn their gradient order now; a collective call.

    The order is that of the parameters, backwards: close to the real order, and the same in every process. A model that
    cannot be warmed up is logged.
    """
    for item in objects:
        ddp = getattr(item, "_orig_mod", item)  # Inside `torch.compile`.
        if not isinstance(ddp, DistributedDataParallel) or ddp.find_unused_parameters:
            # With find_unused_parameters, DDP keeps the first buckets.
            continue
        is_order_free = dist.get_world_size(ddp.process_group) <= MAX_ORDER_FREE_RANKS
        if is_order_free and not ranks.recoverable:
            # A rank that joins later must learn the order by itself.
            continue
        # An obstacle may exist on one rank only, such as a hook that prints gradients.
        obstacle = ranks.first_message(warmup_obstacle(ddp))
        if not obstacle:
            run_warmup_pass(ddp)
            if ranks.recoverable and ddp.reducer._rebuild_buckets():  # noqa: SLF001 - as DDP does in the next forward pass
                # A rank that joins later does this while it is alone.
                ddp._has_rebuilt_buckets = True  # noqa: SLF001
        elif ranks.rank == 0:
            log_info(
                f"{obstacle}, so DDP sums the gradients of its first step in a different order than later ones: "
                "after a resume the last bits of the weights may differ from those of an uninterrupted run"
            )


def run_warmup_pass(ddp: DistributedDataParallel) -> None:
    """Run one pass with zero gradients. Weights, gradients and random generators stay unchanged."""
    parameters = [p for p in ddp.module.parameters() if p.requires_grad]
    gradients = [p.grad for p in parameters]
    for parameter in parameters:
        parameter.grad = None
    model = ddp.module
    ddp.module = _ProxyModel(parameters)
    ddp.require_forward_param_sync = False  # The proxy has no buffers; the call resets this.
    try:
        with torch.enable_grad():
            ddp(torch.zeros(1)).sum().backward()
    finally:
        ddp.module = model
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient


def warmup_obstacle(ddp: DistributedDataParallel) -> str:
    """Why a warm-up pass would be disturbed or disturb the model; empty if it is possible."""
    parameters, modules = list(ddp.module.parameters()), list(ddp.module.modules())
    obstacles = {
        "with static_graph=True the first step must be a real one": ddp.static_graph,
        "DDP's mixed precision needs the real model": ddp.mixed_precision is not None,
        "some parameters are sharded": any(isinstance(p, DTensor) for p in parameters),
        "some gradients are sparse": any(getattr(m, "sparse", False) for m in modules),
        "DDP has a communication hook, which would see the gradients of the warm-up": bool(
            getattr(ddp, "_comm_hooks", None)
        ),
        "parameters have hooks, which would see the gradients of the warm-up": any(
            getattr(p, hooks, None)
            for p in parameters
            for hooks in ("_backward_hooks", "_post_accumulate_grad_hooks")
        ),
    }
    return next((reason for reason, is_so in obstacles.items() if is_so), "")


class _ProxyModel(nn.Module):
    """Replaces the model: depends on all its parameters in order, but not on their values."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        super().__init__()
        # In a tuple, so that the parameters are not registered under a second name.
        self._parameters_of_model = tuple(parameters)

    def forward(self, _nothing: Tensor) -> Tensor:
        nothing = [p.flatten()[:0].abs().sum().float() for p in self._parameters_of_model]
        return torch.stack(nothing)

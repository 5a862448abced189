"""The gradients of all ranks, which DDP has made the same: looked at now and then, and compared by their norm.

No step waits for it. The norm is computed beside the training, is on its way to the CPU while the next steps are made, and travels
in a vote that is held anyway.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any, Final

import torch
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from holdfast_worker.boundary import differ

EVERY: Final = 20
"""Steps from one look to the next. More and a run computes nonsense for longer, fewer reads all gradients once more, more often."""

LAG: Final = 5
"""Steps from a look until its norm is read. Fewer and a GPU that is behind is waited for; more and checkpoints are made meanwhile."""

NOT_FINITE: Final = 1e300
"""The norm of gradients that are not finite, in a vote: NaN has no maximum. If they are so on all ranks, they are the same."""


class Gradients:
    """Those of the models that DDP keeps the same, on this rank."""

    def __init__(self) -> None:
        self._watched: set[Tensor] = set()
        self._steps = 0
        self._is_due = True
        self._looked = 0
        """Steps that were over at the newest look."""
        self._read: Callable[[], float] | None = None

    def watch(self, model: DistributedDataParallel) -> None:
        """From now on look at those of this model, too."""
        if not self._watched:
            register_optimizer_step_pre_hook(self._before_step)
        for name, parameter in model.module.named_parameters():
            if parameter.requires_grad and name not in model.parameters_to_ignore:
                self._watched.add(parameter)

    def end_step(self) -> None:
        """A step of the training is over; all ranks count the same ones."""
        self._steps += 1
        self._is_due = self._is_due or self._steps % EVERY == 0

    def norm(self) -> float | None:
        """That of the look that is `LAG` steps old; None at all other times."""
        if self._read is None or self._steps != self._looked + LAG:
            return None
        norm = self._read()
        return norm if math.isfinite(norm) else NOT_FINITE

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """Look at what an optimizer is about to use: others may still be summing theirs up, each rank its own."""
        if not self._is_due or (
            torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        ):
            return  # What a graph records it does again and again, and may not wait for anything.
        norms = [
            torch.linalg.vector_norm(p.grad, dtype=torch.promote_types(p.dtype, torch.float32))
            for group in optimizer.param_groups
            for p in group["params"]
            if p in self._watched and p.grad is not None and p.grad.layout is torch.strided
        ]
        if norms:
            self._is_due, self._looked = False, self._steps
            self._read = _sent(torch.linalg.vector_norm(torch.stack(norms)))


def _sent(value: Tensor) -> Callable[[], float]:
    """What reads a value on the CPU; from a GPU it is on its way there from now on."""
    if not value.is_cuda:
        number = float(value)
        return lambda: number
    place, is_there = torch.empty_like(value, device="cpu", pin_memory=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
    place.copy_(value, non_blocking=True)
    is_there.record()

    def read() -> float:
        is_there.synchronize()
        return float(place)

    return read


def blame(norms: Sequence[float], step: int) -> str:
    """Which of the ranks have other gradients than most, in words; `norms` by rank, of those of `step`."""
    usual = median(norms)
    odd = [r for r, norm in enumerate(norms) if differ(max(norm, usual), min(norm, usual))]
    if len(odd) in {0, len(norms)} or len(norms) == 2:
        told = ", ".join(f"{_shown(norm)} on rank {rank}" for rank, norm in enumerate(norms))
        return f"the ranks have different gradients in step {step}: their norm is {told}"
    whose = ", ".join(str(rank) for rank in odd)
    told = ", ".join(_shown(norms[rank]) for rank in odd)
    ranks = "ranks" if len(odd) > 1 else "rank"
    return (
        f"the gradients of {ranks} {whose} are not those of the others in step {step}: "
        f"their norm is {told}, and {_shown(usual)} elsewhere"
    )


def _shown(norm: float) -> str:
    if norm < 0:
        return "none"
    return "not finite" if norm >= NOT_FINITE else f"{norm:.4g}"

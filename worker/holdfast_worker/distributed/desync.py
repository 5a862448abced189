"""The gradients of all ranks, which DDP has made the same, and their weights: looked at now and then, and compared by their norms.

No step waits for it. The norms are computed beside the training, are on their way to the CPU while the next steps are made, and travel
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

from holdfast_worker.distributed.step_vote import TOLERANCE, TOLERANCE_OF_WEIGHTS, differ

EVERY: Final = 20
"""Steps from one look to the next. More and a run computes nonsense for longer, fewer reads all gradients once more, more often."""

LAG: Final = 5
"""Steps from a look until its norm is read. Fewer and a GPU that is behind is waited for; more and checkpoints are made meanwhile."""

NOT_FINITE: Final = 1e300
"""The norm of gradients that are not finite, in a vote: NaN has no maximum. If they are so on all ranks, they are the same."""


UNKNOWN: Final = -1.0
"""The norm that a rank has not looked at."""


class DesyncDetector:
    """Those of the models that DDP keeps the same, on this rank."""

    def __init__(self) -> None:
        self._watched: set[Tensor] = set()
        self._steps = 0
        self._is_due = True
        self._looked = 0
        """Steps that were over at the newest look."""
        self._read: Callable[[], list[float]] | None = None

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

    def norms(self) -> tuple[float | None, float | None]:
        """Those of gradients and weights at the look that is `LAG` steps old; None at all other times."""
        if self._read is None or self._steps != self._looked + LAG:
            return None, None
        of_gradients, of_weights = (
            norm if math.isfinite(norm) else NOT_FINITE for norm in self._read()
        )
        return of_gradients, of_weights

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """Look at what an optimizer is about to use: others may still be summing theirs up, each rank its own."""
        if not self._is_due or (
            torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        ):
            return  # What a graph records it does again and again, and may not wait for anything.
        seen = [
            (p.grad, p.detach())
            for group in optimizer.param_groups
            for p in group["params"]
            if p in self._watched and p.grad is not None and p.grad.layout is torch.strided
        ]
        if seen:
            self._is_due, self._looked = False, self._steps
            gradients, weights = zip(*seen, strict=True)
            self._read = _sent(torch.stack([_norm(gradients), _norm(weights)]))


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    """The L2 norm of all of them together."""
    norms = [
        torch.linalg.vector_norm(one, dtype=torch.promote_types(one.dtype, torch.float32))
        for one in tensors
    ]
    whole: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return whole


def _sent(values: Tensor) -> Callable[[], list[float]]:
    """What reads values on the CPU; from a GPU they are on their way there from now on."""
    if not values.is_cuda:
        return values.tolist
    place, is_there = torch.empty_like(values, device="cpu", pin_memory=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
    place.copy_(values, non_blocking=True)
    is_there.record()

    def read() -> list[float]:
        is_there.synchronize()
        numbers: list[float] = place.tolist()
        return numbers

    return read


def blame(norms: Sequence[float], weights: Sequence[float], step: int) -> str:
    """Which of the ranks have other gradients than most, or other weights, in words; norms of `step`, by rank."""
    if differ(max(norms), min(norms)):
        return _blame("gradients", norms, TOLERANCE, step)
    return _blame("weights", weights, TOLERANCE_OF_WEIGHTS, step)


def _blame(what: str, norms: Sequence[float], tolerance: float, step: int) -> str:
    usual = median(norms)
    odd = [
        r for r, norm in enumerate(norms) if differ(max(norm, usual), min(norm, usual), tolerance)
    ]
    if len(odd) in {0, len(norms)} or len(norms) == 2:
        told = ", ".join(f"{_shown(norm)} on rank {rank}" for rank, norm in enumerate(norms))
        return f"the ranks have different {what} in step {step}: their norm is {told}"
    whose = ", ".join(str(rank) for rank in odd)
    told = ", ".join(_shown(norms[rank]) for rank in odd)
    ranks = "ranks" if len(odd) > 1 else "rank"
    return (
        f"the {what} of {ranks} {whose} are not those of the others in step {step}: "
        f"their norm is {told}, and {_shown(usual)} elsewhere"
    )


def _shown(norm: float) -> str:
    if norm < 0:
        return "none"
    return "not finite" if norm >= NOT_FINITE else f"{norm:.5g}"

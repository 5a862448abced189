"""Desync detection: compares the norms of gradients and weights across ranks at intervals.

No step waits for it. The norms are computed during training, copied to the CPU during the next steps, and sent with a step vote.
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

from holdfast_worker.distributed.step_vote import TOLERANCE, WEIGHT_TOLERANCE, differ

CHECK_STEPS: Final = 20
"""Steps between checks. A higher value detects a desync later; a lower value reads all
gradients more often."""

READ_LAG_STEPS: Final = 5
"""Steps from a check until its norm is read. A lower value waits for a slow GPU; a higher
value saves more checkpoints of a desynced model."""

NOT_FINITE: Final = 1e300
"""Replaces non-finite norms in a vote, because NaN has no maximum. Norms that
are not finite on all ranks count as equal."""


UNKNOWN: Final = -1.0
"""The norm of a rank without a check."""


class DesyncDetector:
    """Checks the parameters that DDP keeps equal, on this rank."""

    def __init__(self) -> None:
        self._watched: set[Tensor] = set()
        self._steps = 0
        self._is_due = True
        self._checked_step = 0
        """Finished steps at the newest check."""
        self._read: Callable[[], list[float]] | None = None

    def watch(self, model: DistributedDataParallel) -> None:
        """Also check the parameters of this model."""
        if not self._watched:
            register_optimizer_step_pre_hook(self._before_step)
        for name, parameter in model.module.named_parameters():
            if parameter.requires_grad and name not in model.parameters_to_ignore:
                self._watched.add(parameter)

    def end_step(self) -> None:
        """Register the end of a training step; all ranks count the same steps."""
        self._steps += 1
        self._is_due = self._is_due or self._steps % CHECK_STEPS == 0

    def norms(self) -> tuple[float | None, float | None]:
        """Norms of gradients and weights, `READ_LAG_STEPS` after a check; otherwise None."""
        if self._read is None or self._steps != self._checked_step + READ_LAG_STEPS:
            return None, None
        of_gradients, of_weights = (
            norm if math.isfinite(norm) else NOT_FINITE for norm in self._read()
        )
        return of_gradients, of_weights

    @torch.no_grad()
    def _before_step(self, optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        """Compute the norms for this optimizer; other gradients may still be accumulating."""
        if not self._is_due or (
            torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()
        ):
            return  # A captured graph would replay the check, and must not wait.
        seen = [
            (p.grad, p.detach())
            for group in optimizer.param_groups
            for p in group["params"]
            if p in self._watched and p.grad is not None and p.grad.layout is torch.strided
        ]
        if seen:
            self._is_due, self._checked_step = False, self._steps
            gradients, weights = zip(*seen, strict=True)
            self._read = _copy_to_host(torch.stack([_norm(gradients), _norm(weights)]))


def _norm(tensors: Sequence[Tensor]) -> Tensor:
    """The L2 norm over all tensors."""
    norms = [
        torch.linalg.vector_norm(one, dtype=torch.promote_types(one.dtype, torch.float32))
        for one in tensors
    ]
    whole: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    return whole


def _copy_to_host(values: Tensor) -> Callable[[], list[float]]:
    """Return a function that reads the values on the CPU; a copy from a GPU starts now."""
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


def describe_desync(norms: Sequence[float], weights: Sequence[float], step: int) -> str:
    """Describe which ranks have divergent gradients or weights, from the norms of `step`."""
    if differ(max(norms), min(norms)):
        return _describe_outliers("gradients", norms, TOLERANCE, step)
    return _describe_outliers("weights", weights, WEIGHT_TOLERANCE, step)


def _describe_outliers(quantity: str, norms: Sequence[float], tolerance: float, step: int) -> str:
    usual = median(norms)
    odd = [
        r for r, norm in enumerate(norms) if differ(max(norm, usual), min(norm, usual), tolerance)
    ]
    if len(odd) in {0, len(norms)} or len(norms) == 2:
        values = ", ".join(
            f"{_format_norm(norm)} on rank {rank}" for rank, norm in enumerate(norms)
        )
        return f"the ranks have different {quantity} in step {step}: the norms are {values}"
    numbers = ", ".join(str(rank) for rank in odd)
    values = ", ".join(_format_norm(norms[rank]) for rank in odd)
    ranks = "ranks" if len(odd) > 1 else "rank"
    return (
        f"the {quantity} of {ranks} {numbers} differ from those of the other ranks in step {step}: "
        f"norm {values} instead of {_format_norm(usual)}"
    )


def _format_norm(norm: float) -> str:
    if norm < 0:
        return "none"
    return "not finite" if norm >= NOT_FINITE else f"{norm:.5g}"

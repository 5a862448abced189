"""Collectives that can be repeated in another group, with their inputs and results."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Final

import torch.distributed as dist
from torch import Tensor
from torch.futures import Future

from holdfast_worker.distributed.connected_group import BegunCollective, Issue

MAX_COPIED_BYTES: Final = 1024 * 1024
"""Size of a result that is copied.
A lower value excludes models that change larger buffers; a higher value copies gradients in each step."""


class BoundaryRestarted(Exception):
    """Raised in a step boundary: the ranks have changed, and the boundary begins again."""


@dataclass(slots=True, eq=False)
class Collective:
    """A collective, with what is needed to repeat it or to hand out its result."""

    number: int
    issue: Issue
    tensors: list[Tensor]
    """Where the result is."""
    inputs: list[Tensor]
    """Copies of `tensors` from before the collective, if it changes its inputs."""
    future: Future[list[Tensor]]
    versions: list[int] = field(default_factory=list)
    """Versions of `tensors` at completion."""
    copies: list[Tensor] = field(default_factory=list)
    """Copies of a small result, which the caller may change at once, such as buffers of a model."""
    is_completed: bool = False
    is_void: bool = False
    """Whether the boundary that began it begins again, so that it has no result."""
    begun: BegunCollective | None = None
    """None: it has not begun in the current group."""

    def complete(self) -> None:
        """Record the result, before the caller can change it."""
        if sum(tensor.nbytes for tensor in self.tensors) <= MAX_COPIED_BYTES:
            self.copies = [tensor.detach().clone() for tensor in self.tensors]
        else:
            self.versions = [tensor._version for tensor in self.tensors]  # noqa: SLF001 - torch has no other name for it
        self.is_completed = True

    @property
    def has_result(self) -> bool:
        """Whether the result is still here."""
        if not self.is_completed:
            return False
        return not self.versions or self.versions == [t._version for t in self.tensors]  # noqa: SLF001

    @property
    def result(self) -> list[Tensor]:
        """The result, as it was at completion."""
        return self.tensors if self.versions else self.copies

    def reset(self) -> None:
        """Restore the inputs, which a failed collective may have changed."""
        for tensor, copy in zip(self.tensors, self.inputs, strict=False):
            tensor.copy_(copy)


class RecoverableWork(dist.Work):
    """The work of a collective that may be completed in another connected group."""

    def __init__(self, collective: Collective) -> None:
        super().__init__()
        self._collective = collective

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:  # noqa: ARG002 - of torch
        """Wait for the collective, also while ranks are replaced.

        Raises:
            BoundaryRestarted: the step boundary begins again.
        """
        self._collective.future.wait()
        if self._collective.is_void:
            raise BoundaryRestarted
        return True

    def get_future(self) -> Future[list[Tensor]]:
        """The future of the result."""
        return self._collective.future

    @property
    def is_done(self) -> bool:
        """Whether the result is there."""
        return self._collective.is_completed

"""The fence: optimizers do not change what is still being copied."""

from __future__ import annotations

from typing import Any

from torch.optim.optimizer import Optimizer, register_optimizer_step_pre_hook

from holdfast_worker.copying import Copying


class Fence:
    """Stands before every `optimizer.step()` of this process, from the moment on at which it is made.

    A step that never comes by here, such as one that a CUDA graph replays, is not held up. So nothing is copied beside the
    training that did not come by in the step before.
    """

    def __init__(self) -> None:
        self._copying: Copying | None = None
        self._is_passed = False
        self._is_heeded = False
        self._is_trusted = True
        self.batches = 0
        """Batches of the training that are over."""
        self.stepped = 0
        """Those of them in which an optimizer stepped."""
        self._post = register_optimizer_step_pre_hook(self._before_step)

    @property
    def is_open(self) -> bool:
        """Whether a copy may go on beside the next step."""
        return self._is_heeded and self._is_trusted

    def guard(self, copying: Copying) -> None:
        """Hold up optimizers until this is done, after the one before."""
        if self._copying and self._copying.is_torn:
            # Who changes the state by other means will do so again.
            self._is_trusted = False
        self._copying = copying

    def end_step(self) -> None:
        """A step of the training is over."""
        self.batches += 1
        self.stepped += self._is_passed
        self._is_heeded, self._is_passed = self._is_passed, False

    def close(self) -> None:
        """Hold up nobody any more."""
        self._post.remove()

    def _before_step(self, _optimizer: Optimizer, _args: Any, _kwargs: Any) -> None:
        self._is_passed = True
        if self._copying:
            self._copying.fence()

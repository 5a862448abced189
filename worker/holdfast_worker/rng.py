"""The global random generators of a process: Python, NumPy, torch and this rank's GPU."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from holdfast_worker.config import Config, enable_deterministic_cublas

RngStates = dict[str, Any]
"""States of all global generators, as a tree that a checkpoint can hold."""


def seed(number: int) -> None:
    """Seed all global generators."""
    random.seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002 - the global generator is what people's code draws from
    torch.manual_seed(number)


def seed_rank(config: Config, *, deterministic: bool) -> None:
    """Seed this rank's generators, and select deterministic algorithms if configured.

    torch only warns about operations without a deterministic algorithm, as an error would stop the whole run.
    """
    if deterministic or config.is_deterministic:
        enable_deterministic_cublas()
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
    seed(config.seed + config.rank)


def capture() -> RngStates:
    """The states of all global generators.

    Draws after this call can be repeated after `restore`.
    """
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - see above
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def restore(states: RngStates) -> None:
    """Restore the states of all global generators from `capture`."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002 - see above
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


@contextmanager
def preserved() -> Iterator[None]:
    """Restore the generators on exit, so that draws and seeds inside have no effect outside."""
    outside = capture()
    try:
        yield
    finally:
        restore(outside)


def derive_states(states: RngStates, number: int) -> RngStates:
    """Derive states for a rank without saved ones: distinct by `number`, and reproducible."""
    digest = hashlib.sha256(states["torch"].numpy().tobytes() + number.to_bytes(8)).digest()
    outside = capture()
    seed(int.from_bytes(digest[:8]) >> 1)
    inside = capture()
    restore(outside)
    return inside


class RngStream:
    """A second set of generator states: draws inside a `with` do not affect draws outside."""

    def __init__(self) -> None:
        """Draw the seed from torch's global generator, so that it is the same in a replay."""
        drawn = int(torch.randint(2**62, ()).item())
        outside = capture()
        seed(drawn)
        self.inner_states = capture()
        """The states at which the next `with` begins."""
        restore(outside)
        self._outer_states = outside

    def __enter__(self) -> Self:
        self._outer_states = capture()
        restore(self.inner_states)
        return self

    def __exit__(
        self, _t: type[BaseException] | None, _e: BaseException | None, _b: TracebackType | None
    ) -> None:
        self.inner_states = capture()
        restore(self._outer_states)

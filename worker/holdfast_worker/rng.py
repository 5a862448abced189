"""The global random generators of a process: Python's, NumPy's, torch's, and the one of this rank's GPU."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from holdfast_worker.config import Config, ask_cublas

States = dict[str, Any]
"""A tree that a checkpoint can hold."""


def seed(number: int) -> None:
    """Seed all of them."""
    random.seed(number)
    np.random.seed(number % 2**32)  # noqa: NPY002 - the global generator is what people's code draws from
    torch.manual_seed(number)


def seed_rank(config: Config, *, deterministic: bool) -> None:
    """Seed this rank's, and ask for algorithms that give the same bits each time if the script or the environment wants it.

    torch warns of what has no such algorithm, and goes on: a run that fell over it would prove nothing at all.
    """
    if deterministic or config.is_deterministic:
        ask_cublas()
        torch.use_deterministic_algorithms(True, warn_only=True)
        torch.backends.cudnn.benchmark = False
    seed(config.seed + config.rank)


def capture() -> States:
    """Their states. Everything drawn from now on can be drawn again after `restore`."""
    return {
        "python": random.getstate(),
        "numpy": np.random.get_state(),  # noqa: NPY002 - see above
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state() if torch.cuda.is_available() else None,
    }


def restore(states: States) -> None:
    """Put them back where they were at `capture`."""
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])  # noqa: NPY002 - see above
    torch.set_rng_state(states["torch"])
    if states["cuda"] is not None and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


@contextmanager
def undisturbed() -> Iterator[None]:
    """What is drawn or seeded inside is as if it had not been."""
    outside = capture()
    try:
        yield
    finally:
        restore(outside)


def branch(states: States, number: int) -> States:
    """States for a rank that had none, from those of one that had: its own for each number, and always the same."""
    digest = hashlib.sha256(states["torch"].numpy().tobytes() + number.to_bytes(8)).digest()
    outside = capture()
    seed(int.from_bytes(digest[:8]) >> 1)
    inside = capture()
    restore(outside)
    return inside


class Stream:
    """A second set of states: what is drawn inside a `with` does not disturb what is drawn outside, and back."""

    def __init__(self) -> None:
        """A stream whose seed is drawn from torch's global generator, and so is the same in a replay."""
        drawn = int(torch.randint(2**62, ()).item())
        outside = capture()
        seed(drawn)
        self.inside = capture()
        """The states that the next `with` begins at."""
        restore(outside)
        self._outside = outside

    def __enter__(self) -> Self:
        self._outside = capture()
        restore(self.inside)
        return self

    def __exit__(
        self, _t: type[BaseException] | None, _e: BaseException | None, _b: TracebackType | None
    ) -> None:
        self.inside = capture()
        restore(self._outside)

"""The feed: the batches of a loader, pass after pass over the data, from an exact position.

A loader draws its order when a pass begins, from generators that the training draws from too. So the position is
kept as the state of the generators at the dawn of the pass, the number of batches taken since, and the state now:
to go on, the dawn is put back, the pass begun again, the taken batches are skipped, and the present is put back.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset

from holdfast_worker import rng
from holdfast_worker.console import tell

B = TypeVar("B")


class LoaderChanged(Exception):
    """The loader does not reach the position that a checkpoint was taken at."""


@dataclass(frozen=True, slots=True)
class Position:
    """Where a rank is in its data."""

    passes: int
    """Whole passes over the data; what samplers call the epoch."""
    taken: int
    """Batches taken of this pass."""
    dawn: rng.States
    """The generators when this pass began."""
    present: rng.States
    """The generators now."""


class Feed(Generic[B]):
    """Batches without end. Only what the steps consumed counts as taken, and nothing is drawn between two of them."""

    def __init__(self, loader: Iterable[B], start: Position | None = None) -> None:
        """Begin at `start`, or where the generators are now."""
        self._loader = loader
        self._start = start
        self._passes = start.passes if start else 0
        self._taken = start.taken if start else 0
        self._dawn: rng.States = {}
        if isinstance(loader, DataLoader):
            is_iterable = isinstance(loader.dataset, IterableDataset)
            is_in_process = loader.num_workers == 0
        else:
            is_iterable = is_in_process = True
        # Data that is made up on the way, in this process, gets generators of its own. Otherwise what it draws would
        # depend on what the training drew in between, and skipping by replay would not make the same data again.
        self._draws_apart = is_iterable and is_in_process
        self._skips_unread = is_in_process and not is_iterable
        self._warn_of_long_lived_workers()

    @property
    def position(self) -> Position:
        """Where the feed is. Ask between a step and the next batch."""
        return Position(self._passes, self._taken, self._dawn, self._capture())

    def __iter__(self) -> Iterator[B]:
        """The batches from here on.

        Raises:
            LoaderChanged: the position of the start is beyond the data.
            ValueError: a whole pass gave no batch.
        """
        while True:
            apart, batches = self._begin_pass()
            while True:
                with apart:
                    batch = next(batches, _END)
                if isinstance(batch, _End):
                    break
                self._taken += 1
                yield batch
            if self._taken == 0:
                raise ValueError("the loader gave no batch in a whole pass over the data")
            self._passes += 1
            self._taken = 0

    def _begin_pass(self) -> tuple[AbstractContextManager[object], Iterator[B]]:
        """The rest of a pass, and the context in which to take batches from it."""
        start, self._start = self._start, None
        if start:
            self._restore(start.dawn)
        self._tell_pass()
        self._dawn = self._capture()
        apart: AbstractContextManager[object] = rng.Stream() if self._draws_apart else nullcontext()
        with apart:
            batches = iter(self._loader)
            if start:
                self._skip(batches, start.taken)
        if start:
            self._restore(start.present)
        return apart, batches

    def _skip(self, batches: Iterator[B], taken: int) -> None:
        # What a loader without workers skips need not be read, only be counted off. The method is torch's own, since
        # 1.2; a loader without it is replayed. With workers all is replayed: their generators must get there too.
        next_index = getattr(batches, "_next_index", None) if self._skips_unread else None
        for _ in range(taken):
            try:
                if next_index:
                    next_index()
                else:
                    next(batches)
            except StopIteration:
                raise LoaderChanged(
                    f"the checkpoint was taken after batch {taken} of a pass, and the loader has fewer: "
                    "did the data or the batch size change?"
                ) from None

    def _tell_pass(self) -> None:
        """Let samplers shuffle anew, as `DistributedSampler` asks for."""
        for part in self._parts():
            if hasattr(part, "set_epoch"):
                part.set_epoch(self._passes)

    def _capture(self) -> rng.States:
        own = [generator.get_state() for generator in self._generators()]
        return {"global": rng.capture(), "own": own}

    def _restore(self, states: rng.States) -> None:
        rng.restore(states["global"])
        for generator, state in zip(self._generators(), states["own"], strict=True):
            generator.set_state(state)

    def _generators(self) -> list[torch.Generator]:
        """Generators that were given to the loader or its samplers, each once."""
        found = (getattr(part, "generator", None) for part in self._parts())
        return list({id(g): g for g in found if isinstance(g, torch.Generator)}.values())

    def _parts(self) -> list[Any]:
        """The loader and what chooses its samples, each once."""
        sampler = getattr(self._loader, "sampler", None)
        batches = getattr(self._loader, "batch_sampler", None)
        inner = getattr(batches, "sampler", None)
        dataset = getattr(self._loader, "dataset", None)
        parts = (self._loader, sampler, batches, inner, dataset)
        return list({id(part): part for part in parts if part is not None}.values())

    def _warn_of_long_lived_workers(self) -> None:
        if getattr(self._loader, "persistent_workers", False):
            tell(
                "persistent_workers keep their random state from pass to pass, where no checkpoint sees it: "
                "after a resume the order of the data is exact, random augmentation in the workers is not"
            )


class _End:
    """What comes after the last batch of a pass; None may be a batch."""


_END = _End()

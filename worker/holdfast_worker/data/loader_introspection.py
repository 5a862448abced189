"""Inspects data loaders, and makes a loader return the rest of an inherited pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
)

from holdfast_worker.data.exact_sampler import ExactSampler
from holdfast_worker.data.sample_order import (
    Order,
    RandomOrder,
    RemainderSampler,
    Sequential,
    Shuffled,
)
from holdfast_worker.data.sampling import SamplingScheme, SourceKind
from holdfast_worker.rng import RngStates


@runtime_checkable
class StatefulLoader(Protocol):
    """A loader that can return and restore its position."""

    def state_dict(self) -> Any:
        """Return the position as a tree of plain values and tensors."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Restore a position that `state_dict` returned."""


def stateful_part(loader: object) -> StatefulLoader | None:
    """The loader if its own state is reliable; None if it must be replayed.

    Among subclasses of `DataLoader`, only torchdata's is reliable. Others have these methods without a state
    (accelerate), or a state that does not match the consumed batches; torch's loaders can be replayed.
    """
    if not isinstance(loader, StatefulLoader):
        return None
    is_torchdatas = any(kind.__module__.startswith("torchdata.") for kind in type(loader).__mro__)
    return loader if is_torchdatas or not isinstance(loader, DataLoader) else None


@runtime_checkable
class ElasticDataset(Protocol):
    """An iterable data set that any number of ranks can resume.

    Used only if it is read without workers.
    """

    def state_dict(self) -> Any:
        """Return this rank's position as a tree of plain values and tensors."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Resume from this rank's position, with an unchanged number of ranks."""

    def load_state_dicts(self, state_dicts: Sequence[Any]) -> Any:
        """Resume from all former ranks' positions; the data set knows the new number of ranks."""


def inspect_loader(
    loader: Iterable[Any], generators: list[torch.Generator], dawn: RngStates
) -> SamplingScheme:
    """Describe a loader for a pass that begins with `generators` in the states `dawn`."""
    keeps_state = stateful_part(loader) is not None
    if not isinstance(loader, DataLoader):
        return SamplingScheme(
            kind=SourceKind.BARE, name=type(loader).__name__, keeps_state=keeps_state
        )
    workers = loader.num_workers
    if isinstance(loader.dataset, IterableDataset):
        return SamplingScheme(
            kind=SourceKind.STREAM,
            name=type(loader.dataset).__name__,
            batch_size=loader.batch_size,
            drops_batch=loader.drop_last,
            workers=workers,
            keeps_state=keeps_state,
            is_elastic=workers == 0 and isinstance(loader.dataset, ElasticDataset),
        )
    batches = _batches(loader)
    if batches is None:
        return SamplingScheme(
            kind=SourceKind.UNKNOWN,
            name=_name(loader.sampler if loader.batch_sampler is None else loader.batch_sampler),
            length=_length(loader.dataset),
            workers=workers,
            keeps_state=keeps_state,
        )
    sampler: Any = batches.sampler
    kind, order = _order(sampler, loader, generators, dawn)
    is_dealt = kind is SourceKind.DEALT
    return SamplingScheme(
        kind=kind,
        name=_name(sampler),
        length=_length(loader.dataset) if order is None else order.length,
        batch_size=batches.batch_size,
        drops_batch=batches.drop_last,
        replicas=sampler.num_replicas if is_dealt else 1,
        replica=sampler.rank if is_dealt else 0,
        drops_tail=is_dealt and sampler.drop_last,
        workers=workers,
        keeps_state=keeps_state,
        jumps=type(sampler) is ExactSampler,
        order=order,
    )


@contextmanager
def apply_sampler(loader: Iterable[Any], rest: RemainderSampler) -> Iterator[None]:
    """Make a loader draw its samples from `rest`, by replacing the sampler of its batch sampler."""
    assert isinstance(loader, DataLoader), "only the order of a DataLoader is known"
    batches = _batches(loader)
    assert batches is not None, "only the order of a standard batch sampler is known"
    own, batches.sampler = batches.sampler, rest
    try:
        yield
    finally:
        batches.sampler = own


def _order(
    sampler: object, loader: DataLoader[Any], generators: list[torch.Generator], dawn: RngStates
) -> tuple[SourceKind, Order | None]:
    if isinstance(sampler, DistributedSampler) and _is_standard(sampler, DistributedSampler):
        length = len(sampler.dataset)  # type: ignore[arg-type]  # it could not have been made without
        shuffled = Shuffled(length, sampler.seed + sampler.epoch)
        return SourceKind.DEALT, shuffled if sampler.shuffle else Sequential(length)
    if type(sampler) is ExactSampler:
        return SourceKind.DEALT, sampler.order
    if type(sampler) is SequentialSampler:
        return SourceKind.OWN, Sequential(len(sampler.data_source))
    if type(sampler) is RandomSampler and not sampler.replacement:
        length = len(sampler.data_source)
        if sampler.num_samples == length:
            indices = {id(generator): i for i, generator in enumerate(generators)}
            return SourceKind.OWN, RandomOrder(
                length,
                dawn["global"]["torch"],
                tuple(dawn["own"]),
                indices.get(id(loader.generator)),
                indices.get(id(sampler.generator)),
            )
    return SourceKind.UNKNOWN, None


def _batches(loader: DataLoader[Any]) -> BatchSampler | None:
    """The standard batch sampler, also if passed as the sampler; None for a third-party one."""
    found = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    return found if isinstance(found, BatchSampler) and _is_standard(found, BatchSampler) else None


def _name(sampler: Any) -> str:
    """The name of a sampler in messages."""
    name = type(sampler).__name__
    if type(sampler).__module__.startswith("torchdata."):
        return f"torchdata's {name}"
    if type(sampler) is RandomSampler and sampler.replacement:
        return f"{name} with replacement"
    return name


def _is_standard(item: object, kind: type) -> bool:
    """Whether an object's class is torch's, or torchdata's, which also tracks its position."""
    return type(item) is kind or type(item).__module__.startswith("torchdata.")


def _length(dataset: object) -> int | None:
    return len(dataset) if isinstance(dataset, Sized) else None

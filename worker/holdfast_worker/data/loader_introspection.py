"""Loaders: what can be told of one by looking at it, and how it is made to give the rest of another's pass."""

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
from holdfast_worker.rng import States


@runtime_checkable
class StatefulLoader(Protocol):
    """A loader that gives its own position away and takes it back."""

    def state_dict(self) -> Any:
        """The position, as a tree of plain values and tensors."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Take such a position back."""


def stateful_part(loader: object) -> StatefulLoader | None:
    """The loader, if its own state is to be believed; None: it is replayed.

    Of kinds of `DataLoader` only torchdata's is. Others have such methods without having a state (accelerate's), or one
    that is not that of the batches that were taken; and what torch's loader gives can be replayed.
    """
    if not isinstance(loader, StatefulLoader):
        return None
    is_torchdatas = any(kind.__module__.startswith("torchdata.") for kind in type(loader).__mro__)
    return loader if is_torchdatas or not isinstance(loader, DataLoader) else None


@runtime_checkable
class ElasticDataset(Protocol):
    """An iterable data set that any number of ranks can go on with. It is asked only where it is read without workers."""

    def state_dict(self) -> Any:
        """Where this rank is, as a tree of plain values and tensors."""

    def load_state_dict(self, state_dict: Any) -> Any:
        """Iterate from where this rank was; there are as many ranks as there were."""

    def load_state_dicts(self, state_dicts: Sequence[Any]) -> Any:
        """Iterate from where all ranks of before were, in their order; how many there are now, the data set knows."""


def read(loader: Iterable[Any], generators: list[torch.Generator], dawn: States) -> SamplingScheme:
    """What can be told of a loader, whose samplers know the epoch, when a pass begins with `generators` as at `dawn`."""
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
    """Let a loader take its samples from `rest`. Its own attributes cannot be set; that of its batch sampler can."""
    assert isinstance(loader, DataLoader), "the order of nothing else can be told"
    batches = _batches(loader)
    assert batches is not None, "the same"
    own, batches.sampler = batches.sampler, rest
    try:
        yield
    finally:
        batches.sampler = own


def _order(
    sampler: object, loader: DataLoader[Any], generators: list[torch.Generator], dawn: States
) -> tuple[SourceKind, Order | None]:
    if isinstance(sampler, DistributedSampler) and _is_plain(sampler, DistributedSampler):
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
            which = {id(generator): i for i, generator in enumerate(generators)}
            return SourceKind.OWN, RandomOrder(
                length,
                dawn["global"]["torch"],
                tuple(dawn["own"]),
                which.get(id(loader.generator)),
                which.get(id(sampler.generator)),
            )
    return SourceKind.UNKNOWN, None


def _batches(loader: DataLoader[Any]) -> BatchSampler | None:
    """What makes batches of samples; None if it is of somebody's own. It may stand in place of the sampler, too."""
    found = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
    return found if isinstance(found, BatchSampler) and _is_plain(found, BatchSampler) else None


def _name(sampler: Any) -> str:
    """What people call a sampler."""
    name = type(sampler).__name__
    if type(sampler).__module__.startswith("torchdata."):
        return f"torchdata's {name}"
    if type(sampler) is RandomSampler and sampler.replacement:
        return f"{name} with replacement"
    return name


def _is_plain(item: object, kind: type) -> bool:
    """Whether it is of torch's own class, or of torchdata's, which does the same and keeps count."""
    return type(item) is kind or type(item).__module__.startswith("torchdata.")


def _length(dataset: object) -> int | None:
    return len(dataset) if isinstance(dataset, Sized) else None

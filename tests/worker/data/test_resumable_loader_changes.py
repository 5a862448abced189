"""Changed data or loaders since a checkpoint: an exact resume, or an error with advice."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from holdfast_worker import rng
from holdfast_worker.data.resumable_loader import LoaderChanged, Position, ResumableLoader
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from worker.support.loader_resume import Noisy, Numbers, stored


class Stream(IterableDataset[int]):
    """A stream of numbers, divided among workers."""

    def __iter__(self) -> Iterator[int]:
        info = torch.utils.data.get_worker_info()
        return iter(range(info.id if info else 0, 24, info.num_workers if info else 1))


def dealt(batch: int = 3, length: int = 24, seed: int = 0, **options: Any) -> DataLoader[int]:
    data = Numbers(length)
    sampler = DistributedSampler(data, 2, 1, seed=seed)
    return DataLoader(data, batch, sampler=sampler, **options)


def shuffled(batch: int = 3, length: int = 24, **options: Any) -> DataLoader[int]:
    return DataLoader(Numbers(length), batch, shuffle=True, **options)


def in_order(batch: int = 3, length: int = 24, **options: Any) -> DataLoader[int]:
    return DataLoader(Numbers(length), batch, **options)


def weighted(batch: int = 3, length: int = 24, **options: Any) -> DataLoader[int]:
    sampler = WeightedRandomSampler([1.0] * length, length)
    return DataLoader(Numbers(length), batch, sampler=sampler, **options)


def streamed(batch: int = 3, **options: Any) -> DataLoader[int]:
    return DataLoader(Stream(), batch, **options)


def cut(loader: Iterable[Any], steps: int) -> tuple[list[int], Position]:
    """Samples of a loader before a checkpoint, and the position in the checkpoint."""
    rng.seed(3)
    resumable = ResumableLoader(loader)
    batches = iter(resumable)
    seen = [sample for _ in range(steps) for sample in next(batches).tolist()]
    return seen, Position(**stored(resumable.position))


def rest(loader: Iterable[Any], position: Position) -> list[int]:
    """Remaining samples of the pass."""
    resumable = ResumableLoader(loader, position)
    seen: list[int] = []
    for batch in resumable:
        if resumable.position.passes > position.passes:
            break
        seen += batch.tolist()
    return seen


@pytest.mark.parametrize("make", [dealt, shuffled, in_order])
@pytest.mark.parametrize("batch", [1, 2, 5, 24])
def test_changed_batch_size_continues_the_same_order(
    make: Callable[..., DataLoader[int]], batch: int
) -> None:
    seen, position = cut(make(3), 2)
    whole = seen + rest(make(3), position)

    assert seen + rest(make(batch), position) == whole


@pytest.mark.parametrize("make", [shuffled, in_order])
def test_drop_last_may_be_enabled(make: Callable[..., DataLoader[int]]) -> None:
    seen, position = cut(make(5), 2)

    assert len(seen + rest(make(5, drop_last=True), position)) == 20


def test_sampler_may_switch_from_padding_to_dropping() -> None:
    def make(drop_last: bool) -> DataLoader[int]:
        data = Numbers(25)
        return DataLoader(data, 4, sampler=DistributedSampler(data, 2, 1, drop_last=drop_last))

    _, position = cut(make(drop_last=False), 4)
    resumable = ResumableLoader(make(drop_last=True), position)
    next(iter(resumable))

    assert (resumable.position.passes, resumable.position.taken) == (1, 1)


def test_changed_seed_applies_from_the_next_pass() -> None:
    seen, position = cut(dealt(), 2)
    whole = seen + rest(dealt(), position)
    resumable = ResumableLoader(dealt(seed=9), position)
    batches = iter(resumable)

    again = seen + [sample for _ in range(2) for sample in next(batches).tolist()]
    later = [sample for _ in range(4) for sample in next(batches).tolist()]

    expected = dealt(seed=9)
    expected.sampler.set_epoch(1)  # type: ignore[union-attr]
    assert again == whole
    assert later == [sample for batch in expected for sample in batch.tolist()]


def test_sampler_of_one_rank_may_change_within_a_pass() -> None:
    data = Numbers(24)
    seen, position = cut(shuffled(), 2)
    whole = seen + rest(shuffled(), position)

    alone = DataLoader(data, 3, sampler=DistributedSampler(data, 1, 0))

    assert seen + rest(alone, position) == whole


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_worker_count_may_change_with_main_process_sampling(workers: int) -> None:
    seen, position = cut(shuffled(num_workers=workers), 3)
    whole = seen + rest(shuffled(num_workers=workers), position)

    assert seen + rest(shuffled(), position) == whole


@pytest.mark.parametrize("make", [dealt, shuffled, in_order, weighted])
def test_changed_data_length_is_refused_within_a_pass(
    make: Callable[..., DataLoader[int]],
) -> None:
    """The permutation differs, so that the skipped samples would not be the consumed ones."""
    _, position = cut(make(), 2)

    with pytest.raises(LoaderChanged) as refused:
        rest(make(length=30), position)

    assert str(refused.value) == (
        "the checkpoint was taken within a pass over 24 samples, but the data now has 30: revert this, or use a "
        "new store"
    )


@pytest.mark.parametrize(("make", "steps"), [(dealt, 4), (shuffled, 8), (in_order, 8)])
def test_data_may_grow_between_passes(make: Callable[..., DataLoader[int]], steps: int) -> None:
    _, position = cut(make(), steps)

    resumable = ResumableLoader(make(length=30), position)
    first = next(iter(resumable))

    assert (resumable.position.passes, resumable.position.taken, len(first)) == (1, 1, 3)


def with_generators(count: int) -> DataLoader[Any]:
    own = [torch.Generator().manual_seed(7) for _ in range(2)]
    sampler = RandomSampler(Noisy(24), generator=own[0] if count > 0 else None)
    return DataLoader(Noisy(24), 3, sampler=sampler, generator=own[1] if count > 1 else None)


CHANGES: dict[str, tuple[Callable[[], Iterable[Any]], Callable[[], Iterable[Any]], str]] = {
    "batch size of an unknown sampler": (
        weighted,
        lambda: weighted(4),
        "with batches of 3, now they have 4, and WeightedRandomSampler cannot resume between",
    ),
    "batch size of a stream": (
        streamed,
        lambda: streamed(4),
        "with batches of 3, now they have 4, and Stream cannot resume between two batches",
    ),
    "workers of a stream": (
        lambda: streamed(num_workers=1),
        streamed,
        "was taken with num_workers=1, now it is 0, and the consumed samples depend on it",
    ),
    "another sampler": (
        weighted,
        lambda: DataLoader(Numbers(24), 3, sampler=SubsetRandomSampler(range(24))),
        "was taken with WeightedRandomSampler, but the loader now uses SubsetRandomSampler",
    ),
    "no longer divided": (
        dealt,
        shuffled,
        "was taken with DistributedSampler, but the loader now uses RandomSampler",
    ),
    "newly divided": (
        shuffled,
        dealt,
        "was taken with RandomSampler, but the loader now uses DistributedSampler",
    ),
    "list instead of a loader": (
        streamed,
        lambda: [1, 2, 3],
        "was taken with Stream, but the loader now uses list",
    ),
    "generators": (
        lambda: with_generators(2),
        lambda: with_generators(1),
        "the loader and its samplers had 2 generators, now they have 1",
    ),
    "drop_last of an unknown sampler": (
        weighted,
        lambda: weighted(drop_last=True),
        "the loader with WeightedRandomSampler returns its data in a different way",
    ),
}


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("name", CHANGES)
def test_change_that_would_alter_samples_is_refused(name: str) -> None:
    before, after, message = CHANGES[name]
    _, position = cut(before(), 2)

    with pytest.raises(LoaderChanged, match=f"{message}.*: revert this, or use a new store"):
        next(iter(ResumableLoader(after(), position)))

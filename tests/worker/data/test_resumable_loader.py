"""A loader that stops anywhere resumes with the next batch and the next random numbers."""

# ruff: noqa: NPY002 - the global generators are the point

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from holdfast_worker import rng
from holdfast_worker.checkpoint.state_dict import Encoder, decode
from holdfast_worker.data.resumable_loader import LoaderChanged, Position, ResumableLoader
from torch import Tensor
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    WeightedRandomSampler,
)

ITEMS, BATCH, PASSES = 11, 3, 3
BATCHES = 4 * PASSES


class Noisy(Dataset[Tensor]):
    """Numbers with noise, from wherever this process or worker draws."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, i: int) -> Tensor:
        return i + torch.rand(()) / 2


class Whole(Dataset[list[int]]):
    """Gives what it is asked for, batch by batch."""

    def __getitem__(self, indices: list[int]) -> list[int]:
        return indices


class Stream(IterableDataset[float]):
    """Numbers shuffled on the way, with the global generators."""

    def __iter__(self) -> Iterator[float]:
        left = list(range(ITEMS))
        while left:
            yield left.pop(random.randrange(len(left))) + np.random.rand() / 2


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)


LOADERS: dict[str, Callable[[], Iterable[Any]]] = {
    "shuffled": lambda: DataLoader(Noisy(), BATCH, shuffle=True),
    "in order": lambda: DataLoader(Noisy(), BATCH),
    "own generator": lambda: DataLoader(Noisy(), BATCH, shuffle=True, generator=generator()),
    "with replacement": lambda: DataLoader(
        Noisy(), BATCH, sampler=RandomSampler(Noisy(), replacement=True, num_samples=ITEMS)
    ),
    "weighted": lambda: DataLoader(
        Noisy(), BATCH, sampler=WeightedRandomSampler([1.0, 2.0] * 5, ITEMS, generator=generator())
    ),
    "batch sampler": lambda: DataLoader(
        Noisy(),
        batch_sampler=BatchSampler(RandomSampler(Noisy(), generator=generator()), BATCH, False),
    ),
    "distributed": lambda: DataLoader(
        Noisy(), BATCH, sampler=DistributedSampler(Noisy(), num_replicas=2, rank=1)
    ),
    "stream": lambda: DataLoader(Stream(), BATCH),
    "list": lambda: [1, 2, 3, 4],
}
BUSY_LOADERS: dict[str, Callable[[], Iterable[Any]]] = {
    "workers": lambda: DataLoader(Noisy(), BATCH, shuffle=True, num_workers=2),
    "workers on a stream": lambda: DataLoader(
        Stream(), BATCH, num_workers=1, generator=generator()
    ),
    # What such workers draw is not exact, so these give no noise.
    "workers that live on": lambda: DataLoader(
        range(ITEMS), BATCH, shuffle=True, num_workers=1, persistent_workers=True
    ),
    "workers that live on, own generator": lambda: DataLoader(
        range(ITEMS),
        BATCH,
        shuffle=True,
        num_workers=1,
        persistent_workers=True,
        generator=generator(),
    ),
}


def train(batches: Iterator[Any], steps: int) -> list[object]:
    """What a training sees in so many steps: the batches, and what it draws itself in between."""
    seen: list[object] = []
    for _ in range(steps):
        batch = next(batches)
        seen.append(batch.tolist() if isinstance(batch, Tensor) else batch)
        seen.append((torch.rand(2).tolist(), random.random(), np.random.rand()))
    return seen


def through_storage(position: Position) -> Position:
    encoder = Encoder()
    text = json.dumps(encoder.encode(asdict(position), "position"))
    tensors = {name: tensor.clone() for name, tensor in encoder.tensors.items()}
    return Position(**decode(json.loads(text), tensors))


def check_resume(make: Callable[[], Iterable[Any]], cuts: Iterable[int]) -> None:
    """Cut a run off after so many steps; all that comes after must be what it would have been."""
    rng.seed(3)
    story = train(iter(ResumableLoader(make())), BATCHES)
    for cut in cuts:
        rng.seed(3)
        feed = ResumableLoader(make())
        before = train(iter(feed), cut)
        position = through_storage(feed.position)
        rng.seed(99)
        later = ResumableLoader(make(), position)
        after = train(iter(later), BATCHES - cut)

        assert before + after == story, f"cut after {cut}"


@pytest.mark.parametrize("name", LOADERS)
def test_the_feed_goes_on_exactly_wherever_it_was_cut(name: str) -> None:
    check_resume(LOADERS[name], range(1, BATCHES))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("name", BUSY_LOADERS)
def test_the_feed_goes_on_exactly_with_workers(name: str) -> None:
    check_resume(BUSY_LOADERS[name], (1, 4, 6, 8))


def test_a_feed_can_be_cut_off_again_and_again() -> None:
    make = LOADERS["shuffled"]
    rng.seed(3)
    story = train(iter(ResumableLoader(make())), BATCHES)

    rng.seed(3)
    feed = ResumableLoader(make())
    seen = train(iter(feed), 3)
    for steps in (2, 4, 1, 2):
        feed = ResumableLoader(make(), through_storage(feed.position))
        seen += train(iter(feed), steps)

    assert seen == story[: len(seen)]


def test_a_position_may_be_asked_for_before_the_first_batch() -> None:
    make = LOADERS["shuffled"]
    rng.seed(3)
    story = train(iter(ResumableLoader(make())), BATCHES)

    rng.seed(3)
    position = through_storage(ResumableLoader(make()).position)
    rng.seed(99)
    again = through_storage(ResumableLoader(make(), position).position)

    assert train(iter(ResumableLoader(make(), again)), BATCHES) == story


def test_resume_in_the_second_pass_keeps_its_order() -> None:
    """Accelerate #2016: a resume skipped batches of the first permutation, whichever pass it was."""
    rng.seed(3)
    feed = ResumableLoader(DataLoader(range(ITEMS), 1, shuffle=True))
    before = train(iter(feed), ITEMS + 4)[::2]

    later = ResumableLoader(
        DataLoader(range(ITEMS), 1, shuffle=True), through_storage(feed.position)
    )
    after = train(iter(later), ITEMS - 4)[::2]

    assert sorted(before[ITEMS:] + after) == [[i] for i in range(ITEMS)]
    assert before[ITEMS:] != before[:4]


@pytest.mark.parametrize("name", [*LOADERS])
def test_checkpoint_at_the_end_of_a_pass_skips_no_pass(name: str) -> None:
    """Verl #7401: the exhausted state of a pass was restored into the next one, which then gave nothing."""
    feed = ResumableLoader(LOADERS[name]())
    batches = iter(feed)
    while feed.position.passes == 0:
        position = feed.position
        next(batches)

    later = ResumableLoader(LOADERS[name](), through_storage(position))
    after = train(iter(later), position.taken)

    assert len(after) == 2 * position.taken
    assert (later.position.passes, later.position.taken) == (1, position.taken)


def test_samplers_inside_of_samplers_learn_of_the_pass_too() -> None:
    sampler = DistributedSampler(Noisy(), 1, 0)
    batches = BatchSampler(sampler, ITEMS, drop_last=False)
    orders = train(iter(ResumableLoader(DataLoader(Whole(), None, sampler=batches))), 2)[::2]

    assert orders[0] != orders[1]


def test_skipped_samples_are_not_read_without_workers() -> None:
    class Counted(Noisy):
        reads = 0

        def __getitem__(self, i: int) -> Tensor:
            Counted.reads += 1
            return super().__getitem__(i)

    feed = ResumableLoader(DataLoader(Counted(), BATCH, shuffle=True))
    train(iter(feed), 3)
    position, Counted.reads = feed.position, 0

    train(iter(ResumableLoader(DataLoader(Counted(), BATCH, shuffle=True), position)), 1)

    assert Counted.reads == ITEMS - 3 * BATCH


def test_nothing_is_read_ahead_of_the_step_that_needs_it() -> None:
    taken: list[int] = []

    class Watched(Noisy):
        def __getitem__(self, i: int) -> Tensor:
            taken.append(i)
            return super().__getitem__(i)

    train(iter(ResumableLoader(DataLoader(Watched(), BATCH))), 2)

    assert taken == list(range(2 * BATCH))


def test_data_that_became_shorter_is_noticed() -> None:
    feed = ResumableLoader([1, 2, 3, 4])
    train(iter(feed), 4)

    with pytest.raises(LoaderChanged, match="after batch 4 of a pass, but the loader has fewer"):
        next(iter(ResumableLoader([1, 2, 3], feed.position)))


def test_a_loader_without_batches_is_an_error_and_not_a_loop() -> None:
    with pytest.raises(ValueError, match="returned no batch"):
        next(iter(ResumableLoader([])))


def test_workers_that_outlive_a_pass_are_warned_of(capsys: pytest.CaptureFixture[str]) -> None:
    ResumableLoader(DataLoader(Noisy(), BATCH, num_workers=1, persistent_workers=True))

    assert "random augmentation in the workers is not" in capsys.readouterr().err


def test_workers_that_give_batches_out_of_order_are_warned_of(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ResumableLoader(DataLoader(Noisy(), BATCH, num_workers=2, in_order=False))

    assert "after a resume some batches are repeated and some are lost" in capsys.readouterr().err

"""A loader that stops at any step resumes with the next batch and the next random numbers."""

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
from support.repetitions import FULL
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


class NoisyNumbers(Dataset[Tensor]):
    """Numbers with noise from the global generators of this process or loader worker."""

    def __len__(self) -> int:
        return ITEMS

    def __getitem__(self, i: int) -> Tensor:
        return i + torch.rand(()) / 2


class BatchDataset(Dataset[list[int]]):
    """Returns a batch for a list of indices."""

    def __getitem__(self, indices: list[int]) -> list[int]:
        return indices


class Stream(IterableDataset[float]):
    """A stream that is shuffled with the global generators."""

    def __iter__(self) -> Iterator[float]:
        left = list(range(ITEMS))
        while left:
            yield left.pop(random.randrange(len(left))) + np.random.rand() / 2


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(11)


LOADERS: dict[str, Callable[[], Iterable[Any]]] = {
    "shuffled": lambda: DataLoader(NoisyNumbers(), BATCH, shuffle=True),
    "in order": lambda: DataLoader(NoisyNumbers(), BATCH),
    "own generator": lambda: DataLoader(NoisyNumbers(), BATCH, shuffle=True, generator=generator()),
    "with replacement": lambda: DataLoader(
        NoisyNumbers(),
        BATCH,
        sampler=RandomSampler(NoisyNumbers(), replacement=True, num_samples=ITEMS),
    ),
    "weighted": lambda: DataLoader(
        NoisyNumbers(),
        BATCH,
        sampler=WeightedRandomSampler([1.0, 2.0] * 5, ITEMS, generator=generator()),
    ),
    "batch sampler": lambda: DataLoader(
        NoisyNumbers(),
        batch_sampler=BatchSampler(
            RandomSampler(NoisyNumbers(), generator=generator()), BATCH, False
        ),
    ),
    "distributed": lambda: DataLoader(
        NoisyNumbers(), BATCH, sampler=DistributedSampler(NoisyNumbers(), num_replicas=2, rank=1)
    ),
    "stream": lambda: DataLoader(Stream(), BATCH),
    "list": lambda: [1, 2, 3, 4],
}
BUSY_LOADERS: dict[str, Callable[[], Iterable[Any]]] = {
    "workers": lambda: DataLoader(NoisyNumbers(), BATCH, shuffle=True, num_workers=2),
    "workers on a stream": lambda: DataLoader(
        Stream(), BATCH, num_workers=1, generator=generator()
    ),
    # Random numbers of such workers are not exact, so these data sets have no noise.
    "persistent workers": lambda: DataLoader(
        range(ITEMS), BATCH, shuffle=True, num_workers=1, persistent_workers=True
    ),
    "persistent workers, own generator": lambda: DataLoader(
        range(ITEMS),
        BATCH,
        shuffle=True,
        num_workers=1,
        persistent_workers=True,
        generator=generator(),
    ),
}


def train(batches: Iterator[Any], steps: int) -> list[object]:
    """Batches of `steps` steps, and the random numbers that a training draws between them."""
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
    """Cut a run at each step of `cuts` and check that it resumes exactly."""
    rng.seed(3)
    expected = train(iter(ResumableLoader(make())), BATCHES)
    for cut in cuts:
        rng.seed(3)
        loader = ResumableLoader(make())
        before = train(iter(loader), cut)
        position = through_storage(loader.position)
        rng.seed(99)
        later = ResumableLoader(make(), position)
        after = train(iter(later), BATCHES - cut)

        assert before + after == expected, f"cut after {cut}"


@pytest.mark.parametrize("name", LOADERS)
def test_loader_resumes_exactly_at_any_cut(name: str) -> None:
    check_resume(LOADERS[name], range(1, BATCHES))


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
@pytest.mark.parametrize("name", BUSY_LOADERS)
def test_loader_with_workers_resumes_exactly(name: str) -> None:
    check_resume(BUSY_LOADERS[name], (1, 4, 6, 8) if FULL else (4, 8))


def test_loader_can_be_cut_repeatedly() -> None:
    make = LOADERS["shuffled"]
    rng.seed(3)
    expected = train(iter(ResumableLoader(make())), BATCHES)

    rng.seed(3)
    loader = ResumableLoader(make())
    seen = train(iter(loader), 3)
    for steps in (2, 4, 1, 2):
        loader = ResumableLoader(make(), through_storage(loader.position))
        seen += train(iter(loader), steps)

    assert seen == expected[: len(seen)]


def test_position_before_the_first_batch_is_valid() -> None:
    make = LOADERS["shuffled"]
    rng.seed(3)
    expected = train(iter(ResumableLoader(make())), BATCHES)

    rng.seed(3)
    position = through_storage(ResumableLoader(make()).position)
    rng.seed(99)
    again = through_storage(ResumableLoader(make(), position).position)

    assert train(iter(ResumableLoader(make(), again)), BATCHES) == expected


def test_resume_in_the_second_pass_keeps_its_order() -> None:
    """Accelerate #2016: a resume skipped batches of the first permutation in every pass."""
    rng.seed(3)
    loader = ResumableLoader(DataLoader(range(ITEMS), 1, shuffle=True))
    before = train(iter(loader), ITEMS + 4)[::2]

    later = ResumableLoader(
        DataLoader(range(ITEMS), 1, shuffle=True), through_storage(loader.position)
    )
    after = train(iter(later), ITEMS - 4)[::2]

    assert sorted(before[ITEMS:] + after) == [[i] for i in range(ITEMS)]
    assert before[ITEMS:] != before[:4]


@pytest.mark.parametrize("name", [*LOADERS])
def test_checkpoint_at_the_end_of_a_pass_skips_no_pass(name: str) -> None:
    """Verl #7401: the exhausted state of a pass was restored into the next one."""
    loader = ResumableLoader(LOADERS[name]())
    batches = iter(loader)
    while loader.position.passes == 0:
        position = loader.position
        next(batches)

    later = ResumableLoader(LOADERS[name](), through_storage(position))
    after = train(iter(later), position.taken)

    assert len(after) == 2 * position.taken
    assert (later.position.passes, later.position.taken) == (1, position.taken)


def test_nested_samplers_get_the_pass_number() -> None:
    sampler = DistributedSampler(NoisyNumbers(), 1, 0)
    batches = BatchSampler(sampler, ITEMS, drop_last=False)
    orders = train(iter(ResumableLoader(DataLoader(BatchDataset(), None, sampler=batches))), 2)[::2]

    assert orders[0] != orders[1]


def test_skipped_samples_are_not_read_without_workers() -> None:
    class Counted(NoisyNumbers):
        reads = 0

        def __getitem__(self, i: int) -> Tensor:
            Counted.reads += 1
            return super().__getitem__(i)

    loader = ResumableLoader(DataLoader(Counted(), BATCH, shuffle=True))
    train(iter(loader), 3)
    position, Counted.reads = loader.position, 0

    train(iter(ResumableLoader(DataLoader(Counted(), BATCH, shuffle=True), position)), 1)

    assert Counted.reads == ITEMS - 3 * BATCH


def test_nothing_is_read_before_its_step() -> None:
    read_indices: list[int] = []

    class Watched(NoisyNumbers):
        def __getitem__(self, i: int) -> Tensor:
            read_indices.append(i)
            return super().__getitem__(i)

    train(iter(ResumableLoader(DataLoader(Watched(), BATCH))), 2)

    assert read_indices == list(range(2 * BATCH))


def test_data_that_became_shorter_is_refused() -> None:
    loader = ResumableLoader([1, 2, 3, 4])
    train(iter(loader), 4)

    with pytest.raises(LoaderChanged, match="after batch 4 of a pass, but the loader has fewer"):
        next(iter(ResumableLoader([1, 2, 3], loader.position)))


def test_loader_without_batches_raises() -> None:
    with pytest.raises(ValueError, match="returned no batch"):
        next(iter(ResumableLoader([])))


def test_persistent_workers_cause_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    ResumableLoader(DataLoader(NoisyNumbers(), BATCH, num_workers=1, persistent_workers=True))

    assert "random augmentation in the workers is not" in capsys.readouterr().err


def test_out_of_order_workers_cause_a_warning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ResumableLoader(DataLoader(NoisyNumbers(), BATCH, num_workers=2, in_order=False))

    assert "after a resume some batches are repeated and some are lost" in capsys.readouterr().err

"""A different number of ranks resumes within a pass, with every remaining sample once."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from holdfast_worker.data.exact_sampler import ExactSampler
from holdfast_worker.data.resumable_loader import ResumableLoader, reshard
from hypothesis import given, settings
from hypothesis import strategies as st
from support.repetitions import repeat_count
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler
from worker.support.loader_resume import (
    LoaderRun,
    Make,
    Noisy,
    Numbers,
    of_pass,
    run_loaders,
    striped,
)


def exact(length: int, batch: int, workers: int = 0, **options: Any) -> Make:
    """A loader of numbers with `ExactSampler`."""

    def make(rank: int, world_size: int) -> DataLoader[int]:
        data = Numbers(length)
        sampler = ExactSampler(data, world_size, rank, **options)
        return DataLoader(data, batch, sampler=sampler, num_workers=workers)

    return make


def as_people_write_it(length: int, batch: int, **options: Any) -> Make:
    """`DistributedSampler` for several ranks, plain shuffling for one, as in the examples."""

    def make(rank: int, world_size: int) -> DataLoader[int]:
        if world_size > 1:
            return striped(length, batch)(rank, world_size)  # type: ignore[return-value]
        return DataLoader(Numbers(length), batch, shuffle=True, **options)

    return make


RUNS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 7), st.integers(1, 20)), max_size=4)
"""Ranks, batch size and steps of consecutive worlds."""


@settings(max_examples=repeat_count(12, 60), deadline=None)
@given(
    length=st.integers(1, 70),
    runs=RUNS,
    shuffle=st.booleans(),
    drops_tail=st.booleans(),
    drops_batch=st.booleans(),
    is_exact=st.booleans(),
)
def test_any_worlds_repeat_only_padding_and_skip_only_drops(
    length: int,
    runs: list[tuple[int, int, int]],
    shuffle: bool,
    drops_tail: bool,
    drops_batch: bool,
    is_exact: bool,
) -> None:
    sampler = ExactSampler if is_exact else DistributedSampler
    worlds = [run for run in runs if run[0] * run[1] <= length]  # Each pass has a batch.
    loader_runs: list[LoaderRun] = []
    for world_size, batch, steps in [*worlds, (1, 1, length)]:

        def make(rank: int, world_size: int, batch: int = batch) -> DataLoader[int]:
            data = Numbers(length)
            part = sampler(data, world_size, rank, shuffle=shuffle, seed=5, drop_last=drops_tail)
            return DataLoader(data, batch, sampler=part, drop_last=drops_batch)

        loader_runs.append(
            run_loaders(make, world_size, steps, loader_runs[-1].trees if loader_runs else None)
        )

    widest = max(world_size for world_size, _, _ in [*worlds, (1, 1, 1)])
    largest = max(world_size * batch for world_size, batch, _ in [*worlds, (1, 1, 1)])
    last = max(number for run in loader_runs for number, _ in run.steps())
    for number in range(last):  # The last pass is incomplete.
        alone = sampler(Numbers(length), 1, 0, shuffle=shuffle, seed=5)
        alone.set_epoch(number)
        order = list(alone)
        seen = of_pass(number, loader_runs)
        padded, dropped = seen[length:], order[len(seen) :]
        assert seen[:length] == order[: len(seen)]
        assert padded == order[: len(padded)]
        assert len(padded) < (1 if drops_tail else widest)
        assert len(dropped) < (largest if drops_batch else widest if drops_tail else 1)


MAKERS = {"distributed": striped, "exact": exact}
WORLDS = [(2, 12), (3, 8), (8, 3), (1, 24)]
"""Ranks, and the batch size for a global batch of 24 samples."""


@pytest.mark.parametrize(("world_size", "batch"), WORLDS)
@pytest.mark.parametrize("name", MAKERS)
def test_equal_global_batches_are_equal_in_any_world(
    name: str, world_size: int, batch: int
) -> None:
    make = MAKERS[name]
    whole = run_loaders(make(240, 6), 4, 20)

    before = run_loaders(make(240, 6), 4, 5)
    after = run_loaders(make(240, batch), world_size, 15, before.trees)

    steps = [(number, sorted(dealt)) for run in (before, after) for number, dealt in run.steps()]
    assert steps == [(number, sorted(dealt)) for number, dealt in whole.steps()]


@pytest.mark.parametrize("name", MAKERS)
def test_world_may_change_repeatedly_within_a_pass(name: str) -> None:
    make = MAKERS[name]
    runs = [run_loaders(make(500, 6), 4, 5)]
    for world_size, batch, steps in [(3, 8, 4), (8, 3, 2), (1, 7, 6), (2, 50, 3)]:
        runs.append(run_loaders(make(500, batch), world_size, steps, runs[-1].trees))

    [alone] = [run_loaders(make(500, 500), 1, 2)]
    assert of_pass(0, runs) == of_pass(0, [alone])
    assert of_pass(1, runs) == of_pass(1, [alone])[: len(of_pass(1, runs))]


@pytest.mark.parametrize("name", MAKERS)
def test_world_may_change_in_any_pass(name: str) -> None:
    make = MAKERS[name]
    whole = run_loaders(make(48, 4), 3, 16)
    runs = [run_loaders(make(48, 4), 3, 10)]
    runs.append(run_loaders(make(48, 6), 2, 2, runs[-1].trees))
    runs.append(run_loaders(make(48, 3), 4, 2, runs[-1].trees))

    for number in range(4):
        seen = of_pass(number, runs)
        assert seen == of_pass(number, [whole])[: len(seen)]
    assert sum(len(dealt) for run in runs for _, dealt in run.steps()) == 14 * 12


def test_no_data_is_lost_when_the_world_shrinks() -> None:
    """Transformers #40245: the batches of a lost rank were skipped on all other ranks."""
    before = run_loaders(striped(96, 4), 4, 3)
    after = run_loaders(striped(96, 4), 2, 6, before.trees)

    assert sorted(of_pass(0, [before, after])) == list(range(96))


def test_later_passes_equal_distributed_sampler() -> None:
    before = run_loaders(striped(50, 4), 4, 3)
    after = run_loaders(striped(50, 6), 3, 8, before.trees)

    for rank in range(3):
        loader: Any = striped(50, 6)(rank, 3)
        loader.sampler.set_epoch(1)
        expected = [batch.tolist() for batch in loader]
        seen = [list(samples) for number, samples in after.batches[rank] if number == 1]
        assert seen == expected[: len(seen)]
        assert len(seen) > 1


@pytest.mark.parametrize("options", [{}, {"generator": True}], ids=["global", "own generator"])
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_shuffled_pass_continues_on_more_or_fewer_ranks(
    options: dict[str, Any], workers: int
) -> None:
    def make(rank: int, world_size: int) -> DataLoader[int]:
        given = {"generator": torch.Generator().manual_seed(11)} if options else {}
        return as_people_write_it(60, 4, num_workers=workers, **given)(rank, world_size)  # type: ignore[return-value]

    whole = run_loaders(make, 1, 31)

    runs = [run_loaders(make, 1, 17)]
    runs.append(run_loaders(make, 3, 2, runs[-1].trees))
    runs.append(run_loaders(make, 2, 3, runs[-1].trees))

    # The first pass has 15 steps, so the worlds change in the second one, whose order a loader drew.
    assert of_pass(0, runs) == of_pass(0, [whole])
    begun = of_pass(1, [runs[0]])
    assert begun == of_pass(1, [whole])[:8]
    assert of_pass(1, runs[:2]) == of_pass(1, [whole])[:32]
    assert of_pass(1, runs) == of_pass(1, [whole])[:56]

    runs.append(run_loaders(make, 1, 4, runs[-1].trees))

    assert of_pass(1, runs) == of_pass(1, [whole])
    assert sorted(of_pass(1, runs)) == list(range(60))


def noisy(rank: int, world_size: int, workers: int = 0) -> DataLoader[Any]:
    data = Noisy(60)
    sampler = DistributedSampler(data, world_size, rank)
    return DataLoader(data, 4, sampler=sampler, num_workers=workers)


def noisy_workers(rank: int, world_size: int) -> DataLoader[Any]:
    return noisy(rank, world_size, workers=1)


def noisy_as_people_write_it(rank: int, world_size: int) -> DataLoader[Any]:
    alone = DataLoader(Noisy(60), 4, shuffle=True)
    return noisy_workers(rank, world_size) if world_size > 1 else alone


@pytest.mark.parametrize(
    ("make", "former", "cut"),
    [
        *((noisy, 3, cut) for cut in range(1, 9)),
        (noisy_workers, 3, 2),
        (noisy_workers, 3, 7),
        (noisy_as_people_write_it, 1, 4),
    ],
)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_second_cut_in_the_same_world_resumes_bit_for_bit(
    make: Make, former: int, cut: int
) -> None:
    before = run_loaders(make, former, 2)
    whole = run_loaders(make, 2, 9, before.trees)

    first = run_loaders(make, 2, cut, before.trees)
    second = run_loaders(make, 2, 9 - cut, first.trees)

    for rank in range(2):
        assert first.batches[rank] + second.batches[rank] == whole.batches[rank]
        assert first.drawn[rank] + second.drawn[rank] == whole.drawn[rank]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_workers_of_a_resumed_pass_draw_new_numbers() -> None:
    before = run_loaders(noisy_workers, 2, 3)
    after = run_loaders(noisy_workers, 1, 3, before.trees)

    noise = [
        {round(sample % 1, 6) for _, samples in run.batches[0] for sample in samples}
        for run in (before, after)
    ]
    assert not noise[0] & noise[1]


def test_ranks_keep_their_generators_and_new_ones_get_their_own() -> None:
    before = run_loaders(noisy, 2, 3)
    on = run_loaders(noisy, 2, 1, before.trees)
    more = run_loaders(noisy, 4, 1, before.trees)
    again = run_loaders(noisy, 4, 1, before.trees)
    at_first = run_loaders(noisy, 4, 1)

    drawn = [rank[0] for rank in more.drawn]
    assert drawn == [rank[0] for rank in again.drawn]
    assert len({str(numbers) for numbers in drawn}) == 4
    # Existing ranks drew noise for different samples, but from the same generator state.
    assert drawn[:2] == [rank[0] for rank in on.drawn]
    assert not {str(d) for d in drawn} & {str(rank[0]) for rank in at_first.drawn}


@pytest.mark.parametrize("length", [48, 50])
@pytest.mark.parametrize("options", [{}, {"drop_last": True}, {"drops_batch": True}], ids=str)
def test_checkpoint_at_the_end_of_a_pass_begins_the_next_one(
    length: int, options: dict[str, Any]
) -> None:
    make = striped(length, 4, **options)
    steps = len(make(0, 3))  # type: ignore[arg-type]
    before = run_loaders(make, 3, steps)

    after = run_loaders(striped(length, 1, **options), 2, 3, before.trees)

    expected = of_pass(
        1, [run_loaders(striped(length, length, **{**options, "drops_batch": False}), 1, 2)]
    )
    assert [number for number, _ in after.steps()] == [1, 1, 1]
    assert of_pass(1, [after]) == expected[:6]


def test_end_of_the_remainder_ends_the_pass() -> None:
    dropping = {"drop_last": True, "drops_batch": True}
    before = run_loaders(striped(50, 4, **dropping), 3, 2)  # 24 samples, and 26 are left:
    during = run_loaders(
        striped(50, 4, **dropping), 2, 3, before.trees
    )  # three batches of 4 for each rank, and two are dropped.

    after = run_loaders(striped(50, 1, **dropping), 1, 1, during.trees)

    assert [number for number, _ in after.steps()] == [1]


@pytest.mark.parametrize(
    ("batch", "options", "steps", "consumed"),
    [
        (4, {}, 1, 12),
        (4, {}, 4, 48),
        (4, {}, 5, 50),  # The last batch has one sample, which is padding on one of three ranks.
        (4, {"drop_last": True}, 4, 48),
        (5, {"drop_last": True}, 4, 48),
        (4, {"drops_batch": True}, 4, 48),
        (4, {"drops_batch": True}, 5, 12),
    ],
)
def test_position_counts_the_samples_of_all_ranks(
    batch: int, options: dict[str, Any], steps: int, consumed: int
) -> None:
    trees = run_loaders(striped(50, batch, **options), 3, steps).trees

    assert [reshard(trees, rank, 3).consumed for rank in range(3)] == [consumed] * 3


def test_remainder_smaller_than_a_batch_begins_the_next_pass() -> None:
    before = run_loaders(striped(50, 4, drops_batch=True), 3, 3)

    after = run_loaders(striped(50, 20, drops_batch=True), 2, 1, before.trees)

    assert [number for number, _ in after.steps()] == [1]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_prefetched_samples_do_not_count_as_consumed(name: str) -> None:
    make = MAKERS[name]
    before = run_loaders(make(60, 3, workers=2), 2, 3)
    after = run_loaders(make(60, 4, workers=1), 3, 4, before.trees)

    seen = of_pass(0, [before, after])
    assert sorted(seen[:60]) == list(range(60))
    assert len(seen) < 60 + 3


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_persistent_workers_continue_after_the_remainder() -> None:
    def make(rank: int, world_size: int) -> DataLoader[int]:
        data = Numbers(30)
        sampler = DistributedSampler(data, world_size, rank)
        return DataLoader(data, 5, sampler=sampler, num_workers=1, persistent_workers=True)

    before = run_loaders(striped(30, 5), 2, 1)
    after = run_loaders(make, 1, 4 + 6, before.trees)

    assert sorted(of_pass(0, [before, after])) == list(range(30))
    assert of_pass(1, [after]) == of_pass(1, [run_loaders(striped(30, 30), 1, 2)])


def test_loader_gets_its_sampler_back_after_an_early_end() -> None:
    loaders: list[Any] = []

    def make(rank: int, world_size: int) -> DataLoader[int]:
        loaders.append(striped(60, 5)(rank, world_size))
        return loaders[-1]  # type: ignore[no-any-return]

    run_loaders(make, 2, 1, run_loaders(make, 3, 1).trees)

    assert all(loader.batch_sampler.sampler is loader.sampler for loader in loaders)


def test_ranks_with_the_same_samples_count_as_one() -> None:
    """Tensor parallelism: four ranks in two pairs, each with the same data."""

    def make(rank: int, world_size: int) -> DataLoader[int]:
        return striped(40, 5)(rank // 2, world_size // 2)  # type: ignore[return-value]

    before = run_loaders(make, 4, 2)
    after = run_loaders(make, 2, 4, before.trees)

    seen = before.batches[0] + before.batches[2] + after.batches[0]
    assert after.batches[0] == after.batches[1]
    assert sorted(s for number, batch in seen if number == 0 for s in batch) == list(range(40))


def test_batch_sampler_in_place_of_the_sampler_is_supported() -> None:
    def make(rank: int, world_size: int) -> DataLoader[Any]:
        class Whole(Numbers):
            def __getitem__(self, indices: Any) -> Any:
                return indices

        data = Whole(60)
        sampler = BatchSampler(DistributedSampler(data, world_size, rank), 5, False)
        return DataLoader(data, batch_size=None, sampler=sampler)

    before = run_loaders(make, 3, 2)
    after = run_loaders(make, 2, 6, before.trees)

    assert sorted(of_pass(0, [before, after])) == list(range(60))
    assert of_pass(1, [after]) == of_pass(1, [run_loaders(striped(60, 30), 2, 2)])[:30]


def test_position_is_unknown_before_first_batch_of_a_new_world() -> None:
    trees = run_loaders(striped(60, 5), 2, 2).trees
    same, other = (
        ResumableLoader(striped(60, 5)(0, size), reshard(trees, 0, size)) for size in (2, 3)
    )

    before = same.known_position, other.known_position
    next(iter(other))
    after = other.known_position

    assert [position and position.taken for position in before] == [2, None]
    assert after is not None
    assert after.taken == 1

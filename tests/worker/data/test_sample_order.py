"""Sample orders: computed permutations are valid, and ranks get DistributedSampler's shares."""

from __future__ import annotations

import itertools
import math
import tracemalloc
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from holdfast_worker import ExactSampler, rng
from holdfast_worker.data.resumable_loader import Position, ResumableLoader
from holdfast_worker.data.sample_order import (
    Permutation,
    PermutedOrder,
    RandomOrder,
    RemainderSampler,
    Sequential,
    Shuffled,
    parse,
    to_dict,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from support.repetitions import repeat_count
from torch.utils.data import DataLoader, DistributedSampler
from worker.support.loader_resume import Noisy, Numbers, run_loaders, stored

LONG = 10**12
SEEDS = st.integers(-(2**63), 2**64)


def permuted(length: int, seed: int = 0, epoch: int = 0) -> list[int]:
    places = np.arange(length, dtype=np.int64)
    samples: list[int] = Permutation(length, seed, epoch)(places).tolist()
    return samples


def deviations(counts: Counter[Any], cells: int) -> float:
    """Deviation of the counts' chi-square from a uniform distribution, in standard deviations."""
    expected = counts.total() / cells
    surplus = sum((n - expected) ** 2 / expected for n in counts.values())
    surplus += (cells - len(counts)) * expected
    return (surplus - (cells - 1)) / math.sqrt(2 * (cells - 1))


@settings(deadline=None)
@given(length=st.integers(1, 3000), seed=SEEDS, epoch=st.integers(0, 2**40))
def test_permutation_contains_every_sample_once(length: int, seed: int, epoch: int) -> None:
    assert sorted(permuted(length, seed, epoch)) == list(range(length))


@pytest.mark.parametrize("length", [65535, 65536, 65537, 131072, 131073])
def test_permutation_is_complete_at_round_boundaries(length: int) -> None:
    assert sorted(permuted(length)) == list(range(length))


@settings(deadline=None)
@given(length=st.integers(1, LONG), seed=SEEDS, data=st.data())
def test_positions_of_a_long_order_are_computed_directly(
    length: int, seed: int, data: st.DataObject
) -> None:
    some = st.lists(st.integers(0, length - 1), min_size=1, max_size=40, unique=True)
    places = np.array(data.draw(some), dtype=np.int64)

    samples = Permutation(length, seed, 0)(places)

    assert len(set(samples.tolist())) == len(places)
    assert samples.min() >= 0
    assert samples.max() < length


def test_order_is_stable_across_versions() -> None:
    """Checkpoints within a pass depend on the order: a change repeats and skips samples."""
    assert permuted(12, 0, 0) == [9, 3, 0, 11, 2, 1, 5, 4, 10, 7, 8, 6]
    assert permuted(100_000, 7, 3)[:6] == [99397, 18244, 2333, 52143, 14708, 23843]
    assert Permutation(LONG, 1, 2)(np.array([0, 1, LONG - 1])).tolist() == [
        608701370505,
        218857797602,
        972007696224,
    ]


@pytest.mark.parametrize("length", [2, 3, 4, 5, pytest.param(6, marks=pytest.mark.full)])
def test_permutations_of_few_samples_are_equally_frequent(length: int) -> None:
    orders = math.factorial(length)
    tries = max(500, 12 * orders)

    counts = Counter(tuple(permuted(length, seed)) for seed in range(tries))

    assert abs(deviations(counts, orders)) < 4


@pytest.mark.parametrize("length", [7, 16, pytest.param(33, marks=pytest.mark.full), 100])
def test_permutations_are_uniform_by_position_and_successor(length: int) -> None:
    places: Counter[tuple[int, int]] = Counter()
    followers: Counter[tuple[int, int]] = Counter()
    for epoch in range(1500):
        order = permuted(length, 7, epoch)
        places.update(enumerate(order))
        followers.update(itertools.pairwise(order))

    assert abs(deviations(places, length**2)) < 4
    assert abs(deviations(followers, length * (length - 1))) < 4


@pytest.mark.parametrize("length", [70_000, 10**6, LONG])
def test_long_permutations_are_uniform(length: int) -> None:
    cells = 50
    places = np.arange(20_000, dtype=np.int64)
    samples = Permutation(length, 1, 1)(places)
    at_next_epoch = Permutation(length, 1, 2)(places)
    steps = (samples[1:] - samples[:-1]) % length

    for numbers in (samples, steps, (at_next_epoch - samples) % length):
        counts = (
            Counter((numbers * cells // length).tolist())
            if length < LONG
            else Counter((numbers // (length // cells)).tolist())
        )
        assert abs(deviations(counts, cells)) < 4


@settings(max_examples=repeat_count(25, 200), deadline=None)
@given(
    length=st.integers(1, 60),
    replicas=st.integers(1, 9),
    shuffle=st.booleans(),
    drops=st.booleans(),
    epoch=st.integers(0, 5),
)
def test_shares_equal_those_of_distributed_sampler(
    length: int, replicas: int, shuffle: bool, drops: bool, epoch: int
) -> None:
    for replica in range(replicas):
        torchs = DistributedSampler(
            Numbers(length), replicas, replica, shuffle=shuffle, seed=3, drop_last=drops
        )
        torchs.set_epoch(epoch)
        order = Shuffled(length, 3 + epoch) if shuffle else Sequential(length)
        rest = RemainderSampler(order, 0, replicas, replica, drops_tail=drops)

        assert list(rest) == list(torchs)
        assert len(rest) == len(torchs)


@settings(max_examples=repeat_count(25, 200), deadline=None)
@given(length=st.integers(1, 60), replicas=st.integers(1, 9), data=st.data(), drops=st.booleans())
def test_remainder_from_any_position_ends_the_order(
    length: int, replicas: int, data: st.DataObject, drops: bool
) -> None:
    consumed = data.draw(st.integers(0, length))
    whole = list(ExactSampler(Numbers(length), 1, 0, seed=4))
    shares = []
    for rank in range(replicas):
        sampler = ExactSampler(Numbers(length), replicas, rank, seed=4, drop_last=drops)
        sampler.set_epoch(0, consumed)
        shares.append(list(sampler))
        assert len(sampler) == len(shares[-1])

    dealt = [sample for turn in zip(*shares, strict=True) for sample in turn]
    left = whole[consumed:]
    assert dealt[: len(left)] == left[: len(dealt)]
    padding = dealt[len(left) :]
    assert padding == (whole * replicas)[: len(padding)]
    assert abs(len(dealt) - len(left)) < replicas


def test_epoch_and_seed_determine_the_order() -> None:
    sampler = ExactSampler(Numbers(1000), 1, 0, seed=1)
    orders = [list(sampler)]
    sampler.set_epoch(1)
    orders.append(list(sampler))
    orders.append(list(ExactSampler(Numbers(1000), 1, 0, seed=2)))
    orders.append(list(ExactSampler(Numbers(1000), 1, 0, shuffle=False)))

    assert orders[3] == list(range(1000))
    assert len({tuple(order) for order in orders}) == 4


def test_a_rank_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="rank 2 is not in the range 0 to 1"):
        ExactSampler(Numbers(10), 2, 2)


def test_empty_or_consumed_data_yields_no_sample() -> None:
    sampler = ExactSampler(Numbers(10), 2, 1)
    sampler.set_epoch(0, 12)

    assert list(ExactSampler(Numbers(0), 2, 1)) == []
    assert (list(sampler), len(sampler)) == ([], 0)


def test_exact_sampler_seeks_without_storing_a_permutation() -> None:
    sampler = ExactSampler(Numbers(LONG), 8, 3)

    tracemalloc.start()
    sampler.set_epoch(5, LONG // 2)
    first = list(itertools.islice(sampler, 100))
    sampler.set_epoch(5)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    places = np.arange(100, dtype=np.int64) * 8 + LONG // 2 + 3
    assert first == Permutation(LONG, 0, 5)(places).tolist()
    assert peak_bytes < 2**20


@pytest.mark.parametrize("order", [Sequential(5), Shuffled(5, 3), PermutedOrder(5, 3, 1)])
def test_orders_survive_a_round_trip(order: Any) -> None:
    assert parse(to_dict(order)) == order


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("whose", ["", "loader", "sampler", "both", "one for both"])
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_random_order_is_redrawn_from_the_saved_generators(whose: str, workers: int) -> None:
    generators = [torch.Generator().manual_seed(i) for i in (5, 6)]
    of_sampler = generators[0] if whose in ("sampler", "both", "one for both") else None
    of_loader = {"loader": generators[1], "both": generators[1], "one for both": generators[0]}
    sampler = torch.utils.data.RandomSampler(Numbers(40), generator=of_sampler)
    loader = DataLoader(
        Numbers(40), 8, sampler=sampler, generator=of_loader.get(whose), num_workers=workers
    )
    rng.seed(3)
    resumable = ResumableLoader(loader)
    batches = iter(resumable)
    seen = [s for _ in range(6) for s in next(batches).tolist()]  # one batch into the second pass

    tree: dict[str, Any] = stored(resumable.position)["deal"]["order"]
    before = torch.get_rng_state()
    rest = list(RemainderSampler(parse(tree), 0, 1, 0, drops_tail=False))

    assert isinstance(parse(tree), RandomOrder)
    assert rest[:8] == seen[40:]
    assert sorted(rest) == list(range(40))
    assert torch.equal(torch.get_rng_state(), before)


def noisy(rank: int, world_size: int, workers: int = 0) -> DataLoader[Any]:
    data = Noisy(60)
    return DataLoader(data, 4, sampler=ExactSampler(data, world_size, rank), num_workers=workers)


@pytest.mark.parametrize("cut", range(1, 20, 3))
def test_exact_sampler_resumes_bit_for_bit_in_the_same_world(cut: int) -> None:
    whole = run_loaders(noisy, 2, 20)
    before = run_loaders(noisy, 2, cut)
    after = run_loaders(noisy, 2, 20 - cut, before.trees)

    for rank in range(2):
        assert before.batches[rank] + after.batches[rank] == whole.batches[rank]
        assert before.drawn[rank] + after.drawn[rank] == whole.drawn[rank]


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_exact_resume_with_workers_rereads_nothing_and_warns(
    capsys: pytest.CaptureFixture[str], tmp_path: Any
) -> None:
    class Watched(Numbers):
        def __getitem__(self, i: int) -> int:
            with (tmp_path / "read").open("a") as file:
                file.write(f"{i}\n")
            return i

    def make() -> DataLoader[int]:
        data = Watched(600)
        return DataLoader(data, 4, sampler=ExactSampler(data, 1, 0), num_workers=1)

    resumable = ResumableLoader(make())
    batches = iter(resumable)
    seen = [s for _ in range(20) for s in next(batches).tolist()]
    position = Position(**stored(resumable.position))
    (tmp_path / "read").unlink()
    later = next(iter(ResumableLoader(make(), position))).tolist()

    read = {int(line) for line in (tmp_path / "read").read_text().split()}
    assert seen + later == list(ExactSampler(Numbers(600), 1, 0))[:84]
    assert not read & set(seen)
    assert capsys.readouterr().err == (
        "holdfast: the data continues at the exact sample without reading earlier samples; random numbers in workers "
        "differ\n"
    )

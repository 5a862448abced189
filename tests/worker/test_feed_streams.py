"""Iterable data in another world: it begins again in words, unless the data set itself can go on with any number of ranks."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

from worker.feeding import Make, of_pass, ride


class Stripes(IterableDataset[int]):
    """Every so-manieth number below 60."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.rank, 60, self.world_size))


class Elastic(Stripes):
    """The same, and where all ranks together are; after each pass it begins again."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(rank, world_size)
        self.at = {"base": 0, "mine": 0}

    def __iter__(self) -> Iterator[int]:
        numbers = range(self.at["base"] + self.rank, 60, self.world_size)
        while self.at["mine"] < len(numbers):
            self.at["mine"] += 1
            yield numbers[self.at["mine"] - 1]
        self.at |= {"base": 0, "mine": 0}

    def state_dict(self) -> dict[str, int]:
        return self.at  # The live one, as people do.

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state

    def load_state_dicts(self, states: Sequence[dict[str, int]]) -> None:
        self.at = {"base": states[0]["base"] + sum(state["mine"] for state in states), "mine": 0}


class Noisy(Elastic):
    """The same, with noise that is drawn on the way."""

    def __iter__(self) -> Iterator[float]:  # type: ignore[override]
        return (number + random.random() / 2 for number in super().__iter__())


def streamed(kind: Any, **options: Any) -> Make:
    return lambda rank, world_size: DataLoader(kind(rank, world_size), 4, **options)


@pytest.mark.parametrize(
    ("kind", "first", "then"), [(Stripes, 0, 0), (Elastic, 1, 1), (Elastic, 1, 0), (Elastic, 0, 1)]
)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_stream_that_cannot_be_divided_anew_begins_its_pass_again_and_says_so_once(
    kind: type[Stripes], first: int, then: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Read by workers, a data set cannot be asked: what this process has of it stands still."""
    before = ride(streamed(kind, num_workers=first), 3, 2)
    after = ride(streamed(kind, num_workers=then), 2, 8, before.trees)

    assert capsys.readouterr().err == (
        f"holdfast: the checkpoint is of 3 ranks, now there are 2, and {kind.__name__}, an iterable data set, cannot be "
        "divided anew: this pass over the data begins again, so that some of its samples come twice, and none is left "
        "out\n"
    )
    assert of_pass(0, [after]) == list(range(60))


def test_an_elastic_stream_goes_on_with_any_number_of_ranks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make = streamed(Elastic)
    legs = [ride(make, 3, 2)]
    for world_size, steps in [(2, 2), (4, 1), (1, 3), (2, 4)]:
        legs.append(ride(make, world_size, steps, legs[-1].trees))

    assert of_pass(0, legs) == list(range(60))
    assert of_pass(1, legs) == list(range(len(of_pass(1, legs))))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("cut", range(1, 12))
def test_an_elastic_stream_is_exact_in_the_same_world_also_after_a_move(cut: int) -> None:
    make = streamed(Noisy)
    before = ride(make, 3, 2)
    whole = ride(make, 2, 12, before.trees)

    first = ride(make, 2, cut, before.trees)
    second = ride(make, 2, 12 - cut, first.trees)

    for rank in range(2):
        assert first.batches[rank] + second.batches[rank] == whole.batches[rank]
        assert first.drawn[rank] + second.drawn[rank] == whole.drawn[rank]


def test_an_elastic_stream_that_was_at_its_end_goes_on_with_the_next_pass() -> None:
    make = streamed(Elastic)
    before = ride(make, 3, 5)
    after = ride(make, 2, 3, before.trees)

    assert [number for number, _ in after.steps()] == [1, 1, 1]
    assert of_pass(1, [after]) == list(range(24))


def test_a_stream_in_the_same_world_is_replayed_as_ever() -> None:
    def make(rank: int, world_size: int) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(rank)
        return DataLoader(Stripes(rank, world_size), 4, generator=generator)

    whole = ride(make, 3, 9)
    before = ride(make, 3, 4)
    after = ride(make, 3, 5, before.trees)

    assert [before.batches[r] + after.batches[r] for r in range(3)] == whole.batches


class Counter(IterableDataset[int]):
    """One stream of numbers, of which each pass gives the next six."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        for _ in range(6):
            self.at += 1
            yield self.at


class Counting(Counter):
    """The same, with a state."""

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]

    def load_state_dicts(self, states: Sequence[dict[str, int]]) -> None:
        self.at = max(state["at"] for state in states)


@pytest.mark.parametrize("cut", range(1, 6))
def test_stream_over_passes_with_a_state_resumes_exactly(
    cut: int, capsys: pytest.CaptureFixture[str]
) -> None:
    make = streamed(Counting)
    whole = ride(make, 1, 6)

    before = ride(make, 1, cut)
    after = ride(make, 1, 6 - cut, before.trees)

    assert before.batches[0] + after.batches[0] == whole.batches[0]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("cut", range(1, 6))
def test_stream_without_a_state_is_warned_of_in_later_passes(
    cut: int, capsys: pytest.CaptureFixture[str]
) -> None:
    make = streamed(Counter)
    before = ride(make, 1, cut)

    ride(make, 1, 1, before.trees)

    number = before.batches[0][-1][0] + 1
    assert capsys.readouterr().err == (
        f"holdfast: pass {number} over the data is read again from where a new Counter begins: if it continues one stream "
        "over its passes, give it state_dict, load_state_dict and load_state_dicts, or its samples come twice\n"
        if number > 1
        else ""
    )

"""Iterable data on a changed number of ranks: a restart with a warning, or an elastic resume."""

from __future__ import annotations

import json
import random
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from holdfast_worker.data.resumable_loader import LoaderChanged
from holdfast_worker.protocol.reports import ReportKind
from torch.utils.data import DataLoader, IterableDataset
from worker.support.loader_resume import Make, of_pass, run_loaders, striped
from worker.support.run_driver import RunDriver

STREAMING: Final = str(Path(__file__).parents[1] / "scripts/streaming.py")
FORKED: Final = "ignore:This process .* is multi-threaded:DeprecationWarning"


class Stripes(IterableDataset[int]):
    """Every `world_size`-th number below 60."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.rank = rank
        self.world_size = world_size

    def __iter__(self) -> Iterator[int]:
        return iter(range(self.rank, 60, self.world_size))


class Elastic(Stripes):
    """Stripes with the position of all ranks as state; each pass starts at the beginning."""

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
        return self.at  # The live object, as scripts often do.

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state

    def load_state_dicts(self, states: Sequence[dict[str, int]]) -> None:
        self.at = {"base": states[0]["base"] + sum(state["mine"] for state in states), "mine": 0}


class Noisy(Elastic):
    """An elastic stream with random noise."""

    def __iter__(self) -> Iterator[float]:  # type: ignore[override]
        return (number + random.random() / 2 for number in super().__iter__())


def streamed(kind: Any, **options: Any) -> Make:
    return lambda rank, world_size: DataLoader(kind(rank, world_size), 4, **options)


@pytest.mark.parametrize(
    ("kind", "first", "then"), [(Stripes, 0, 0), (Elastic, 1, 1), (Elastic, 1, 0), (Elastic, 0, 1)]
)
@pytest.mark.filterwarnings(FORKED)
def test_indivisible_stream_restarts_its_pass_with_one_warning(
    kind: type[Stripes], first: int, then: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """With workers, the data set of this process does not advance, and has no position."""
    before = run_loaders(streamed(kind, num_workers=first), 3, 2)
    after = run_loaders(streamed(kind, num_workers=then), 2, 8, before.trees)

    assert capsys.readouterr().err == (
        f"holdfast: the checkpoint is of 3 ranks, now there are 2, and {kind.__name__}, an iterable data set, cannot be "
        "divided again: this pass over the data restarts, so some of its samples are repeated and none is lost\n"
    )
    assert of_pass(0, [after]) == list(range(60))


def test_elastic_stream_resumes_with_any_number_of_ranks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make = streamed(Elastic)
    runs = [run_loaders(make, 3, 2)]
    for world_size, steps in [(2, 2), (4, 1), (1, 3), (2, 4)]:
        runs.append(run_loaders(make, world_size, steps, runs[-1].trees))

    assert of_pass(0, runs) == list(range(60))
    assert of_pass(1, runs) == list(range(len(of_pass(1, runs))))
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("cut", range(1, 12))
def test_elastic_stream_is_exact_in_one_world_after_a_resize(cut: int) -> None:
    make = streamed(Noisy)
    before = run_loaders(make, 3, 2)
    whole = run_loaders(make, 2, 12, before.trees)

    first = run_loaders(make, 2, cut, before.trees)
    second = run_loaders(make, 2, 12 - cut, first.trees)

    for rank in range(2):
        assert first.batches[rank] + second.batches[rank] == whole.batches[rank]
        assert first.drawn[rank] + second.drawn[rank] == whole.drawn[rank]


def test_elastic_stream_at_its_end_continues_with_the_next_pass() -> None:
    make = streamed(Elastic)
    before = run_loaders(make, 3, 5)
    after = run_loaders(make, 2, 3, before.trees)

    assert [number for number, _ in after.steps()] == [1, 1, 1]
    assert of_pass(1, [after]) == list(range(24))


def test_stream_in_the_same_world_is_replayed() -> None:
    def make(rank: int, world_size: int) -> DataLoader[Any]:
        generator = torch.Generator().manual_seed(rank)
        return DataLoader(Stripes(rank, world_size), 4, generator=generator)

    whole = run_loaders(make, 3, 9)
    before = run_loaders(make, 3, 4)
    after = run_loaders(make, 3, 5, before.trees)

    assert [before.batches[r] + after.batches[r] for r in range(3)] == whole.batches


class Counter(IterableDataset[int]):
    """One stream of numbers; each pass yields the next six."""

    def __init__(self, rank: int, world_size: int) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        for _ in range(6):
            self.at += 1
            yield self.at


class Counting(Counter):
    """A counter with a state."""

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
    whole = run_loaders(make, 1, 6)

    before = run_loaders(make, 1, cut)
    after = run_loaders(make, 1, 6 - cut, before.trees)

    assert before.batches[0] + after.batches[0] == whole.batches[0]
    assert capsys.readouterr().err == ""


class Restarting(Stripes):
    """Stripes with the same numbers in each pass."""


WARNING: Final = (
    "holdfast: pass {} restarts Counter from its beginning: if one stream continues over its passes, "
    "use run.steps(..., continues=True), or samples are repeated\n"
)


@pytest.mark.parametrize("world_size", [1, 3])
@pytest.mark.parametrize("cut", range(1, 6))
def test_stateless_stream_warns_once_in_later_passes(
    cut: int, world_size: int, capsys: pytest.CaptureFixture[str]
) -> None:
    make = streamed(Counter)
    before = run_loaders(make, world_size, cut)

    run_loaders(make, world_size, 1, before.trees)

    number = before.batches[0][-1][0] + 1
    assert capsys.readouterr().err == (WARNING.format(number) if number > 1 else "")


@pytest.mark.filterwarnings(FORKED)
@pytest.mark.parametrize("is_persistent", [False, True])
@pytest.mark.parametrize("cut", [4, 5, 8])
def test_stream_of_persistent_workers_causes_a_warning(
    cut: int, is_persistent: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four batches make a pass, as each of two workers yields two."""
    make = streamed(Counter, num_workers=2, persistent_workers=is_persistent)
    whole = run_loaders(make, 1, cut + 2)
    before = run_loaders(make, 1, cut)
    capsys.readouterr()

    after = run_loaders(make, 1, 2, before.trees)

    number = before.batches[0][-1][0] + 1
    output = capsys.readouterr().err
    is_warned = is_persistent and number > 1
    assert output.count("restarts Counter from its beginning") == is_warned
    assert not is_warned or WARNING.format(number) in output
    assert (before.batches[0] + after.batches[0] == whole.batches[0]) is not is_warned


def test_map_style_data_causes_no_warning(capsys: pytest.CaptureFixture[str]) -> None:
    before = run_loaders(striped(20, 4), 2, 7)
    run_loaders(striped(20, 4), 2, 1, before.trees)

    assert before.batches[0][-1][0] == 2
    assert capsys.readouterr().err == ""


class Drawing(Counter):
    """A continuing stream with noise and a shuffle window that spans passes."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__(rank, world_size)
        self.window: list[int] = []

    def __iter__(self) -> Iterator[float]:  # type: ignore[override]
        for number in super().__iter__():
            self.window.append(number)
            if len(self.window) > 3:
                chosen = self.window.pop(random.randrange(4))
                yield chosen + torch.rand(()).item() / 2


@pytest.mark.filterwarnings(FORKED)
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", [Counter, Drawing, Restarting])
def test_stream_that_continues_resumes_exactly_at_every_step(
    kind: type[Any], workers: int, capsys: pytest.CaptureFixture[str]
) -> None:
    make = streamed(kind, num_workers=workers, persistent_workers=workers > 0)
    steps = 40 if kind is Restarting else 14
    whole = run_loaders(make, 2, steps, continues=True)
    assert whole.batches[0][-1][0] > 1

    for cut in range(1, steps - 1, 1 if workers == 0 else 4):
        first = run_loaders(make, 2, cut, continues=True)
        second = run_loaders(make, 2, 1, first.trees, continues=True)
        third = run_loaders(make, 2, steps - cut - 1, second.trees, continues=True)
        for rank in range(2):
            runs = (first, second, third)
            assert [b for part in runs for b in part.batches[rank]] == whole.batches[rank]
            assert [d for part in runs for d in part.drawn[rank]] == whole.drawn[rank]
    assert capsys.readouterr().err == ""


def test_continuing_stream_restarts_with_a_changed_rank_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make = streamed(Counter)
    before = run_loaders(make, 2, 5, continues=True)
    moved = run_loaders(make, 1, 3, before.trees, continues=True)
    after = run_loaders(make, 1, 3, moved.trees, continues=True)

    output = capsys.readouterr().err.splitlines()
    assert "restarts" in output[0]
    assert output[1:] == [
        "holdfast: Counter continues over all passes, and restarts with its first sample"
    ]
    assert moved.batches[0] + after.batches[0] == [
        (2, (1, 2, 3, 4)),
        (2, (5, 6)),
        (3, (7, 8, 9, 10)),
        (3, (11, 12)),
        (4, (13, 14, 15, 16)),
        (4, (17, 18)),
    ]


def test_later_pass_of_a_stream_warns_on_changed_rank_count(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make = streamed(Counter)
    before = run_loaders(make, 2, 3)
    run_loaders(make, 3, 1, before.trees)

    output = capsys.readouterr().err.splitlines(keepends=True)
    assert output[1:] == [WARNING.format(2)]


def test_data_with_a_state_resumes_from_it() -> None:
    make = streamed(Counting)
    before = run_loaders(make, 2, 5, continues=True)
    after = run_loaders(make, 2, 2, before.trees, continues=True)

    whole = run_loaders(make, 2, 7)
    assert [before.batches[r] + after.batches[r] for r in range(2)] == whole.batches


@pytest.mark.parametrize(
    ("first", "then", "message"),
    [
        (False, True, "pass 2 without continues=True, so it does not record how much of Counter"),
        (True, False, "taken with continues=True: revert this"),
    ],
)
def test_continues_option_cannot_change_in_a_later_pass(
    first: bool, then: bool, message: str
) -> None:
    make = streamed(Counter)
    before = run_loaders(make, 1, 3, continues=first)

    with pytest.raises(LoaderChanged, match=message):
        run_loaders(make, 1, 1, before.trees, continues=then)


def test_continues_option_can_change_in_the_first_pass() -> None:
    make = streamed(Counter)
    before = run_loaders(make, 1, 2)

    after = run_loaders(make, 1, 2, before.trees, continues=True)

    assert after.batches == [[(1, (7, 8, 9, 10)), (1, (11, 12))]]


def test_stream_that_has_become_shorter_is_refused() -> None:
    class Shorter(Counter):
        def __iter__(self) -> Iterator[int]:
            yield from list(super().__iter__())[:4]

    before = run_loaders(streamed(Counter), 1, 5, continues=True)

    with pytest.raises(LoaderChanged, match="had 4 batches, now they have 2: did"):
        run_loaders(streamed(Shorter), 1, 1, before.trees, continues=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (striped(20, 4), "continues=True requires an iterable data set"),
        (streamed(Counter, num_workers=1), "requires persistent_workers=True"),
    ],
)
def test_data_that_cannot_continue_is_refused(make: Make, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_loaders(make, 1, 1, continues=True)


def test_killed_run_continues_its_stream_to_the_bit(tmp_path: Path) -> None:
    """A pass has five steps; the run is killed in its third pass, and again in its sixth.

    Training waits for each save, so that a checkpoint exists before both kills.
    """
    uninterrupted = RunDriver(tmp_path / "calm")
    fallen = RunDriver(tmp_path / "fallen", "4 steps", {"HOLDFAST_SYNC_SAVES": "1"})

    assert uninterrupted.run_ranks(2, STREAMING, "33", "1") == [0, 0]
    first = fallen.run_ranks(2, STREAMING, "33", "1", "--fall", f"1:14:{signal.SIGKILL}")
    second = fallen.run_ranks(2, STREAMING, "33", "1", "--fall", f"0:29:{signal.SIGKILL}")
    assert fallen.run_ranks(2, STREAMING, "33", "1") == [0, 0]

    begun = [int(str(r.body["step"])) for r in fallen.reports(ReportKind.TRAINING_STARTED)]
    assert (first[1], second[0]) == (-signal.SIGKILL, -signal.SIGKILL)
    assert begun == [0, 12, 28]
    for rank in range(2):
        whole, resumed = (
            json.loads((run.path / f"result-{rank}").read_text()) for run in (uninterrupted, fallen)
        )
        assert resumed["weights"] == whole["weights"]
        assert resumed["seen"] == {n: s for n, s in whole["seen"].items() if int(n) >= 28}


@pytest.mark.parametrize(
    "total", [5, 8, *(pytest.param(total, marks=pytest.mark.full) for total in (4, 10))]
)
def test_resume_of_an_undeclared_stream_warns_only_on_rank_0(total: int, tmp_path: Path) -> None:
    """Resume in the first pass, at its end, in the middle of the second one, and at its end."""
    driver = RunDriver(tmp_path)
    ranks = ("--nproc-per-node", "2", STREAMING)
    assert driver.run_wrapper(*ranks, str(total), "0")[0] == 0
    assert driver.run_wrapper(*ranks, str(total + 1), "0")[0] == 0

    warned = [driver.log(rank).count("restarts Stream from its beginning") for rank in (0, 1)]
    assert warned == [total > 5, 0]

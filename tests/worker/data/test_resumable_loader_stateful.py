"""torchdata's StatefulDataLoader: its own position is used, and exact in the same world."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest
import torch
from holdfast_worker import rng
from holdfast_worker.data.resumable_loader import LoaderChanged, Position, ResumableLoader
from support.repetitions import FULL
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset
from torchdata import nodes
from torchdata.stateful_dataloader import StatefulDataLoader
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler
from worker.support.loader_resume import Noisy, Numbers, draws, of_pass, run_loaders, stored

BATCH, STEPS = 3, 12
"""11 samples make four batches a pass; 12 steps are three passes."""

pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),  # torchdata is older than torch
]


class Counting(IterableDataset[int]):
    """A stream with its position as state."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 11:
            self.at += 1
            yield self.at - 1
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Counter(Iterator[int]):
    """An iterator over a stream, with its position and end as state."""

    def __init__(self) -> None:
        self.at = 0

    def __next__(self) -> int:
        if self.at == 11:
            raise StopIteration
        self.at += 1
        return self.at - 1

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Counted(IterableDataset[int]):
    """A stream whose iterator has the state, as torchdata requires with workers."""

    def __iter__(self) -> Iterator[int]:
        return Counter()


class Drawing(Counting):
    """A stream that draws random numbers, which must be separate from the training's."""

    def __iter__(self) -> Iterator[float]:  # type: ignore[override]
        return (i + random.random() / 2 for i in super().__iter__())


class StatelessStream(IterableDataset[float]):
    """A stream without a state: the loader reads up to its position."""

    def __iter__(self) -> Iterator[float]:
        return (i + random.random() / 2 for i in range(11))


class StatefulDataset(Dataset[int]):
    """A data set with a state: it counts its reads."""

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 11

    def __getitem__(self, i: int) -> int:
        self.asked += 1
        return 100 * self.asked + i

    def state_dict(self) -> dict[str, int]:
        return {"asked": self.asked}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.asked = state["asked"]


def divided(kind: Any, **options: Any) -> StatefulDataLoader[Any]:
    sampler = kind(Noisy(), 2, 1)
    return StatefulDataLoader(Noisy(), BATCH, sampler=sampler, **options)


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(11)


LOADERS: dict[str, Callable[[], Iterable[Any]]] = {
    "in order": lambda: StatefulDataLoader(Noisy(), BATCH),
    "shuffled": lambda: StatefulDataLoader(Noisy(), BATCH, shuffle=True),
    "generator": lambda: StatefulDataLoader(Noisy(), BATCH, shuffle=True, generator=seeded()),
    "distributed": lambda: divided(DistributedSampler),
    "sampler of torchdata": lambda: divided(StatefulDistributedSampler),
    "stateful stream": lambda: StatefulDataLoader(Counting(), BATCH),
    "stateful iterator": lambda: StatefulDataLoader(Counted(), BATCH),
    "random stream": lambda: StatefulDataLoader(Drawing(), BATCH),
    "stateless": lambda: StatefulDataLoader(StatelessStream(), BATCH),
    "nodes": lambda: nodes.Loader(
        nodes.Batcher(nodes.IterableWrapper(range(11)), BATCH, drop_last=False),
        restart_on_stop_iteration=False,
    ),
    "stateful data": lambda: StatefulDataLoader(StatefulDataset(), BATCH, shuffle=True),
}
BUSY_LOADERS: dict[str, Callable[[], Iterable[Any]]] = {
    "shuffled": lambda: StatefulDataLoader(Numbers(11), BATCH, shuffle=True, num_workers=2),
    "generator": lambda: StatefulDataLoader(
        Numbers(11), BATCH, shuffle=True, num_workers=2, generator=seeded()
    ),
    "stateful iterator": lambda: StatefulDataLoader(Counted(), BATCH, num_workers=2),
    "snapshots every few steps": lambda: StatefulDataLoader(
        Numbers(11), BATCH, shuffle=True, num_workers=1, snapshot_every_n_steps=3
    ),
}


def train(batches: Iterator[Any], steps: int) -> list[object]:
    """Batches of `steps` steps."""
    seen: list[object] = []
    for _ in range(steps):
        batch = next(batches)
        seen += [batch.tolist() if isinstance(batch, Tensor) else batch, draws()]
    return seen


def check_resume(make: Callable[[], Iterable[Any]], cuts: Iterable[int]) -> None:
    """Cut a run at each step of `cuts` and check that it resumes exactly."""
    rng.seed(3)
    expected = train(iter(ResumableLoader(make())), STEPS)
    for cut in cuts:
        rng.seed(3)
        loader = ResumableLoader(make())
        before = train(iter(loader), cut)
        position = Position(**stored(loader.position))
        # Created as in a script: torchdata seeds its own sampler then.
        rng.seed(3)
        after = train(iter(ResumableLoader(make(), position)), STEPS - cut)

        assert before + after == expected, f"cut after {cut}"


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.ERROR)


@pytest.mark.parametrize("name", LOADERS)
def test_resume_is_exact_at_every_cut(name: str) -> None:
    check_resume(LOADERS[name], range(1, STEPS))


@pytest.mark.parametrize("name", BUSY_LOADERS)
def test_resume_with_workers_is_exact(name: str) -> None:
    check_resume(BUSY_LOADERS[name], (1, 4, 6, 8) if FULL else (4, 8))


@pytest.mark.parametrize("name", LOADERS)
def test_stateful_checkpoint_at_the_end_of_a_pass_skips_no_pass(name: str) -> None:
    """Verl #7401, torchdata #1437: a finished pass's state was loaded into the next one."""
    rng.seed(3)
    loader = ResumableLoader(LOADERS[name]())
    batches = iter(loader)
    while loader.position.passes == 0:
        position = Position(**stored(loader.position))
        next(batches)

    rng.seed(3)
    later = ResumableLoader(LOADERS[name](), position)
    train(iter(later), position.taken)

    assert (later.position.passes, later.position.taken) == (1, position.taken)


def test_consumed_samples_are_not_read_again() -> None:
    class Watched(Numbers):
        def __getitem__(self, i: int) -> int:
            read.append(i)
            return i

    read: list[int] = []
    loader = ResumableLoader(StatefulDataLoader(Watched(30), BATCH))
    train(iter(loader), 5)
    position = loader.position
    read.clear()

    train(iter(ResumableLoader(StatefulDataLoader(Watched(30), BATCH), position)), 1)

    assert read == [15, 16, 17]


def stateful(rank: int, world_size: int, workers: int = 0) -> StatefulDataLoader[Any]:
    data = Numbers(60)
    sampler = DistributedSampler(data, world_size, rank)
    return StatefulDataLoader(data, 4, sampler=sampler, num_workers=workers)


@pytest.mark.parametrize("workers", [0, 2])
def test_changed_world_divides_a_known_order(
    workers: int,
) -> None:
    def make(rank: int, world_size: int) -> StatefulDataLoader[Any]:
        return stateful(rank, world_size, workers)

    runs = [run_loaders(make, 3, 2)]
    runs.append(run_loaders(make, 2, 2, runs[-1].trees))
    # In the rest of a pass, the loader's own state counts from the start of the rest.
    runs.append(run_loaders(make, 2, 1, runs[-1].trees))
    runs.append(run_loaders(make, 4, 2, runs[-1].trees))

    seen = of_pass(0, runs)
    assert seen == of_pass(0, [run_loaders(stateful, 1, 15)])
    assert of_pass(1, runs) == of_pass(1, [run_loaders(stateful, 4, 8)])[: len(of_pass(1, runs))]


def test_changed_worker_count_is_exact_in_a_known_order() -> None:
    before = run_loaders(stateful, 2, 3)
    after = run_loaders(lambda r, w: stateful(r, w, workers=2), 2, 5, before.trees)

    assert of_pass(0, [before, after]) == of_pass(0, [run_loaders(stateful, 2, 8)])


def test_changed_worker_count_is_refused_in_an_unknown_order() -> None:
    """Torchdata itself raises an AssertionError without a message."""
    trees = run_loaders(lambda r, w: StatefulDataLoader(Numbers(60), 4, shuffle=True), 1, 3).trees

    with pytest.raises(LoaderChanged) as refused:
        run_loaders(
            lambda r, w: StatefulDataLoader(Numbers(60), 4, shuffle=True, num_workers=2),
            1,
            1,
            trees,
        )

    assert str(refused.value) == (
        "the checkpoint was taken with num_workers=0, now it is 2, and the consumed samples depend on it: revert this, or "
        "use a new store"
    )


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (
            lambda r, w: StatefulDataLoader(Numbers(60), 4, shuffle=True),
            "the order of torchdata's RandomSampler is unknown",
        ),
        (
            lambda r, w: StatefulDataLoader(Counted(), 4),
            "Counted, an iterable data set, cannot be divided again",
        ),
    ],
)
def test_changed_world_restarts_an_indivisible_pass(
    make: Any, why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = run_loaders(make, 2, 2)
    after = run_loaders(make, 3, 2, before.trees)

    assert capsys.readouterr().err == (
        f"holdfast: the checkpoint is of 2 ranks, now there are 3, and {why}: this pass over the data restarts, so "
        "some of its samples are repeated and none is lost\n"
    )
    assert [number for number, _ in after.batches[2]] == [0, 0]


def test_plain_loader_continues_a_stateful_one_in_known_order() -> None:
    def plain(rank: int, world_size: int) -> DataLoader[int]:
        data = Numbers(60)
        return DataLoader(data, 4, sampler=DistributedSampler(data, world_size, rank))

    whole = run_loaders(stateful, 2, 8)
    for first, second in ((stateful, plain), (plain, stateful)):
        before = run_loaders(first, 2, 3)
        after = run_loaders(second, 2, 5, before.trees)

        assert [before.batches[r] + after.batches[r] for r in range(2)] == whole.batches


def test_foreign_stateful_loader_is_used_in_the_same_world() -> None:
    class Own:
        def __init__(self) -> None:
            self.at = 0

        def __iter__(self) -> Iterator[list[int]]:
            while self.at < 5:
                self.at += 1
                yield [self.at]
            self.at = 0

        def state_dict(self) -> dict[str, int]:
            return {"at": self.at}

        def load_state_dict(self, state: dict[str, int]) -> None:
            self.at = state["at"]

    before = run_loaders(lambda r, w: Own(), 2, 7)
    after = run_loaders(lambda r, w: Own(), 2, 4, before.trees)

    assert after.batches[1] == [(1, (3,)), (1, (4,)), (1, (5,)), (2, (1,))]


def test_loader_with_only_apparent_state_is_replayed() -> None:
    """Loaders of accelerate have the methods also without a state."""

    class Adapted(DataLoader[int]):
        def state_dict(self) -> Any:
            raise AttributeError("dl_state_dict")

        def load_state_dict(self, state: Any) -> None:
            raise AssertionError("there was none")

    def make(rank: int, world_size: int) -> DataLoader[int]:
        return Adapted(Numbers(20), 4, shuffle=True)

    whole = run_loaders(make, 1, 7)
    before = run_loaders(make, 1, 3)

    assert before.batches[0] + run_loaders(make, 1, 4, before.trees).batches[0] == whole.batches[0]

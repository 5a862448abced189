"""Data that a changed number of ranks cannot divide restarts its pass, with a message."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from holdfast_worker.data.resumable_loader import LoaderChanged
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    Dataset,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    WeightedRandomSampler,
)
from worker.support.loader_resume import Numbers, of_pass, repeated, run_loaders, striped


def logged_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The only line that the ranks logged."""
    output = capsys.readouterr().err
    assert output.count("holdfast:") == 1
    return output


def each_its_own(rank: int, world_size: int) -> DataLoader[int]:
    """A loader that shuffles all data independently on each rank."""
    return DataLoader(Numbers(24), 4, shuffle=True)


def test_independently_shuffling_ranks_resume_independently(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def make(rank: int, world_size: int) -> DataLoader[int]:
        return DataLoader(Numbers(20), 4, shuffle=True)

    before = run_loaders(make, 2, 3)
    on = run_loaders(make, 2, 4, before.trees)
    more = run_loaders(make, 3, 4, before.trees)
    result = logged_line(capsys)
    fewer = run_loaders(make, 1, 4, before.trees)

    assert more.batches[:2] == on.batches
    assert more.drawn[:2] == on.drawn
    assert fewer.batches == on.batches[:1]
    assert [number for number, _ in more.batches[2]] == [0, 0, 0, 0]
    assert not repeated(s for _, batch in more.batches[2] for s in batch)
    assert result == (
        "holdfast: the checkpoint is of 2 ranks, now there are 3, and each rank reads all of the data in a separate "
        "order: former ranks continue their orders, new ranks begin one; DistributedSampler and "
        "holdfast_worker.ExactSampler divide one order among all ranks\n"
    )


def test_ranks_with_equal_data_resume_at_the_same_position() -> None:
    def make(rank: int, world_size: int) -> DataLoader[int]:
        return DataLoader(Numbers(20), 4)

    before = run_loaders(make, 1, 2)
    after = run_loaders(make, 3, 3, before.trees)

    assert (
        after.batches == [[(0, (8, 9, 10, 11)), (0, (12, 13, 14, 15)), (0, (16, 17, 18, 19))]] * 3
    )


def weighted(rank: int, world_size: int) -> DataLoader[int]:
    return DataLoader(Numbers(20), 5, sampler=WeightedRandomSampler([1.0] * 20, 20))


def batched(rank: int, world_size: int) -> DataLoader[int]:
    class Buckets(BatchSampler):
        def __iter__(self) -> Iterator[list[int]]:
            return reversed(list(super().__iter__()))

    return DataLoader(
        Numbers(20), batch_sampler=Buckets(SequentialSampler(Numbers(20)), 5, drop_last=False)
    )


def inherited(rank: int, world_size: int) -> DataLoader[int]:
    class Own(DistributedSampler[int]):
        pass

    return DataLoader(Numbers(20), 5, sampler=Own(Numbers(20), world_size, rank))


def with_replacement(rank: int, world_size: int) -> DataLoader[int]:
    return DataLoader(Numbers(20), 5, sampler=RandomSampler(Numbers(20), replacement=True))


UNKNOWN_ORDER = {
    "WeightedRandomSampler": weighted,
    "Buckets": batched,
    "Own": inherited,
    "RandomSampler with replacement": with_replacement,
    "list": lambda rank, world_size: [[1, 2], [3, 4], [5, 6]],
}


@pytest.mark.parametrize("name", UNKNOWN_ORDER)
def test_unknown_order_restarts_the_pass_with_a_message(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = run_loaders(UNKNOWN_ORDER[name], 2, 2)
    after = run_loaders(UNKNOWN_ORDER[name], 3, 4, before.trees)

    assert logged_line(capsys) == (
        f"holdfast: the checkpoint is of 2 ranks, now there are 3, and the order of {name} is unknown: this pass over "
        "the data restarts, so some of its samples are repeated and none is lost\n"
    )
    assert [number for number, _ in after.batches[0]][:2] == [0, 0]


def test_ranks_with_own_orders_share_one_from_the_next_pass(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = run_loaders(each_its_own, 2, 3)
    after = run_loaders(striped(24, 4), 3, 2, before.trees)

    assert "with RandomSampler each rank has a separate order: this pass" in logged_line(capsys)
    assert sorted(of_pass(0, [after])) == list(range(24))


def test_ranks_in_different_passes_restart_the_same_one(
    capsys: pytest.CaptureFixture[str],
) -> None:
    apart = run_loaders(
        each_its_own, 2, 3, run_loaders(each_its_own, 1, 5).trees
    )  # The first rank is in its second pass, the new one in its first.
    capsys.readouterr()
    after = run_loaders(striped(24, 4), 3, 2, apart.trees)

    assert "with RandomSampler each rank has a separate order: this pass" in logged_line(capsys)
    assert sorted(of_pass(1, [after])) == list(range(24))


def test_one_order_is_not_divided_among_independent_shuffles(
    capsys: pytest.CaptureFixture[str],
) -> None:
    run_loaders(each_its_own, 3, 2, run_loaders(striped(24, 4), 2, 2).trees)

    assert "with RandomSampler each rank has a separate order: this pass" in logged_line(capsys)


def test_data_divided_by_a_script_is_not_treated_as_one_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def make(rank: int, world_size: int) -> DataLoader[int]:
        class Part(Dataset[int]):
            def __len__(self) -> int:
                return len(range(rank, 10, world_size))

            def __getitem__(self, i: int) -> int:
                return range(rank, 10, world_size)[i]

        return DataLoader(Part(), 1, shuffle=True)

    before = run_loaders(make, 4, 1)  # Parts of 3, 3, 2 and 2 samples become different parts of 2.
    after = run_loaders(make, 5, 2, before.trees)

    assert "with RandomSampler each rank has a separate order: this pass" in logged_line(capsys)
    assert sorted(of_pass(0, [after])) == list(range(10))


def test_different_sampler_seeds_give_no_common_order(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def make(rank: int, world_size: int) -> DataLoader[int]:
        return striped(24, 4, seed=rank)(rank, world_size)  # type: ignore[return-value]

    run_loaders(make, 3, 2, run_loaders(make, 2, 2).trees)

    assert "the ranks were not at one position of the same order: this pass" in logged_line(capsys)


def test_unequal_steps_of_ranks_give_no_common_position(
    capsys: pytest.CaptureFixture[str],
) -> None:
    def make(rank: int, world_size: int) -> DataLoader[int]:
        return striped(24, 2 + 2 * rank)(rank, world_size)  # type: ignore[return-value]

    run_loaders(striped(24, 4), 3, 2, run_loaders(make, 2, 2).trees)

    assert "the ranks were not at one position of the same order: this pass" in logged_line(capsys)


def test_old_checkpoint_in_a_changed_world_restarts_the_pass(
    capsys: pytest.CaptureFixture[str],
) -> None:
    old = ("passes", "taken", "dawn", "present")
    trees = [{name: tree[name] for name in old} for tree in run_loaders(striped(24, 4), 2, 4).trees]

    after = run_loaders(striped(24, 4), 3, 2, trees)
    same = run_loaders(striped(24, 4), 2, 2, trees)

    assert "the checkpoint does not record how the data was divided: this pass" in logged_line(
        capsys
    )
    assert [number for number, _ in after.steps()] == [1, 1]
    assert sorted(of_pass(1, [after])) == list(range(24))
    assert (
        same.batches
        == run_loaders(striped(24, 4), 2, 2, run_loaders(striped(24, 4), 2, 4).trees).batches
    )


def test_changed_data_length_is_refused_in_any_world() -> None:
    before = run_loaders(striped(24, 4), 2, 2)

    with pytest.raises(
        LoaderChanged, match="a pass over 24 samples, but the data now has 25: revert"
    ):
        run_loaders(striped(25, 4), 3, 1, before.trees)
    with pytest.raises(
        LoaderChanged, match="a pass over 24 samples, but the data now has 25: revert"
    ):
        run_loaders(striped(25, 4), 2, 1, before.trees)

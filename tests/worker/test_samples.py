"""Samples tell a mixture of ranks from the last digits of one computation, whatever tensors look like."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from holdfast_worker.layout import Kind
from holdfast_worker.samples import TENSORS, draw, first_apart
from torch import Tensor

from worker.shelves import Crew, MemoryStore, Scales, newest, snapshot


def apart(first: Tensor, second: Tensor) -> str:
    """What is said of two ranks that have these."""
    samples = [draw({"model.w": tensor}, step=3).read() for tensor in (first, second)]
    return first_apart(samples, {"model.w": Kind.of(first)})


ONES = torch.ones(20, 6)


@pytest.mark.parametrize(
    ("first", "second", "is_apart"),
    [
        (ONES, ONES, False),
        (ONES, ONES + 1e-5, False),
        (ONES, ONES + 1e-2, True),
        (ONES.bfloat16(), ONES.bfloat16() + 0.01, False),
        (ONES.bfloat16(), ONES.bfloat16() * 2, True),
        (ONES * 0, ONES * 0, False),
        (ONES * 0, ONES * 1e-9, True),
        (ONES.byte() * 100, ONES.byte() * 101, False),
        (ONES.long(), ONES.long() * 2, True),
        (ONES * torch.nan, ONES * torch.nan, False),
        (ONES, ONES * torch.inf, True),
        (ONES.t(), ONES.t() + 1, True),
    ],
)
def test_only_more_than_rounding_sets_ranks_apart(
    first: Tensor, second: Tensor, *, is_apart: bool
) -> None:
    assert bool(apart(first, second)) is is_apart


def test_all_of_many_tensors_are_sampled_over_some_saves() -> None:
    tensors = {f"w{i}": torch.ones(1) for i in range(3 * TENSORS)}

    seen = [set(draw(tensors, step).names) for step in range(0, 200, 10)]

    assert {len(names) for names in seen} == {TENSORS}
    assert set.union(*seen) == tensors.keys()


class Louder(Scales):
    """A rank whose tensors are not those of the others."""

    def at(self, step: int) -> Scales:
        super().at(step)
        self.state["left"] += 1
        return self


def test_mixture_of_two_ranks_is_not_committed(tmp_path: Path) -> None:
    store = MemoryStore()
    crew = Crew(store, tmp_path)
    crew.save(3)

    for rank, scales in enumerate([Scales(), Louder()]):
        crew.savers[rank].save(snapshot(4, rank, 2, scales))
    for saver in crew.savers:
        saver.wait(30)

    assert crew.savers[0].apart.startswith("model.left has different values on rank 0 and rank 1")
    assert newest(store) == (3, [])

"""Weight samples distinguish desynced ranks from rounding errors, for any kind of tensor."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Final

import pytest
import torch
from holdfast_worker.distributed.tensor_layout import TensorSpec
from holdfast_worker.distributed.weight_samples import (
    MAX_TENSORS,
    VALUES_PER_TENSOR,
    draw_samples,
    first_divergence,
)
from torch import Tensor
from worker.support.stores import MemoryStore, RankGroup, Scales, newest, snapshot

STEPS: Final = 1500
ERROR: Final = 2.0**-17
"""64 units in the last place of float32.

`STEPS` such errors add up like single units in six million steps if weights are stored in float32, and in 100,000 steps
if most errors are rounded away.
"""


def apart(first: Tensor, second: Tensor) -> str:
    """Message about two ranks with these tensors."""
    return ranks_apart([{"model.w": first}, {"model.w": second}], step=3)


def ranks_apart(ranks: list[dict[str, Tensor]], step: int) -> str:
    """Message about ranks with these tensors."""
    kinds = {name: TensorSpec.from_tensor(tensor) for name, tensor in ranks[0].items()}
    return first_divergence([draw_samples(tensors, step).read() for tensors in ranks], kinds)


class Adam:
    """Weights computed in float32 and stored in `dtype`, with rounding errors from `errors`."""

    def __init__(
        self, dtype: torch.dtype, scale: float, seed: int, errors: torch.Generator | None = None
    ) -> None:
        self.scale = scale
        self.errors = errors
        w = torch.randn(256, generator=torch.Generator().manual_seed(seed)) * scale
        self.tensors = {"w": w.to(dtype), "m": torch.zeros_like(w, dtype=dtype)}
        self.tensors["v"] = torch.zeros_like(self.tensors["m"])

    def step(self, number: int, gradient: Tensor) -> None:
        """Make a step with a gradient of the weights' shape."""
        w, m, v = (self.tensors[name].float() for name in "wmv")
        m = self._rounded(0.9 * m + 0.1 * gradient)
        v = self._rounded(0.999 * v + 0.001 * gradient**2)
        update = (m / (1 - 0.9**number)) / (v / (1 - 0.999**number)).sqrt().clamp_min(1e-30)
        w = self._rounded(w - 1e-2 * self.scale * self._rounded(update))
        for name, value in zip("wmv", (w, m, v), strict=True):
            self.tensors[name] = value.to(self.tensors[name].dtype)

    def _rounded(self, exact: Tensor) -> Tensor:
        if self.errors is None:
            return exact
        return exact * (1 + ERROR * torch.randint(-1, 2, exact.shape, generator=self.errors))


def trained_apart(first: Adam, second: Adam, *, alike: bool = True, steps: int = STEPS) -> set[str]:
    """Tensors that differ at any save of a training, as a whole or cut into single values.

    Both ranks get the same gradients if `alike`.
    """
    gradients = torch.Generator().manual_seed(5)
    found: set[str] = set()
    for number in range(1, steps + 1):
        gradient = torch.randn(256, generator=gradients) * first.scale
        first.step(number, gradient)
        second.step(
            number, gradient if alike else torch.randn(256, generator=gradients) * first.scale
        )
        if number % 50 == 0:
            for name, size in product("wmv", (1, 256)):
                ranks = [
                    {f"{name}{i}": part for i, part in enumerate(rank.tensors[name].split(size))}
                    for rank in (first, second)
                ]
                for save in range(3):
                    found |= {name} if ranks_apart(ranks, step=number + save) else set()
    return found


SIZES: Final = [
    (torch.float32, 1e-12),
    (torch.bfloat16, 1e12),
    (torch.float16, 1.0),
    *(
        pytest.param(dtype, scale, marks=pytest.mark.full)
        for dtype, scale in (
            (torch.float32, 1.0),
            (torch.float32, 1e12),
            (torch.bfloat16, 1e-12),
            (torch.bfloat16, 1.0),
            (torch.float16, 0.05),
            (torch.float16, 100.0),
        )
    ),
]
"""Types, and magnitudes of weights and gradients that they can hold, also squared."""


@pytest.mark.parametrize(("dtype", "scale"), SIZES)
def test_accumulated_rounding_errors_are_no_desync(dtype: torch.dtype, scale: float) -> None:
    errors = torch.Generator().manual_seed(11)
    first, second = Adam(dtype, scale, 1), Adam(dtype, scale, 1, errors)

    found = trained_apart(first, second)

    assert not torch.equal(first.tensors["w"], second.tensors["w"])
    assert found == set()


@pytest.mark.parametrize(("dtype", "scale"), SIZES)
def test_differing_weights_are_detected(dtype: torch.dtype, scale: float) -> None:
    assert "w" in trained_apart(Adam(dtype, scale, 1), Adam(dtype, scale, 2), steps=50)


@pytest.mark.parametrize(("dtype", "scale"), SIZES)
def test_optimizer_state_of_other_gradients_is_detected(dtype: torch.dtype, scale: float) -> None:
    found = trained_apart(Adam(dtype, scale, 1), Adam(dtype, scale, 1), alike=False, steps=50)

    assert "m" in found


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
        # Values near zero have the absolute errors of the larger values beside them.
        (torch.arange(-60, 60) / 9, torch.arange(-60, 60) / 9 + 1e-3, False),
        # A single value may be crossing zero.
        (torch.tensor([1e-9]), torch.tensor([-1e-9]), False),
        (torch.full((3,), 1e-9), torch.full((3,), -1e-9), False),
        # A GPU may flush subnormal numbers to zero.
        (ONES * 1e-39, ONES * 0, False),
        (ONES.half() * 3e-7, ONES.half() * 6e-7, False),
        (ONES.half(), ONES.half() * 2, True),
        # Adjacent quantized values.
        (ONES.char(), (ONES + torch.tensor([0, 0, 1, 0, 0, 0])).char(), False),
        (ONES.char() * 50, ONES.char() * -50, True),
    ],
)
def test_only_differences_beyond_rounding_are_a_desync(
    first: Tensor, second: Tensor, *, is_apart: bool
) -> None:
    assert bool(apart(first, second)) is is_apart


def test_samples_of_a_tensor_are_at_different_positions() -> None:
    samples = draw_samples({"w": torch.arange(1.0, VALUES_PER_TENSOR + 1)}, step=1).read()

    assert sorted(v or 0 for v in samples["w"]) == list(range(1, VALUES_PER_TENSOR + 1))


def test_all_tensors_are_sampled_within_some_saves() -> None:
    tensors = {f"w{i}": torch.ones(1) for i in range(3 * MAX_TENSORS)}

    seen = [set(draw_samples(tensors, step).names) for step in range(0, 200, 10)]

    assert {len(names) for names in seen} == {MAX_TENSORS}
    assert set.union(*seen) == tensors.keys()


class DivergingScales(Scales):
    """State of a rank with tensors that differ from the others'."""

    def at(self, step: int) -> Scales:
        super().at(step)
        self.state["left"] += 1
        return self


def test_mixture_of_two_ranks_is_not_committed(tmp_path: Path) -> None:
    store = MemoryStore()
    group = RankGroup(store, tmp_path)
    group.save(3)

    for rank, scales in enumerate([Scales(), DivergingScales()]):
        group.savers[rank].save(snapshot(4, rank, 2, scales))
    for writer in group.savers:
        writer.wait(30)

    assert group.savers[0].divergence.startswith(
        "model.left has different values on rank 0 and rank 1"
    )
    assert newest(store) == (3, [])

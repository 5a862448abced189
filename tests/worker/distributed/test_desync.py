"""Desync detection: differing gradients are reported, and end the run without a save."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from holdfast_worker.distributed.desync import (
    CHECK_STEPS,
    NOT_FINITE,
    READ_LAG_STEPS,
    DesyncDetector,
    describe_desync,
)
from holdfast_worker.distributed.step_vote import StepDecision, StepVote, decide
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import ReportKind
from torch import nn
from worker.support.run_driver import RunDriver

APART = str(Path(__file__).parents[1] / "scripts/desync.py")


class Wrapped(nn.Module):
    """A fake of DDP's interface for gradients."""

    def __init__(self, module: nn.Module, *ignored: str) -> None:
        super().__init__()
        self.module = module
        self.parameters_to_ignore = set(ignored)


def votes_of(*norms: float | None) -> StepVote:
    """The combined votes of ranks with these gradient norms."""
    columns = zip(*(StepVote(norm=n, least_norm=n).numbers() for n in norms), strict=True)
    return StepVote.from_numbers([max(column) for column in columns])


@pytest.mark.parametrize(
    ("norms", "is_apart"),
    [
        ((1.0, 1.0, 1.0, 1.0), False),
        ((1.0, 1.0, 1.09, 1.0), False),
        ((1.0, 1.0, 1.11, 1.0), True),
        ((0.0, 0.0), False),
        ((0.0, 1e-9), True),
        ((NOT_FINITE, NOT_FINITE), False),  # A loss that is NaN on all ranks is no desync.
        ((NOT_FINITE, 1.0), True),
        ((None, None), False),
        ((None, 1.0), False),
    ],
)
def test_norms_that_differ_by_a_tenth_are_a_desync(
    norms: tuple[float | None, ...], is_apart: bool
) -> None:
    assert votes_of(*norms).is_desynced is is_apart


def test_weights_have_a_smaller_tolerance() -> None:
    same = StepVote(norm=1.0, least_norm=1.0, weight=5.004, least_weight=5.0)
    other = StepVote(norm=1.0, least_norm=1.0, weight=5.006, least_weight=5.0)

    assert (same.is_desynced, other.is_desynced) == (False, True)
    assert describe_desync([1.0] * 3, [5.0, 5.006, 5.0], step=21) == (
        "the weights of rank 1 differ from those of the other ranks in step 21: "
        "norm 5.006 instead of 5"
    )


def test_weights_are_sampled_with_their_gradients() -> None:
    model = nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0)
    gradients = DesyncDetector()
    gradients.watch(Wrapped(model))  # type: ignore[arg-type]
    nn.init.constant_(model.weight, 3.0)
    model.weight.grad = torch.tensor([[3.0, 4.0]])

    optimizer.step()
    for _ in range(READ_LAG_STEPS):
        gradients.end_step()

    assert gradients.norms() == (pytest.approx(5), pytest.approx(3 * math.sqrt(2)))


def test_desynced_ranks_save_nothing_even_on_exit() -> None:
    apart = StepVote(norm=2.0, least_norm=1.0, is_leaving=True, is_due=True, is_busy=True)

    assert decide(apart, is_saved=False) is StepDecision.STOP_DESYNC


def test_deviating_rank_is_named_and_of_two_ranks_both() -> None:
    assert describe_desync([1.7, 1.7, 3.4, 1.7], [9.0] * 4, step=21) == (
        "the gradients of rank 2 differ from those of the other ranks in step 21: "
        "norm 3.4 instead of 1.7"
    )
    assert describe_desync([1.7, 3.4], [9.0] * 2, step=1) == (
        "the ranks have different gradients in step 1: the norms are 1.7 on rank 0, 3.4 on rank 1"
    )
    assert describe_desync([1.0, NOT_FINITE, 1.0], [9.0] * 3, step=1) == (
        "the gradients of rank 1 differ from those of the other ranks in step 1: "
        "norm not finite instead of 1"
    )


def test_gradients_are_sampled_and_reported_some_steps_later() -> None:
    model = nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0)
    gradients = DesyncDetector()
    gradients.watch(Wrapped(model))  # type: ignore[arg-type]
    found: dict[int, float] = {}

    for step in range(1, 2 * CHECK_STEPS + 1):
        model.weight.grad = torch.full((1, 3), float(step))
        optimizer.step()
        gradients.end_step()
        if (norm := gradients.norms()[0]) is not None:
            found[step] = norm

    assert found == {
        READ_LAG_STEPS: pytest.approx(1 * math.sqrt(3)),
        CHECK_STEPS + READ_LAG_STEPS: pytest.approx((CHECK_STEPS + 1) * math.sqrt(3)),
    }


def test_parameters_ignored_by_ddp_are_not_checked() -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0)
    gradients = DesyncDetector()
    gradients.watch(Wrapped(model, "bias"))  # type: ignore[arg-type]
    model.weight.grad, model.bias.grad = torch.zeros(1, 3), torch.full((1,), 7.0)

    optimizer.step()
    for _ in range(READ_LAG_STEPS):
        gradients.end_step()

    assert gradients.norms()[0] == 0


def test_non_finite_gradients_share_one_norm_value() -> None:
    model = nn.Linear(3, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0)
    gradients = DesyncDetector()
    gradients.watch(Wrapped(model))  # type: ignore[arg-type]
    model.weight.grad = torch.full((1, 3), math.nan)

    optimizer.step()
    for _ in range(READ_LAG_STEPS):
        gradients.end_step()

    assert gradients.norms()[0] == NOT_FINITE


def test_differing_gradients_on_one_of_four_ranks_end_the_run(tmp_path: Path) -> None:
    driver = RunDriver(tmp_path, every="15 steps")

    codes = driver.run_ranks(4, APART, "2")
    [left] = driver.reports(ReportKind.WORKER_LEFT)

    assert codes == [Exit.APART] * 4
    assert left.body["exit_code"] == Exit.APART
    assert "the gradients of rank 2 differ from those of the other ranks in step 21" in str(
        left.body["detail"]
    )
    saved = [r.body["step"] for r in driver.reports(ReportKind.CHECKPOINT_COMMITTED)]
    assert all(int(str(step)) <= 20 + READ_LAG_STEPS for step in saved)

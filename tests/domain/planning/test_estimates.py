"""Cost of a loss, checkpoint interval and memory of a model, against published figures."""

from __future__ import annotations

import pytest
from holdfast.domain.planning.estimates import (
    HABITUAL_INTERVALS_S,
    PEAK_TFLOPS,
    cadence,
    estimate_loss,
    memory_bytes,
    model_size,
    on_demand_reasons,
    parse_parameter_count,
    round_for_display,
    share_wasted,
)
from holdfast.errors import BadRequest

USD = 1_000_000


def test_three_days_on_64_gpus_that_fail_in_hour_67() -> None:
    result = estimate_loss(2000 * USD, at_hour=67, every_hours=4)

    assert (result.micros_without, result.micros_with) == (5_583_333_333, 333_333_333)
    assert (round_for_display(result.micros_without), round_for_display(result.micros_with)) == (
        5500 * USD,
        300 * USD,
    )
    assert (result.hours_without, result.hours_with) == (67, 4)


def test_job_without_checkpoint_before_failure_loses_all() -> None:
    assert estimate_loss(2000 * USD, 67, None).hours_with == 67
    assert estimate_loss(2000 * USD, 1.5, 4).hours_with == 1.5


@pytest.mark.parametrize(("micros", "displayed"), [(0, 0), (1, 1), (7, 7), (10, 10), (99, 95), (100, 100), (7_400, 7_000)])  # fmt: skip
def test_displayed_sum_is_rounded_down(micros: int, displayed: int) -> None:
    assert round_for_display(micros) == displayed


def test_blocking_checkpoints_are_less_frequent() -> None:
    blocking, beside = cadence(45, 3 * 3600), cadence(3, 3 * 3600)

    assert blocking.best_s / 60 == pytest.approx(16.4, abs=0.05)
    assert beside.best_s / 60 == pytest.approx(4.2, abs=0.05)
    assert beside.waste < blocking.waste


def test_habitual_intervals_are_shortest_on_spot_nodes() -> None:
    assert HABITUAL_INTERVALS_S == {
        "research": (7200, 14400),
        "production": (1800, 3600),
        "spot": (900, 1800),
    }


def test_saving_every_hundred_short_steps_wastes_half_the_time() -> None:  # fmt: skip
    assert share_wasted(100 * 0.3, 30, 3 * 3600) > 0.5
    assert share_wasted(1800, 30, 3 * 3600) < 0.1
    assert share_wasted(1e9, 30, 3 * 3600) == 1


@pytest.mark.parametrize(
    ("text", "count", "fits"),
    [
        ("350M", 350_000_000, ("T4", "L4")),
        ("0.9b", 900_000_000, ("T4", "L4")),
        ("1B", 10**9, ("A100",)),
        ("7B", 7 * 10**9, ("A100",)),
        ("10B", 10**10, ("A100-80GB",)),
        ("69.9B", 69_900_000_000, ("A100-80GB",)),
        ("70B", 70 * 10**9, ("H100", "A100-80GB")),
        ("1T", 10**12, ("H100", "A100-80GB")),
        ("124000000", 124_000_000, ("T4", "L4")),
    ],
)
def test_model_size_determines_suitable_accelerators(
    text: str, count: int, fits: tuple[str, ...]
) -> None:
    assert parse_parameter_count(text) == count
    assert model_size(count).accelerators == fits


@pytest.mark.parametrize("text", ["", "big", "-1B", "0B", "7 BB", "1e9"])
def test_invalid_model_size_is_rejected(text: str) -> None:
    with pytest.raises(BadRequest, match="write one such as 350M or 7B"):
        parse_parameter_count(text)


def test_eight_small_gpus_compute_less_than_two_big_ones() -> None:
    assert 8 * PEAK_TFLOPS["T4"] < 2 * PEAK_TFLOPS["A100"]
    assert memory_bytes(7 * 10**9) == 112 * 10**9


@pytest.mark.parametrize(
    ("situation", "reasons"),
    [
        ({}, 0),
        ({"hours_left": 48.0}, 0),
        ({"hours_left": 3.0}, 1),
        ({"has_checkpoints": False}, 1),
        ({"is_critical": True}, 1),
        ({"hours_left": 3.0, "has_checkpoints": False, "is_critical": True}, 3),
    ],
)
def test_on_demand_is_advised_if_urgent_critical_or_unsaved(
    situation: dict[str, float], reasons: int
) -> None:
    usual = {"hours_left": None, "has_checkpoints": True, "is_critical": False}

    assert len(list(on_demand_reasons(**{**usual, **situation}))) == reasons  # type: ignore[arg-type]

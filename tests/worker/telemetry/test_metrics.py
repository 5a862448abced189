"""What a script logs, as points of a curve and beside a checkpoint."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from holdfast_worker.protocol.commit_summary import MetricValue
from holdfast_worker.protocol.reports import Json
from holdfast_worker.telemetry.metrics import MetricLogger
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.telemetry.spool import Spool, read_spool, spool_file


@pytest.fixture
def meter(tmp_path: Path) -> MetricLogger:
    return MetricLogger(Reporter(Spool(tmp_path, 1)))


def point_bodies(tmp_path: Path) -> list[Json]:
    """The bodies of the points."""
    return [dict(report.body) for report, _ in read_spool(spool_file(tmp_path, 1))]


def test_readings_know_after_which_step_each_value_was_logged(meter: MetricLogger) -> None:
    meter.log({"loss": 0.9, "val_loss": 0.7})
    meter.end_step(1)
    meter.log({"loss": torch.tensor([0.8])})
    meter.end_step(2)

    readings = meter.readings()()

    assert readings == {"loss": MetricValue(pytest.approx(0.8), 2), "val_loss": MetricValue(0.7, 1)}


def test_readings_are_of_their_moment_whatever_comes_later(meter: MetricLogger) -> None:
    total = torch.tensor(1.0)
    meter.log({"total": total})
    meter.end_step(1)

    readings = meter.readings()
    total += 5
    meter.log({"total": total})
    meter.end_step(2)

    assert readings() == {"total": MetricValue(1.0, 1)}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, torch.tensor(math.nan)])
def test_non_finite_value_is_recorded_as_none(meter: MetricLogger, value: float) -> None:
    meter.log({"loss": value})
    meter.end_step(1)

    assert meter.readings()() == {"loss": MetricValue(None, 1)}


def test_a_script_that_logs_nothing_has_empty_readings(meter: MetricLogger) -> None:
    meter.end_step(1)

    assert meter.readings()() == {}


def test_points_hold_the_latest_values(meter: MetricLogger, tmp_path: Path) -> None:
    meter.log({"loss": 0.9, "grad": math.nan})
    meter.end_step(1)
    meter.log({"loss": 0.8})
    meter.report(2)
    meter.report(2)

    assert point_bodies(tmp_path) == [
        {"step": 1, "values": {"loss": 0.9, "grad": None}},
        {"step": 2, "values": {"loss": 0.8, "grad": None}},
    ]


def test_many_values_are_not_one(meter: MetricLogger) -> None:
    with pytest.raises(ValueError, match="loss has 3 values; log one number"):
        meter.log({"loss": torch.zeros(3)})

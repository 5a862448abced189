"""Values that a script logs, as points of a series and with a checkpoint."""

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
def metric_logger(tmp_path: Path) -> MetricLogger:
    return MetricLogger(Reporter(Spool(tmp_path, 1)))


def point_bodies(tmp_path: Path) -> list[Json]:
    """Bodies of the reported points."""
    return [dict(report.body) for report, _ in read_spool(spool_file(tmp_path, 1))]


def test_readings_state_the_step_of_each_value(metric_logger: MetricLogger) -> None:
    metric_logger.log({"loss": 0.9, "val_loss": 0.7})
    metric_logger.end_step(1)
    metric_logger.log({"loss": torch.tensor([0.8])})
    metric_logger.end_step(2)

    readings = metric_logger.readings()()

    assert readings == {"loss": MetricValue(pytest.approx(0.8), 2), "val_loss": MetricValue(0.7, 1)}


def test_readings_are_unaffected_by_later_values(metric_logger: MetricLogger) -> None:
    total = torch.tensor(1.0)
    metric_logger.log({"total": total})
    metric_logger.end_step(1)

    readings = metric_logger.readings()
    total += 5
    metric_logger.log({"total": total})
    metric_logger.end_step(2)

    assert readings() == {"total": MetricValue(1.0, 1)}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, torch.tensor(math.nan)])
def test_non_finite_value_is_recorded_as_none(metric_logger: MetricLogger, value: float) -> None:
    metric_logger.log({"loss": value})
    metric_logger.end_step(1)

    assert metric_logger.readings()() == {"loss": MetricValue(None, 1)}


def test_a_script_that_logs_nothing_has_empty_readings(metric_logger: MetricLogger) -> None:
    metric_logger.end_step(1)

    assert metric_logger.readings()() == {}


def test_points_hold_the_latest_values(metric_logger: MetricLogger, tmp_path: Path) -> None:
    metric_logger.log({"loss": 0.9, "grad": math.nan})
    metric_logger.end_step(1)
    metric_logger.log({"loss": 0.8})
    metric_logger.report(2)
    metric_logger.report(2)

    assert point_bodies(tmp_path) == [
        {"step": 1, "values": {"loss": 0.9, "grad": None}},
        {"step": 2, "values": {"loss": 0.8, "grad": None}},
    ]


def test_value_with_several_elements_is_refused(metric_logger: MetricLogger) -> None:
    with pytest.raises(ValueError, match="loss has 3 values; log one number"):
        metric_logger.log({"loss": torch.zeros(3)})

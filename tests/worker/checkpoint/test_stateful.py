"""Tracked state has names independent of wrappers, and is refused early if unsupported."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from holdfast_worker.checkpoint.state_consistency import check_consistency
from holdfast_worker.checkpoint.state_dict import UnserializableState
from holdfast_worker.checkpoint.stateful import StateMismatch, TrackedState
from holdfast_worker.telemetry.metrics import MetricLogger
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.telemetry.spool import Spool, read_spool, spool_file
from torch import nn
from worker.support.stores import alone


def test_state_is_loaded_into_other_objects_of_the_same_type() -> None:
    def make() -> dict[str, object]:
        model = nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return {"model": model, "optimizer": optimizer}

    first, second = make(), make()
    TrackedState(second).load(TrackedState(first).state())

    model, same_model = first["model"], second["model"]
    assert isinstance(model, nn.Linear)
    assert isinstance(same_model, nn.Linear)
    assert model.weight.equal(same_model.weight)


def test_names_do_not_depend_on_wrappers() -> None:
    compiled = torch.compile(nn.Linear(2, 2), backend="eager")
    assert isinstance(compiled, nn.Module)

    assert list(TrackedState({"model": compiled}).state()["model"]) == ["weight", "bias"]


def test_object_without_a_state_is_refused() -> None:
    with pytest.raises(TypeError, match="loader cannot be tracked: it has no state_dict"):
        TrackedState({"loader": [1, 2]})


def test_unserializable_state_is_refused_before_training() -> None:
    class Warm:
        def __call__(self, step: int) -> float:
            return 1.0 / (step + 1)

    class Schedule:
        def state_dict(self) -> object:
            return {"rules": [Warm()]}

        def load_state_dict(self, state: object) -> None:
            """Ignore the state."""

    with pytest.raises(
        UnserializableState, match=r"scheduler\.rules\[0\] is a \S*test_stateful\..*Warm"
    ):
        check_consistency(TrackedState({"scheduler": Schedule()}), alone(0, 1))


def test_checkpoint_of_other_objects_is_refused() -> None:
    tracked = TrackedState({"model": nn.Linear(1, 1)})

    with pytest.raises(StateMismatch, match="holds ema, model, but the script tracks model"):
        tracked.load({"model": {}, "ema": {}})


def test_mismatched_state_is_refused_with_a_message() -> None:
    small, large = nn.Linear(1, 1), nn.Linear(2, 1)

    with pytest.raises(
        StateMismatch, match=r"model cannot load the saved state .*size mismatch for weight"
    ):
        TrackedState({"model": large}).load({"model": small.state_dict()})


def test_points_are_reported_periodically_and_at_the_end(tmp_path: Path) -> None:
    meter = MetricLogger(Reporter(Spool(tmp_path, 1)))

    for step in range(1, 101):
        meter.log({"loss": torch.tensor(1.0 / step), "speed": step})
        meter.end_step(step)
    meter.log({"loss": float("nan")})
    meter.report(101)
    meter.report(101)

    points = [report.body for report, _ in read_spool(spool_file(tmp_path, 1))]
    assert points[0] == {"step": 1, "values": {"loss": 1.0, "speed": 1.0}}
    assert points[-1] == {"step": 101, "values": {"loss": None, "speed": 100.0}}
    assert len(points) < 10


def test_only_single_numbers_are_logged() -> None:
    with pytest.raises(ValueError, match="loss has 2 values; log one number"):
        MetricLogger(Reporter(None)).log({"loss": torch.zeros(2)})

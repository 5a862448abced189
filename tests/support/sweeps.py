"""Sweeps whose jobs have logged a metric, without nodes or time."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from holdfast.store.database import writing
from holdfast.store.tables.jobs import metric_points, report_marks
from sqlalchemy import insert
from support.simulated_service import JOB_FILE, SimulatedService

STEPS = 40


def submit_sweep(world: SimulatedService, **fields: Any) -> dict[str, Any]:
    """Submit a sweep of the usual job."""
    answer = world.http.post("/v1/sweeps", json={"task": {"task": JOB_FILE}, **fields})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def loss_of(number: int, step: int) -> float:
    """A falling curve for each job; odd jobs are better."""
    floor = 0.2 + 0.05 * number + 0.8 * (number % 2 == 0)
    return floor + 3 * math.exp(-step / (8 + number))


def log_metric(
    world: SimulatedService,
    sweep: dict[str, Any],
    value: Callable[[int, int], float] = loss_of,
    steps: int = STEPS,
) -> None:
    """Record `loss` of all jobs of a sweep, as if each had trained once."""
    now = world.clock.now()
    points = [
        {
            "job_id": trial["job_id"],
            "attempt": 1,
            "n": step,
            "at": now + timedelta(seconds=step),
            "step": 10 * step,
            "values": {"loss": value(trial["number"], step), "accuracy": step / (2 * steps)},
        }
        for trial in sweep["trials"]
        for step in range(1, steps + 1)
    ]
    marks = [{"job_id": t["job_id"], "attempt": 1, "n": steps} for t in sweep["trials"]]
    with writing(world.services.engine) as connection:
        connection.execute(insert(metric_points), points)
        connection.execute(insert(report_marks), marks)

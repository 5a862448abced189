"""Metric series in the API and in the terminal: one series over all attempts of a job."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from holdfast.cli.app import app
from support.events import DAWN
from support.simulated_service import SimulatedService, served
from typer.testing import CliRunner

MIDNIGHT = DAWN.isoformat()


@pytest.fixture
def job_id(world: SimulatedService) -> str:
    """A job in training with thirty reported steps."""
    job: str = world.submit()["id"]
    world.until(job, "training")
    send_reports(world, job, 1, *(progress(step, loss=100 - step) for step in range(1, 31)))
    return job


def progress(step: int, **values: float | None) -> tuple[str, dict[str, Any]]:
    return "progress", {"step": step, "values": values}


def send_reports(
    world: SimulatedService, job: str, attempt: int, *sent: tuple[str, dict[str, Any]]
) -> None:
    """Send reports after those of the simulated worker of the attempt."""
    begun = world.services.journal.marks(job).get(attempt, 0)
    reports = [
        {"n": begun + i, "at": MIDNIGHT, "kind": kind, "body": body}
        for i, (kind, body) in enumerate(sent, 1)
    ]
    body = {"attempt": attempt, "reports": reports}
    answer = world.http.post(f"/v1/jobs/{job}/reports", json=body, headers=world.worker_token(job))
    assert answer.status_code == 200, answer.text
    assert answer.json()["next"] == begun + len(reports) + 1


def series(world: SimulatedService, job: str, **params: Any) -> dict[str, dict[str, Any]]:
    answer = world.http.get(f"/v1/jobs/{job}/series", params=params)
    assert answer.status_code == 200, answer.text
    return {item["name"]: item for item in answer.json()["series"]}


def test_series_are_listed_when_no_name_is_given(world: SimulatedService, job_id: str) -> None:
    send_reports(world, job_id, 1, progress(31, accuracy=0.5, loss=69))

    found = series(world, job_id)

    assert {"accuracy", "loss"} <= found.keys()
    assert found["accuracy"] == {"name": "accuracy", "points": 1, "last_step": 31, "buckets": None}


def test_series_continues_over_a_preemption(world: SimulatedService, job_id: str) -> None:
    again(world, job_id)

    [loss] = series(world, job_id, name="loss", points=5000).values()

    steps = [bucket["last_step"] for bucket in loss["buckets"] if not bucket["lost"]]
    gone = [bucket for bucket in loss["buckets"] if bucket["lost"]]
    assert steps == sorted(steps)
    assert {bucket["attempt"] for bucket in gone} == {1}
    assert min(bucket["first_step"] for bucket in gone) > resumed_from(world, job_id)
    assert {bucket["attempt"] for bucket in loss["buckets"]} == {1, 2}


def again(world: SimulatedService, job: str) -> None:
    """Preempt the job and let it train on new nodes."""
    world.take_node(job, notice_s=None)
    world.until(job, "recovering")
    world.until(job, "training")
    begun = resumed_from(world, job)
    send_reports(world, job, 2, *(progress(begun + i, loss=50.0) for i in range(1, 6)))


def resumed_from(world: SimulatedService, job: str) -> int:
    events = world.http.get(f"/v1/jobs/{job}/events").json()
    steps = [event["body"]["step"] for event in events if event["kind"] == "TrainingStarted"]
    step: int = steps[-1]
    return step


def test_several_series_are_returned_over_time(world: SimulatedService, job_id: str) -> None:
    send_reports(world, job_id, 1, progress(31, lr=0.1), progress(32, lr=None))

    found = series(world, job_id, name=["loss", "lr", "nothing"], points=1, x="time")

    assert found.keys() == {"loss", "lr"}
    [bucket] = found["lr"]["buckets"]
    assert (bucket["points"], bucket["not_finite"], bucket["mean"]) == (1, 1, 0.1)
    assert bucket["first_at"] == bucket["last_at"] == MIDNIGHT.replace("+00:00", "Z")


@pytest.mark.parametrize(
    ("params", "field"), [({"x": "epoch"}, "x"), ({"points": 0}, "points"), ({"name": "n" * 201}, "name")]
)  # fmt: skip
def test_invalid_series_query_names_its_field(
    world: SimulatedService, job_id: str, params: dict[str, Any], field: str
) -> None:
    answer = world.http.get(f"/v1/jobs/{job_id}/series", params=params)

    assert answer.status_code == 422
    assert field in answer.json()["errors"][0]["pointer"]


@pytest.fixture
def at_terminal(world: SimulatedService, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliRunner]:
    """A command line that is configured for the service."""
    with served(world) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        yield CliRunner()


def test_command_line_plots_series(
    world: SimulatedService, job_id: str, at_terminal: CliRunner
) -> None:
    send_reports(world, job_id, 1, *(progress(step, up=float(step)) for step in range(1, 9)))
    send_reports(world, job_id, 1, progress(9, up=None))

    table = at_terminal.invoke(app, ["metrics", job_id])
    one = at_terminal.invoke(app, ["metrics", job_id, "up", "--points", "9"])

    assert table.exit_code == one.exit_code == 0
    assert "loss" in table.stdout
    assert "up" in table.stdout
    lines = one.stdout.splitlines()
    assert lines[0] == "▁▂▃▄▅▆▇█·"
    assert lines[1] == "up: recent 8, from 1 to 8; 9 points of 1 attempt, up to step 9"
    assert lines[2] == "! 1 points are not finite"


def test_unknown_series_prints_the_available_ones(
    world: SimulatedService, job_id: str, at_terminal: CliRunner
) -> None:
    wrong = at_terminal.invoke(app, ["metrics", job_id, "lost"])

    assert wrong.exit_code == 0
    assert f"job {job_id} has no series lost; available: " in wrong.stderr
    assert "loss" in wrong.stderr


def test_job_without_metrics_prints_how_to_log(
    world: SimulatedService, at_terminal: CliRunner
) -> None:
    job = world.submit()["id"]

    output = at_terminal.invoke(app, ["metrics", job])

    assert "run.log(loss=...)" in output.stderr


def test_json_output_equals_the_api_answer(
    world: SimulatedService, job_id: str, at_terminal: CliRunner
) -> None:
    again(world, job_id)

    body = json.loads(at_terminal.invoke(app, ["metrics", job_id, "loss", "--json"]).stdout)

    [loss] = series(world, job_id, name="loss").values()
    assert body == [loss]

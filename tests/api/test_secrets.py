"""A submitted secret appears nowhere again: not in a response, a log or the database."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from holdfast.cli.app import app
from holdfast.errors import BadRequest
from holdfast.store.tables.base import metadata
from sqlalchemy import select
from support.simulated_service import SimulatedService, served
from typer.testing import CliRunner

LOCAL = "run: 'true'\nresources: {infra: local}\n"
FILE = f"{LOCAL}secrets: {{KEY: hush-file, TOKEN: }}\n"
GIVEN_SECRETS = {"TOKEN": "hush-given"}


def everything(world: SimulatedService) -> str:
    """Every row of every table, as text."""
    with world.services.engine.connect() as connection:
        return str([connection.execute(select(t)).all() for t in metadata.tables.values()])


def test_secret_values_are_sealed_and_names_shown(
    world: SimulatedService, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    body = {"task": FILE, "secrets": GIVEN_SECRETS}
    key = {"Idempotency-Key": "one"}

    answer = world.http.post("/v1/jobs", json=body, headers=key)
    again = world.http.post("/v1/jobs", json=body, headers=key)

    job_id = answer.json()["id"]
    events = world.http.get(f"/v1/jobs/{job_id}/events")
    assert world.services.secrets.open(job_id) == {"KEY": "hush-file", "TOKEN": "hush-given"}
    assert again.json()["id"] == job_id
    assert events.json()[0]["body"]["spec"]["secrets"] == ["KEY", "TOKEN"]
    assert "KEY: <hidden>" in events.json()[0]["body"]["task"]
    for each in (answer.text, again.text, events.text, everything(world), caplog.text):
        assert "hush" not in each


def test_changed_secret_is_a_different_request(world: SimulatedService) -> None:
    key = {"Idempotency-Key": "one"}
    first = world.http.post("/v1/jobs", json={"task": FILE, "secrets": GIVEN_SECRETS}, headers=key)

    other = {"task": FILE, "secrets": {"TOKEN": "hush-other"}}
    second = world.http.post("/v1/jobs", json=other, headers=key)

    assert (first.status_code, second.status_code) == (201, 422)
    assert "hush" not in second.text


def test_rendering_shows_secret_names_only(world: SimulatedService) -> None:
    answer = world.http.post("/v1/render", json={"task": FILE, "secrets": GIVEN_SECRETS})

    assert "TOKEN: <hidden>" in answer.json()["task"]
    assert "hush" not in answer.text


@pytest.mark.parametrize(
    "body",
    [
        {"task": FILE},
        {"task": f"{LOCAL}secrets: {{KEY: [hush]}}"},
        {"task": f'{LOCAL}secrets: {{KEY: "hush\\0"}}'},
        {"task": f"{LOCAL}secrets: {{KEY: hush}}\nenvs: {{KEY: 1}}"},
        {"task": f"{LOCAL}secrets: {{KEY: hush", "secrets": GIVEN_SECRETS},
        {"task": LOCAL, "secrets": {"KEY": ["hush"]}},
        {"task": LOCAL, "secrets": ["hush"]},
        {"task": LOCAL, "secrets": {"not a name": "hush"}},
        {"task": LOCAL, "secrets": {"KEY": "hush\0"}},
    ],
)
def test_refusal_does_not_contain_the_secret(
    world: SimulatedService, body: dict[str, object]
) -> None:
    answer = world.http.post("/v1/jobs", json=body)

    assert answer.status_code == 422
    assert "hush" not in answer.text
    assert "hush" not in everything(world)


def test_missing_secret_is_reported_with_its_option(world: SimulatedService) -> None:
    answer = world.http.post("/v1/jobs", json={"task": FILE})

    (error,) = answer.json()["errors"]
    assert error["pointer"] == "#/secrets/TOKEN"
    assert "--secret TOKEN" in error["message"]


def test_a_deadline_that_is_over_is_refused(world: SimulatedService) -> None:
    file = f"{LOCAL}holdfast: {{limits: {{deadline: 2001-01-01T00:00:00Z}}}}"

    answer = world.http.post("/v1/jobs", json={"task": file})

    (error,) = answer.json()["errors"]
    assert error["pointer"] == "#/holdfast/limits/deadline"
    assert error["message"] == "2001-01-01 00:00:00Z is in the past; write a future time"


def test_command_line_reads_a_secret_from_the_environment(
    world: SimulatedService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"{LOCAL}secrets: {{TOKEN: , KEY: }}\n")
    monkeypatch.setenv("TOKEN", "hush-own")

    with served(world) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        monkeypatch.setenv("HOLDFAST_HOME", str(tmp_path))
        command = ["submit", str(file), "--secret", "TOKEN", "--secret", "KEY=a=b"]
        done = CliRunner().invoke(app, command)
        missing = CliRunner().invoke(app, ["submit", str(file), "--secret", "NOBODY"])

    (job,) = world.http.get("/v1/jobs").json()["jobs"]
    assert world.services.secrets.open(job["id"]) == {"TOKEN": "hush-own", "KEY": "a=b"}
    assert "hush" not in done.output
    assert isinstance(missing.exception, BadRequest)
    assert missing.exception.detail == (
        "--secret NOBODY: the environment variable NOBODY is not set; export it first"
    )

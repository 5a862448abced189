"""Commands take a job by its name or id, and the shell completes both."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from holdfast.cli.app import app
from holdfast.errors import BadRequest, NotFound
from support.simulated_service import SimulatedService, served
from typer.testing import CliRunner


@pytest.fixture
def at_terminal(world: SimulatedService, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliRunner]:
    with served(world) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        yield CliRunner()


def shown(at_terminal: CliRunner, job: str) -> str:
    """The id of the job that `holdfast show` finds."""
    done = at_terminal.invoke(app, ["show", job, "--json"])
    if done.exception:
        raise done.exception
    return str(json.loads(done.stdout)["id"])


PATIENT_COMPLETION = """
import sys
from holdfast.cli import main
from holdfast.cli.usage import job_argument
job_argument.COMPLETION_TIMEOUT_S = 60
sys.argv[0] = "holdfast"
main()
"""
"""The command, for a service that shares the processor with other tests."""


def completions(words: str) -> set[str]:
    env = {"_HOLDFAST_COMPLETE": "complete_bash", "COMP_WORDS": words}
    env["COMP_CWORD"] = str(len(words.split(" ")) - 1)
    done = subprocess.run(
        [sys.executable, "-c", PATIENT_COMPLETION],
        env={**os.environ, **env}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert not done.stderr
    return set(done.stdout.split())


def test_name_is_the_live_job_before_a_newer_ended_one(
    world: SimulatedService, at_terminal: CliRunner
) -> None:
    live = world.submit(name="bert")["id"]
    ended = world.submit(name="bert")["id"]
    world.http.post(f"/v1/jobs/{ended}/cancel")
    world.until(ended, "cancelled")
    world.submit(name="bert-large")

    assert shown(at_terminal, "bert") == live
    assert shown(at_terminal, ended) == ended


def test_name_of_ended_jobs_is_the_newest(world: SimulatedService, at_terminal: CliRunner) -> None:
    ids = [world.submit(name="bert")["id"] for _ in range(2)]
    for job in ids:
        world.http.post(f"/v1/jobs/{job}/cancel")
        world.until(job, "cancelled")

    newest = json.loads(at_terminal.invoke(app, ["ps", "--json"]).stdout)[0]["id"]
    assert shown(at_terminal, "bert") == newest


def test_name_of_several_live_jobs_is_refused(
    world: SimulatedService, at_terminal: CliRunner
) -> None:
    ids = [world.submit(name="bert")["id"] for _ in range(2)]

    with pytest.raises(BadRequest, match="2 live jobs are named bert; use an id") as error:
        shown(at_terminal, "bert")
    assert all(job in str(error.value) for job in ids)
    assert error.value.exit_code == 2


def test_unknown_name_suggests_how_to_list_jobs(at_terminal: CliRunner) -> None:
    with pytest.raises(NotFound, match="no job named bert; holdfast ps lists jobs") as error:
        shown(at_terminal, "bert")
    assert error.value.exit_code == 4


def test_names_work_in_lists_pairs_and_options(
    world: SimulatedService, at_terminal: CliRunner
) -> None:
    one, two = world.submit(name="one")["id"], world.submit(name="two")["id"]
    compared = at_terminal.invoke(app, ["diff", "one", "two"])
    messages = at_terminal.invoke(app, ["channels", "deliveries", "--job", "one"])
    for job in (one, two):
        world.http.post(f"/v1/jobs/{job}/cancel")
        world.until(job, "cancelled")
    removed = at_terminal.invoke(app, ["rm", "one", "two", "--yes", "--json"])

    assert f"job {one} has no manifest" in str(compared.exception)
    assert f"no messages for job {one}" in messages.stderr
    assert [item["job_id"] for item in json.loads(removed.stdout)] == [one, two]


def test_shell_completes_ids_and_names(world: SimulatedService, at_terminal: CliRunner) -> None:
    job = world.submit(name="bert")["id"]
    world.submit(name="albert")

    assert completions("holdfast logs be") == {"bert"}
    assert completions(f"holdfast cancel {job[:6]}") >= {job}
    assert {"bert", "albert", job} <= completions("holdfast show ")


def test_completion_is_silent_without_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_URL", "http://127.0.0.1:1")

    assert completions("holdfast logs be") == set()

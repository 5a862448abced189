"""`holdfast submit` against a real service."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from holdfast.cli.app import app
from holdfast.client import Refused
from holdfast.domain.events import Submitted
from support.simulated_service import SimulatedService, served
from typer.testing import CliRunner


@pytest.fixture
def at_terminal(
    world: SimulatedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[CliRunner]:
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text("run: x\nresources: {infra: local}\nholdfast: {limits: {max_cost_usd: 5}}\n")  # fmt: skip
    with served(world) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        yield CliRunner()


def test_submit_prints_the_line_and_sets_limits(at_terminal: CliRunner) -> None:
    done = at_terminal.invoke(app, ["submit", "job.yaml", "--max-cost", "50", "--deadline", "48h"])
    as_json = at_terminal.invoke(app, ["submit", "job.yaml", "--max-cost", "none", "--json"])
    wrong = at_terminal.invoke(app, ["submit", "job.yaml", "--deadline", "soon"])
    job = done.stdout.split()[2]
    limits = json.loads(at_terminal.invoke(app, ["limits", job, "--json"]).stdout)

    assert done.stderr.startswith("local, 1 node, nothing is billed; maximum $50.00\n")
    assert done.stdout.startswith("Submitted job ")
    assert as_json.stderr == ""
    assert json.loads(as_json.stdout)["limits"]["max_cost_usd"] is None
    assert (limits["max_cost_usd"], limits["deadline"]) == ("50", "48h")
    assert "#/holdfast/limits/deadline" in str(wrong.exception)


def test_submit_keeps_nodes_after_a_failure(
    world: SimulatedService, at_terminal: CliRunner
) -> None:
    done = at_terminal.invoke(app, ["submit", "job.yaml", "--keep-failed", "90m", "--json"])
    wrong = at_terminal.invoke(app, ["submit", "job.yaml", "--keep-failed", "soon"])

    [submission, *_] = world.services.journal.events(json.loads(done.stdout)["id"])
    assert isinstance(submission.event, Submitted)
    assert yaml.safe_load(submission.event.task)["envs"]["HOLDFAST_KEEP_FAILED"] == "5400"
    assert "#/holdfast/keep_failed" in str(wrong.exception)


def test_missing_workdir_of_a_local_job_is_refused(at_terminal: CliRunner) -> None:
    Path("gone.yaml").write_text("run: x\nworkdir: ./gone\nresources: {infra: local}\n")

    done = at_terminal.invoke(app, ["submit", "gone.yaml", "--no-upload"])

    assert isinstance(done.exception, Refused)
    [flaw] = done.exception.problem.errors
    assert flaw.pointer == "#/workdir"
    assert "/gone is not a directory on the service's machine" in flaw.message


def test_commands_report_that_a_job_has_ended(
    world: SimulatedService, at_terminal: CliRunner
) -> None:
    job = world.submit()["id"]
    world.until(job, "succeeded")

    cancelled = at_terminal.invoke(app, ["cancel", job])
    preempted = at_terminal.invoke(app, ["preempt", job])
    log = at_terminal.invoke(app, ["logs", job, "--attempt", "99"])

    assert cancelled.exit_code == 0
    assert cancelled.stdout == f"job {job} has already succeeded; nothing to cancel\n"
    assert str(preempted.exception) == f"job {job} cannot be preempted: it has ended"
    assert str(log.exception).startswith(f"job {job} has no ")
    assert at_terminal.invoke(app, ["ps", "--find", "zzz"]).stderr == "no jobs match these options\n"  # fmt: skip


def test_list_has_ended_jobs_with_the_usual_options(
    world: SimulatedService, at_terminal: CliRunner
) -> None:
    older = world.submit()["id"]
    world.clock.advance(1)
    newer = world.submit()["id"]
    world.until(newer, "succeeded")

    both = at_terminal.invoke(app, ["ps", "-a", "-n", "2"]).stdout
    newest = at_terminal.invoke(app, ["ps", "-n", "1"]).stdout

    assert [older in both, newer in both] == [True, True]
    assert [older in newest, newer in newest] == [False, True]

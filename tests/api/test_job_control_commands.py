"""The commands that pause, resume, limit and copy jobs, against a real service."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest
from holdfast.cli.app import app
from support.simulated_service import SimulatedService, served
from typer.testing import CliRunner


@pytest.fixture
def at_terminal(world: SimulatedService, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliRunner]:
    """A command line that is configured for the service."""
    with served(world) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        yield CliRunner()


def test_a_job_is_paused_limited_resumed_and_copied(
    world: SimulatedService, at_terminal: CliRunner
) -> None:
    job_id = world.submit()["id"]

    paused = at_terminal.invoke(app, ["pause", job_id, "--reason", "a weekend"])
    world.until(job_id, "paused")
    limits = at_terminal.invoke(app, ["limits", job_id, "--max-cost", "9", "--max-failures", "5"])
    away = at_terminal.invoke(app, ["limits", job_id, "--max-cost", "none", "--json"])
    resumed = at_terminal.invoke(app, ["resume", job_id, "--max-wait", "2h", "--json"])
    copied = at_terminal.invoke(app, ["clone", job_id, "--name", "again"])
    dearer = at_terminal.invoke(app, ["clone", job_id, "--max-cost", "20", "--json"])

    assert paused.stdout == f"job {job_id} is pausing: a weekend\n"
    assert "max_cost_usd         9" in limits.stdout
    assert json.loads(away.stdout)["max_cost_usd"] is None
    assert json.loads(resumed.stdout)["limits"]["max_wait"] == "2h"
    assert copied.stdout.endswith('"again"\n')
    limits_of_copy = json.loads(dearer.stdout)["limits"]
    assert (limits_of_copy["max_cost_usd"], limits_of_copy["max_failures"]) == ("20", 5)


@pytest.mark.parametrize("option", [["--max-failures", "many"], ["--max-cost", "much"]])
def test_invalid_limit_is_one_sentence(
    world: SimulatedService, at_terminal: CliRunner, option: list[str]
) -> None:
    job_id = world.submit()["id"]

    done = at_terminal.invoke(app, ["limits", job_id, *option])

    assert done.exit_code != 0
    assert option[1] in str(done.exception)


def test_budgets_are_set_listed_and_removed(at_terminal: CliRunner) -> None:
    none = at_terminal.invoke(app, ["budgets", "list"])
    put = at_terminal.invoke(app, ["budgets", "set", "user", "ada", "--monthly", "200", "--warn-at", "75"])  # fmt: skip
    listed = at_terminal.invoke(app, ["budgets", "list", "--json"])
    gone = at_terminal.invoke(app, ["budgets", "rm", "user", "ada"])

    assert none.exit_code == put.exit_code == gone.exit_code == 0
    assert "user ada" in put.stdout
    assert "~" not in put.stdout
    assert json.loads(listed.stdout)[0]["warn_at"] == [75]


def test_simulated_spending_of_a_budget_is_marked(
    world: SimulatedService, at_terminal: CliRunner
) -> None:
    at_terminal.invoke(app, ["budgets", "set", "project", "default", "--monthly", "200"])
    world.until(world.submit()["id"], "succeeded")

    listed = at_terminal.invoke(app, ["budgets", "list"])

    assert re.search(r"project default .* ~\$0\.\d{4} .*\$200\.00", listed.stdout)
    assert "~ some prices are simulated: local processes, nothing is billed" in listed.stderr


def test_list_and_show_name_a_preemption_under_way(
    world: SimulatedService, at_terminal: CliRunner
) -> None:
    job_id = world.submit()["id"]
    world.until(job_id, "training")
    world.take_node(job_id, notice_s=30, then_s=1)

    listed = at_terminal.invoke(app, ["ps"])
    shown = at_terminal.invoke(app, ["show", job_id])

    assert "training, termination notice: saving" in listed.stdout
    assert re.search(r"notice +termination notice at .* at step \d+: saving", shown.stdout)


def test_resume_on_other_nodes_is_previewed_and_done(
    world: SimulatedService, at_terminal: CliRunner
) -> None:
    job_id = world.submit()["id"]
    at_terminal.invoke(app, ["pause", job_id])
    world.until(job_id, "paused")
    nodes = ["resume", job_id, "--nodes", "1-3", "--force"]

    shown = at_terminal.invoke(app, [*nodes, "--dry-run"])
    before = world.job(job_id)
    done = at_terminal.invoke(app, [*nodes, "--json"])

    words = " ".join(shown.stdout.split())
    assert "nodes 2 1-3" in words
    assert "price per hour not rented not rented" in words
    assert "The job has no checkpoint yet and starts at step 0." in words
    assert before["state"] == "paused"
    assert (json.loads(done.stdout)["nodes"], json.loads(done.stdout)["min_nodes"]) == (3, 1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--nodes", "many"], "--nodes: 'many' is not a number of nodes; write 4, or a range"),
        (["--force"], "--force: name the new nodes with --nodes, --gpus, --infra or --spot"),
    ],
)
def test_malformed_nodes_are_one_sentence(
    world: SimulatedService, at_terminal: CliRunner, options: list[str], words: str
) -> None:
    done = at_terminal.invoke(app, ["resume", world.submit()["id"], *options])

    assert done.exit_code != 0
    assert words in str(done.exception)

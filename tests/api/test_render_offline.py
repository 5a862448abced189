"""`holdfast render` without a service: the same rendering, with notes on unchecked facts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from holdfast.cli.app import app
from holdfast.errors import BadJobFile, BadRequest
from support.live_service import free_port
from support.simulated_service import SimulatedService, served
from typer.testing import CliRunner

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

LOCAL = "name: tiny\nresources: {infra: local}\nrun: holdfast-worker run train.py\n"
SLURM = "resources: {infra: slurm, accelerators: A100:2}\nnum_nodes: 2\nrun: holdfast-worker run t.py\nsecrets: {K: null}\n"
CLOUD = (
    "workdir: .\nresources: {infra: aws, accelerators: A100:8, use_spot: true}\nrun: train\n"
    "envs: {LR: 1e-4}\nholdfast: {checkpoint: {store: 's3://bucket/prefix', every: 500 steps}}\n"
)
RISKY = "resources: {infra: gcp, accelerators: A100:8, use_spot: true}\nrun: train\n"
OVER = f"{LOCAL}holdfast: {{limits: {{deadline: 2020-01-01T00:00:00Z}}}}\n"
GIT = "workdir: {url: 'https://example.com/a.git'}\nresources: {infra: local}\nrun: train\n"
NOT_YAML = "run: ["
WRONG = [
    NOT_YAML,
    "nmae: x\nrun: train\n",
    "run: train\nresources: {accelerators: -1}\n",
    GIT,
    "[]",
]


@pytest.fixture
def render_offline(world: SimulatedService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Run `holdfast render` with a job file and an unreachable service."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("K", "secret")
    monkeypatch.setenv("HOLDFAST_URL", f"http://127.0.0.1:{free_port()}")

    def run(task: str, *words: str) -> Any:
        (tmp_path / "job.yaml").write_text(task)
        return CliRunner().invoke(app, ["render", "job.yaml", *words])

    return run


@pytest.mark.parametrize(
    ("task", "words"),
    [
        (LOCAL, []),
        (LOCAL, ["--launcher", "torchrun", "--nnodes", "2:3", "--nproc-per-node", "4"]),
        (LOCAL, ["--launcher", "slurm"]),
        (SLURM, ["--secret", "K", "--name", "other"]),
        (CLOUD, ["--env", "LR=2"]),
        (RISKY, []),
        (OVER, []),
    ],
)
def test_offline_rendering_equals_that_of_the_service(
    world: SimulatedService,
    render_offline: Any,
    monkeypatch: pytest.MonkeyPatch,
    task: str,
    words: list[str],
) -> None:
    alone = render_offline(task, *words, "--json")
    with served(world) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        answered = render_offline(task, *words, "--json")
        forced = render_offline(task, *words, "--json", "--local")

    assert alone.exit_code == answered.exit_code == 0, alone.stderr
    here, there = json.loads(alone.stdout), json.loads(answered.stdout)
    lacks = [why for why in there["refused"] if "which this service does not have" in why]
    assert here == {**there, "refused": [why for why in there["refused"] if why not in lacks]}
    assert forced.stdout == alone.stdout
    assert "rendered on this machine, as no service responds" in alone.stderr
    assert f"a service with the launcher {here['engine']}" in alone.stderr
    assert "rendered on this machine, as requested by --local" in forced.stderr
    assert "rendered on this machine" not in answered.stderr
    assert bool(here["refused"]) == (task in {RISKY, OVER})


@pytest.mark.parametrize("task", WRONG)
def test_offline_errors_equal_those_of_the_service(
    world: SimulatedService, render_offline: Any, task: str
) -> None:
    problem = world.http.post("/v1/render", json={"task": task}).json()

    alone = render_offline(task)

    assert isinstance(alone.exception, BadJobFile)
    flaws = [{"pointer": flaw.pointer, "message": flaw.message} for flaw in alone.exception.issues]
    if task == NOT_YAML:  # The client names the file and shows the line.
        message = problem["errors"][0]["message"].removeprefix("the job file ")
        assert flaws == [{"pointer": "job.yaml", "message": f"{message}\n      1 | {NOT_YAML}"}]
    else:
        assert flaws == problem["errors"]
    assert (alone.exception.title(), alone.exception.exit_code) == (problem["title"], 2)
    assert alone.stdout == ""


def test_non_utf8_variables_and_folders_are_refused_by_name(
    render_offline: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / os.fsdecode(b"runs-\xff")
    folder.mkdir()
    (folder / "job.yaml").write_text(LOCAL)

    variable = render_offline(LOCAL, "--env", os.fsdecode(b"A=\xff"))
    monkeypatch.chdir(folder)
    here = render_offline(LOCAL)

    for result, place in ((variable, "env.A"), (here, "base_dir")):
        assert isinstance(result.exception, BadRequest)
        assert result.exception.detail == f"{place}: is not UTF-8; write or rename it in UTF-8"


def test_offline_torchrun_errors_equal_those_of_the_service(
    world: SimulatedService, render_offline: Any
) -> None:
    words = ["--launcher", "torchrun", "--nnodes", "3:2"]
    body = {"task": LOCAL, "by_hand": {"least_nodes": 3, "nodes": 2}}
    problem = world.http.post("/v1/render", json=body).json()

    alone = render_offline(LOCAL, *words)

    assert isinstance(alone.exception, BadRequest)
    assert alone.exception.detail == problem["detail"]


def test_refused_token_is_not_treated_as_offline(
    world: SimulatedService, render_offline: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(world) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        monkeypatch.setenv("HOLDFAST_TOKEN", "hf_wrong")
        refused = render_offline(LOCAL)

    assert refused.exception.exit_code == 5
    assert refused.stdout == ""


def test_offline_rendering_does_not_check_the_parent_job(render_offline: Any) -> None:
    task = f"{LOCAL}holdfast: {{checkpoint: {{store: 's3://b/p', from: jx1}}}}\n"

    alone = render_offline(task, "--json")

    assert (
        "job jx1, whose checkpoints it uses, was not checked" in json.loads(alone.stdout)["notes"]
    )

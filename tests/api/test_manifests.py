"""Manifests of runs: reported by workers, part of the bundle, and compared."""

from __future__ import annotations

import io
import json
import re
import zipfile

import pytest
from holdfast.cli.app import app
from holdfast_worker.protocol.reports import Json, Report, ReportKind
from support.principals import create_principals
from support.simulated_service import SimulatedService, served
from support.snapshots import created_once
from typer.testing import CliRunner


def describe(world: SimulatedService, job_id: str, attempt: int, **manifest: Json) -> None:
    """The worker of an attempt reports its manifest, possibly late."""
    n = 1 + world.services.journal.marks(job_id).get(attempt, 0)
    at = world.services.clock.now().isoformat()
    report = Report(attempt, n, at, ReportKind.RUN_DESCRIBED, {"manifest": manifest})
    world.services.journal.ingest(job_id, attempt, [report])


@pytest.fixture
def ended(world: SimulatedService) -> str:
    """A job that has ended after one preemption."""
    return created_once(world, end_job)


def end_job(world: SimulatedService) -> str:
    job_id: str = world.submit()["id"]
    world.until(job_id, "training")
    world.take_node(job_id, notice_s=30)
    world.until(job_id, "succeeded")
    return job_id


def test_manifest_records_each_attempt_and_its_packages(
    world: SimulatedService, ended: str
) -> None:
    path = f"/v1/jobs/{ended}/manifest"
    none = world.http.get(path)
    describe(world, ended, 1, world_size=8, lock=["torch==2.12.0"])
    describe(world, ended, 2, world_size=8, lock=["numpy==2.4.0", "torch==2.13.0"])

    archive = zipfile.ZipFile(io.BytesIO(world.http.get(f"/v1/jobs/{ended}/bundle").content))
    found = {name.partition("/")[2]: archive.read(name).decode() for name in archive.namelist()}
    newest, first = (world.http.get(path, params=p).json() for p in ({}, {"attempt": 1}))

    assert (none.status_code, "no manifest" in none.json()["detail"]) == (404, True)
    assert json.loads(found["run_manifest.json"]) == newest
    assert json.loads(found["manifests/attempt-001.json"]) == first
    assert found["requirements.lock.txt"] == "numpy==2.4.0\ntorch==2.13.0\n"
    assert first["lock"] == ["torch==2.12.0"]
    known = newest["holdfast"]
    assert (known["job"], known["attempt"], known["num_nodes"]) == (ended, 2, 2)
    assert known["zone"] == world.job(ended)["zone"]
    assert world.http.get(path, params={"attempt": 9}).status_code == 404


def test_commit_unknown_to_nodes_comes_from_the_submitter(
    world: SimulatedService,
) -> None:
    seen = {"commit": "a1b9f4c7e2", "is_dirty": True, "folder": "examples/tiny"}
    job_id = world.submit(checkout=seen)["id"]
    world.until(job_id, "succeeded")
    path = f"/v1/jobs/{job_id}/manifest"

    describe(world, job_id, 1, git_commit=None, git_dirty=None)
    copied = world.http.get(path).json()
    describe(world, job_id, 1, git_commit="ffff", git_dirty=False)
    with_git = world.http.get(path).json()

    assert (copied["git_commit"], copied["git_dirty"]) == ("a1b9f4c7e2", True)
    assert copied["holdfast"]["folder"] == "examples/tiny"
    assert copied["holdfast"]["job_file"]["run"] == "holdfast-worker run train.py"
    assert (with_git["git_commit"], with_git["git_dirty"]) == ("ffff", False), (
        "values reported by nodes take precedence"
    )


def test_a_manifest_is_shown_at_the_command_line(
    world: SimulatedService, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    describe(world, ended, 1, world_size=8, config={"lr": 0.1}, lock=["torch==2.13.0"])
    with served(world) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        shown = CliRunner().invoke(app, ["manifest", ended])
        lock = CliRunner().invoke(app, ["manifest", ended, "--lock"])
        whole = CliRunner().invoke(app, ["manifest", ended, "--json"])

    assert "world_size       8\n" in shown.stdout
    assert "packages         1; --lock lists them" in shown.stdout
    assert lock.stdout == "torch==2.13.0\n"
    assert json.loads(whole.stdout)["config"] == {"lr": 0.1}


def test_diff_compares_two_jobs(
    world: SimulatedService, ended: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = world.submit()["id"]
    world.until(other, "succeeded")
    describe(world, ended, 1, nccl_transport="IB", lock=["torch==2.12.0"])
    describe(world, other, 1, nccl_transport="Socket", lock=["torch==2.12.0"])

    body = world.http.get(f"/v1/jobs/{ended}/diff", params={"other": other}).json()
    with served(world) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        shown = CliRunner().invoke(app, ["diff", ended, other])
        same = CliRunner().invoke(app, ["diff", ended, ended])

    assert (body["before"], body["after"]) == (ended, other)
    transport = {"kind": "transport", "key": "nccl_transport", "before": "IB", "after": "Socket"}
    assert body["differences"][0] == transport
    assert body["steps_per_hour_before"] > 0
    assert re.search(rf"{other} is \d+% (slower|quicker): .* steps an hour", shown.stdout)
    assert re.search(r"transport +nccl_transport +IB +Socket", shown.stdout)
    assert "no differences" in same.stderr
    gone = world.http.get(f"/v1/jobs/{ended}/diff", params={"other": "nobody"})
    assert (gone.status_code, "no job nobody" in gone.json()["detail"]) == (404, True)


def test_diff_does_not_reveal_jobs_of_others(world: SimulatedService) -> None:
    principals = create_principals(world)
    for job_id in (principals.own, principals.foreign):
        describe(world, job_id, 1, config={"secret_plan": 7})

    response = {
        name: principals.person(name).get(
            f"/v1/jobs/{principals.own}/diff", params={"other": principals.foreign}
        )
        for name in ("boss", "viewer")
    }

    assert {name: answer.status_code for name, answer in response.items()} == {
        "boss": 200,
        "viewer": 404,
    }
    assert response["viewer"].json()["detail"] == f"there is no job {principals.foreign}"

"""Jobs with a range of nodes: their number is kept everywhere, and fewer nodes make them degraded."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from holdfast.cli.app import app
from holdfast.domain.events import Event
from support.events import SPOT, at, node_lost, node_replaced, replaced
from support.simulated_service import JOB_FILE, SimulatedService, served
from typer.testing import CliRunner

RANGE = {"min": 2, "max": 3}
ELASTIC: str = yaml.safe_dump({**yaml.safe_load(JOB_FILE), "num_nodes": RANGE})


@pytest.fixture
def url(world: SimulatedService, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of the simulated service, set for the command line."""
    with served(world) as address:
        monkeypatch.setenv("HOLDFAST_URL", address)
        yield address


@pytest.fixture
def job_id(world: SimulatedService) -> str:
    """An elastic job in training."""
    job_id: str = world.submit(ELASTIC)["id"]
    world.until(job_id, "training")
    return job_id


def append(world: SimulatedService, job_id: str, *events: Event) -> dict[str, Any]:
    journal = world.services.journal
    journal.append(journal.read(job_id), list(events))
    return world.job(job_id)


def lose_node(world: SimulatedService, job_id: str) -> dict[str, Any]:
    """Lose node 1, whose ranks continue on another node after 4 seconds."""
    now = (world.clock.now() - at(0)).total_seconds()
    gone = node_lost(now, nodes=2, micros=2 * SPOT)
    return append(world, job_id, gone, replaced(now + 4, step=9, paused_ms=4000, hosted=(1,)))


def job_file_of(world: SimulatedService, job_id: str) -> dict[str, Any]:
    """The job file in the bundle of a job."""
    content = world.http.get(f"/v1/jobs/{job_id}/bundle").content
    with zipfile.ZipFile(io.BytesIO(content)) as bundle:
        written = bundle.read(f"holdfast-{job_id}/job-file.yaml").decode()
    parsed: dict[str, Any] = yaml.safe_load(written)
    return parsed


@pytest.mark.usefixtures("url")
def test_range_of_nodes_is_kept_in_job_and_copies(world: SimulatedService, job_id: str) -> None:
    shown = world.job(job_id)
    world.http.post(f"/v1/jobs/{job_id}/cancel", json={})
    world.until(job_id, "cancelled")
    copy = world.http.post(f"/v1/jobs/{job_id}/clone", json={}).json()
    fixed = world.submit()
    printed = CliRunner().invoke(app, ["show", job_id]).output

    assert (shown["min_nodes"], shown["nodes"]) == (2, 3)
    assert (copy["min_nodes"], copy["nodes"], fixed["min_nodes"]) == (2, 3, None)
    assert job_file_of(world, job_id)["num_nodes"] == RANGE
    assert job_file_of(world, copy["id"])["num_nodes"] == RANGE
    assert "nodes       2-3" in printed


def test_preview_shows_the_launched_number_of_nodes(world: SimulatedService) -> None:
    shown = world.http.post("/v1/render", json={"task": ELASTIC}).json()
    task = yaml.safe_load(shown["task"])

    assert (task["num_nodes"], task["envs"]["HOLDFAST_MIN_NODES"]) == (3, "2")


def test_refused_range_of_nodes_names_its_field(world: SimulatedService) -> None:
    job = yaml.safe_load(ELASTIC)
    wrong = yaml.safe_dump({**job, "holdfast": {**job.get("holdfast", {}), "recovery": "restart"}})

    answer = world.http.post("/v1/jobs", json={"task": wrong})

    assert answer.status_code == 422
    assert [flaw["pointer"] for flaw in answer.json()["errors"]] == ["#/num_nodes"]


def test_job_on_fewer_nodes_is_degraded_until_its_ranks_move(
    world: SimulatedService, job_id: str
) -> None:
    degraded = lose_node(world, job_id)
    listed = world.http.get("/v1/jobs", params={"status": "degraded"}).json()["jobs"]
    measured = world.http.get("/metrics").text
    world.pass_time(60)
    now = (world.clock.now() - at(0)).total_seconds()
    back = append(world, job_id, node_replaced(now, nodes=3, micros=3 * SPOT))
    moved = append(world, job_id, replaced(now + 2, step=40, paused_ms=1000))

    assert (degraded["state"], degraded["preemptions"]) == ("degraded", 1)
    text = "training on 2 of 3 nodes: the ranks of node 1 run on another node"
    assert degraded["detail"] == text
    assert all(degraded["can"][name]["allowed"] for name in ("pause", "cancel", "preempt"))
    assert [job["id"] for job in listed] == [job_id]
    assert 'holdfast_jobs{state="degraded"} 1.0' in measured
    assert (back["state"], moved["state"], moved["detail"]) == ("degraded", "training", "")


@pytest.mark.usefixtures("url")
def test_degraded_time_is_in_bill_and_timeline(world: SimulatedService, job_id: str) -> None:
    lose_node(world, job_id)
    world.pass_time(30)

    [item] = world.http.get(f"/v1/jobs/{job_id}/bill").json()["attempts"]
    story = [line["text"] for line in world.http.get(f"/v1/jobs/{job_id}/story").json()]
    bill = CliRunner().invoke(app, ["bill", job_id]).output
    jobs = CliRunner().invoke(app, ["ps", "--status", "degraded"]).output

    assert 0 < item["degraded_ms"] < item["ms"]["useful"]
    assert "Node 1 was preempted." in story
    assert any(line.startswith("Training continues on 2 of 3 nodes after 4.0 s") for line in story)
    assert "on 2 of 3 nodes: the ranks of node 1 run on another node" in story[0]
    assert "attempt 1 trained on fewer nodes for" in bill
    assert "◑ degraded" in jobs

"""Jobs with node groups: what the service needs, and what previews, bills and statistics show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from holdfast.api.schemas.billing import BillOut
from holdfast.api.schemas.jobs import LaunchEstimateOut
from holdfast.cli.billing import print_bill
from holdfast.cli.jobs import estimate_line
from holdfast.domain.jobfile.spec import Engine
from support.events import at, finished
from support.group_events import HEAD, SECOND, SECOND_LATER, group_events, group_submission
from support.simulated_service import SimulatedService

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

GROUPS = [
    {"name": "head", "num_nodes": 1, "resources": {"infra": "aws/us-east-1", "use_spot": False}},
    {"name": "workers", "num_nodes": 2, "resources": {"infra": "aws/us-east-2"}},
]
FILE: str = yaml.safe_dump(
    {
        "name": "gpt",
        "run": "train",
        "resources": {"accelerators": "A100:8"},
        "holdfast": {"groups": GROUPS, "checkpoint": {"store": "s3://b/p"}},
    }
)


@pytest.fixture
def sky(world: SimulatedService) -> SimulatedService:
    """A service with a launcher of the kind that groups need, at an address that nodes reach."""
    services = world.services
    launchers = {**services.launchers, Engine.SKYPILOT: services.launchers[Engine.LOCAL]}
    changed = replace(services, launchers=launchers, worker_url="https://holdfast.example.com")
    world.app.state.services = changed
    return world


def rendered(world: SimulatedService, **fields: Any) -> dict[str, Any]:
    answer = world.http.post("/v1/render", json={"task": FILE, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_preview_has_one_document_for_each_group(sky: SimulatedService) -> None:
    found = rendered(sky)

    names = [task["envs"]["HOLDFAST_GROUP"] for task in yaml.safe_load_all(found["task"])]
    assert (names, found["refused"]) == (["head", "workers"], [])


def test_service_that_nodes_cannot_reach_refuses_groups(sky: SimulatedService) -> None:
    services = replace(sky.app.state.services, worker_url="http://127.0.0.1:8000")
    sky.app.state.services = services

    [reason] = rendered(sky)["refused"]

    assert reason.startswith("#/holdfast/groups: need a service that nodes can reach")
    assert "set HOLDFAST_PUBLIC_URL" in reason
    assert sky.http.post("/v1/jobs", json={"task": FILE}).status_code == 422


def test_estimate_has_each_group_and_their_sum(sky: SimulatedService) -> None:
    estimate = rendered(sky, prices=True)["estimate"]

    head, workers = estimate["groups"]
    assert (head["name"], head["nodes"], head["is_spot"]) == ("head", 1, False)
    assert (workers["name"], workers["nodes"], workers["is_spot"]) == ("workers", 2, True)
    known = [each["micros_per_hour"] for each in (head, workers)]
    expected = sum(known) if None not in known else None
    assert (estimate["nodes"], estimate["micros_per_hour"]) == (3, expected)
    line = estimate_line("skypilot", LaunchEstimateOut.model_validate(estimate))
    assert line.startswith("SkyPilot, head: aws us-east-1")
    assert "; workers: aws us-east-2" in line


def test_resume_of_groups_names_the_way_to_other_nodes(sky: SimulatedService) -> None:
    job = sky.http.post("/v1/jobs", json={"task": FILE}).json()["id"]
    path = f"/v1/jobs/{job}/resume/preview"

    refused = sky.http.post(path, json={"nodes": 4})
    plain = sky.http.post(path, json={}).json()

    [error] = refused.json()["errors"]
    assert (refused.status_code, error["pointer"]) == (422, "#/holdfast/groups")
    assert f"submit it with holdfast.checkpoint.from: {job}" in error["message"]
    assert (plain["changes"], plain["after"]["nodes"]) == ([], 3)
    assert plain["forecast"] is None
    assert plain["forecast_note"] == "no forecast: jobs with node groups are not planned"


@pytest.fixture
def grouped_job(world: SimulatedService) -> str:
    """A job of three groups, one of them preempted twice."""
    world.clock.advance((at(5000) - world.clock.now()).total_seconds())
    job = world.services.journal.submit("job-1", group_submission())
    world.services.journal.append(job, group_events())
    return job.id


def test_bill_has_the_groups_over_all_attempts(world: SimulatedService, grouped_job: str) -> None:
    bill = world.http.get(f"/v1/jobs/{grouped_job}/bill").json()

    head, first, second = bill["groups"]
    sums = [(each["name"], each["nodes"], each["preemptions"]) for each in bill["groups"]]
    assert sums == [("head", 1, 1), ("first", 1, 0), ("second", 2, 2)]
    assert sum(each["paid_micros"] for each in bill["groups"]) == bill["paid_micros"]
    assert (second["missing_ms"], second["running_ms"]) == (700_000, 4_100_000)
    assert [span["state"] for span in head["spans"]] == ["waiting", "running", "missing", "running"]
    last = second["spans"][-1]
    assert (last["zone"], last["is_spot"], last["until"]) == (SECOND.zone, True, None)
    missing = second["spans"][3]
    assert (missing["zone"], missing["is_spot"], missing["micros_per_hour"]) == (None, None, 0)
    assert (first["spans"][1]["attempt"], first["spans"][1]["last_attempt"]) == (1, 2)


def test_losses_name_the_group_and_its_zone(world: SimulatedService, grouped_job: str) -> None:
    losses = world.http.get(f"/v1/jobs/{grouped_job}/bill").json()["losses"]

    assert [(loss["group"], loss["node"], loss["zone"]) for loss in losses] == [
        ("second", 2, SECOND.zone),
        ("second", 2, SECOND_LATER.zone),
        ("head", None, HEAD.zone),
    ]


def test_printed_bill_names_lost_groups(
    world: SimulatedService, grouped_job: str, capsys: pytest.CaptureFixture[str]
) -> None:
    bill = world.http.get(f"/v1/jobs/{grouped_job}/bill").json()

    print_bill(BillOut.model_validate(bill))

    printed = capsys.readouterr().out
    assert "attempt 1 group second preempted in aws/us-east-2/us-east-2a, replaced after" in printed
    assert "attempt 1 group head node failed in aws/us-east-1/us-east-1a, no notice" in printed


@pytest.mark.parametrize("ends", [False, True], ids=["live", "ended"])
def test_preemption_history_names_groups(
    ends: bool, world: SimulatedService, grouped_job: str
) -> None:
    if ends:
        journal = world.services.journal
        journal.append(journal.read(grouped_job), [finished(4900)])

    history = world.http.get("/v1/preemptions/history").json()["preemptions"]

    assert [(each["group"], each["node"], each["zone"]) for each in history] == [
        ("head", None, HEAD.zone),
        ("second", 2, SECOND_LATER.zone),
        ("second", 2, SECOND.zone),
    ]


def test_bill_without_groups_has_none(world: SimulatedService) -> None:
    job = world.submit()["id"]
    world.until(job, "training")

    assert world.http.get(f"/v1/jobs/{job}/bill").json()["groups"] == []

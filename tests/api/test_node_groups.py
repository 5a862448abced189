"""Submissions with node groups: what the service needs, and what previews show."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from holdfast.api.schemas.jobs import LaunchEstimateOut
from holdfast.cli.jobs import estimate_line
from holdfast.domain.jobfile.spec import Engine
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

"""The rendered task of a request equals that of its submission."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from holdfast.confinement import Confinement
from holdfast.domain.jobfile.spec import Engine
from support.principals import OWN, create_principals
from support.simulated_service import SimulatedService
from support.sql_log import statements

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

LOCAL = "name: tiny\nresources: {infra: local}\nrun: train\n"


def both(http: TestClient, task: str, **words: Any) -> tuple[list[str], list[str]]:
    """What the rendering lists as refused, and what a submission of the same body is refused for."""
    body = {"task": task, **words}
    rendered = http.post("/v1/render", json=body)
    assert rendered.status_code == 200, rendered.text
    problem = http.post("/v1/jobs", json=body).json()
    flaws = [f"{flaw['pointer']}: {flaw['message']}" for flaw in problem.get("errors", [])]
    return rendered.json()["refused"], flaws or [problem["detail"]]


@pytest.mark.parametrize(
    ("task", "words", "reason"),
    [
        ("run: train\nresources: {infra: aws}", {"force": True}, "needs the SkyPilot launcher"),
        (f"{LOCAL}holdfast: {{limits: {{deadline: 2020-01-01T00:00:00Z}}}}", {}, "is in the past"),
        (LOCAL, {"project": "closed"}, "archived"),
        (LOCAL, {"project": "absent"}, "no project absent"),
    ],
)
def test_render_lists_the_errors_of_submit(
    world: SimulatedService, task: str, words: dict[str, Any], reason: str
) -> None:
    world.http.post("/v1/projects", json={"name": "closed"})
    world.http.patch("/v1/projects/closed", json={"is_archived": True})

    listed, refused = both(world.http, task, **words)

    assert listed == refused
    assert reason in listed[0]
    assert world.http.get("/v1/jobs").json()["jobs"] == []


def test_rendering_of_a_job_that_submit_takes_lists_nothing(world: SimulatedService) -> None:
    answer = world.http.post("/v1/render", json={"task": LOCAL})

    assert answer.json()["refused"] == []


def test_rendering_lists_a_spent_budget(world: SimulatedService) -> None:
    world.http.put("/v1/budgets/project/default", json={"monthly_usd": 0.01})
    world.until(world.submit()["id"], "paused")

    listed, (refused,) = both(world.http, LOCAL)

    assert len(listed) == 1
    assert refused.endswith(listed[0])


def test_render_lists_missing_permissions(world: SimulatedService) -> None:
    principals = create_principals(world)
    closed = Confinement(refused={Engine.LOCAL: "this machine is for admins"})
    world.app.state.services = replace(world.services, confinement=closed)

    looking, refused_view = both(principals.person("viewer"), LOCAL, project=OWN)
    member, refused_member = both(principals.person("member"), LOCAL, project=OWN)

    assert looking == refused_view
    assert "requires the role" in looking[0]
    assert member == refused_member
    assert "this machine is for admins" in member[0]


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/render"])
def test_past_of_spot_nodes_is_read_once(world: SimulatedService, path: str) -> None:
    launchers = {Engine.SKYPILOT: world.cloud}
    world.app.state.services = replace(world.services, launchers=launchers)
    task = "run: train\nresources: {infra: aws, accelerators: 'A100:8', use_spot: true}"

    with statements(world.services.engine) as asked:
        answer = world.http.post(path, json={"task": task, "force": True})

    assert answer.status_code in {200, 201}, answer.text
    assert any("refused without --force" in note for note in answer.json()["notes"])
    newest = [one for one in asked if "ORDER BY jobs.submitted_at DESC" in one and "LIMIT" in one]
    assert len(newest) == 1

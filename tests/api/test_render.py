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


def render_and_submit(http: TestClient, task: str, **fields: Any) -> tuple[list[str], list[str]]:
    """The errors listed by the rendering, and those of submitting the same body."""
    body = {"task": task, **fields}
    rendered = http.post("/v1/render", json=body)
    assert rendered.status_code == 200, rendered.text
    problem = http.post("/v1/jobs", json=body).json()
    flaws = [f"{flaw['pointer']}: {flaw['message']}" for flaw in problem.get("errors", [])]
    return rendered.json()["refused"], flaws or [problem["detail"]]


@pytest.mark.parametrize(
    ("task", "fields", "reason"),
    [
        ("run: train\nresources: {infra: aws}", {"force": True}, "needs the SkyPilot launcher"),
        (f"{LOCAL}holdfast: {{limits: {{deadline: 2020-01-01T00:00:00Z}}}}", {}, "is in the past"),
        (LOCAL, {"project": "closed"}, "archived"),
        (LOCAL, {"project": "absent"}, "no project absent"),
    ],
)
def test_render_lists_the_errors_of_submit(
    world: SimulatedService, task: str, fields: dict[str, Any], reason: str
) -> None:
    world.http.post("/v1/projects", json={"name": "closed"})
    world.http.patch("/v1/projects/closed", json={"is_archived": True})

    listed, refused = render_and_submit(world.http, task, **fields)

    assert listed == refused
    assert reason in listed[0]
    assert world.http.get("/v1/jobs").json()["jobs"] == []


def test_rendering_of_a_valid_job_lists_no_errors(world: SimulatedService) -> None:
    answer = world.http.post("/v1/render", json={"task": LOCAL})

    assert answer.json()["refused"] == []


def test_rendering_lists_a_spent_budget(world: SimulatedService) -> None:
    world.http.put("/v1/budgets/project/default", json={"monthly_usd": 0.01})
    world.until(world.submit()["id"], "paused")

    listed, (refused,) = render_and_submit(world.http, LOCAL)

    assert len(listed) == 1
    assert refused.endswith(listed[0])


def test_render_lists_missing_permissions(world: SimulatedService) -> None:
    principals = create_principals(world)
    closed = Confinement(refused={Engine.LOCAL: "this machine is for admins"})
    world.app.state.services = replace(world.services, confinement=closed)

    looking, refused_view = render_and_submit(principals.person("viewer"), LOCAL, project=OWN)
    member, refused_member = render_and_submit(principals.person("member"), LOCAL, project=OWN)

    assert looking == refused_view
    assert "requires the role" in looking[0]
    assert member == refused_member
    assert "this machine is for admins" in member[0]


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/render"])
def test_spot_history_is_read_once(world: SimulatedService, path: str) -> None:
    launchers = {Engine.SKYPILOT: world.cloud}
    world.app.state.services = replace(world.services, launchers=launchers)
    task = "run: train\nresources: {infra: aws, accelerators: 'A100:8', use_spot: true}"

    with statements(world.services.engine) as executed:
        answer = world.http.post(path, json={"task": task, "force": True})

    assert answer.status_code in {200, 201}, answer.text
    assert any("refused without --force" in note for note in answer.json()["notes"])
    newest = [
        one for one in executed if "ORDER BY jobs.submitted_at DESC" in one and "LIMIT" in one
    ]
    assert len(newest) == 1

"""Preemptions of node groups on request: node 0 is asked once, and refusals give the reason."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import yaml
from holdfast.cli.app import app
from holdfast.domain.events import (
    Cause,
    CheckpointCommitted,
    Event,
    LaunchRequested,
    NodeLost,
    NodesReady,
    TrainingStarted,
)
from holdfast.domain.events.values import NodeGroup
from holdfast.domain.jobfile.spec import Engine
from support.simulated_service import SimulatedService, served
from support.snapshots import created_once
from typer.testing import CliRunner

GROUPS = [{"name": "head", "num_nodes": 1}, {"name": "workers", "num_nodes": 2}]
FILE: str = yaml.safe_dump(
    {
        "name": "gpt",
        "run": "train",
        "resources": {"infra": "aws/us-east-1", "accelerators": "A100:8", "use_spot": False},
        "holdfast": {"groups": GROUPS, "checkpoint": {"store": "s3://b/p"}},
    }
)


class WithoutPreemption:
    """A launcher that cannot preempt nodes, and whose worker leaves on request, as SkyPilot's."""

    saves_on_cancel = False


@pytest.fixture
def sky(world: SimulatedService) -> SimulatedService:
    """A service with SkyPilot, which does nothing by itself."""
    launchers: Any = {**world.services.launchers, Engine.SKYPILOT: WithoutPreemption()}
    url = "https://holdfast.example.com"
    world.services = replace(world.services, launchers=launchers, worker_url=url)
    world.app.state.services = world.services
    return world


def append(world: SimulatedService, job: str, *events: Event) -> None:
    world.services.journal.append(world.services.journal.read(job), events)


def start(world: SimulatedService, *, keeps_state: bool = True) -> str:
    """Submit a job, and have its groups train."""
    job: str = world.submit(FILE)["id"]
    now = world.clock.now()
    groups = tuple(
        NodeGroup(
            name=name,
            nodes=nodes,
            zone="us-east-1a",
            is_spot=False,
            micros_per_hour=1,
            on_demand_micros_per_hour=1,
        )
        for name, nodes in (("head", 1), ("workers", 2))
    )
    ready = NodesReady(
        at=now,
        attempt=1,
        zone="us-east-1a",
        nodes=3,
        micros_per_hour=2,
        on_demand_micros_per_hour=2,
        simulated=True,
        groups=groups,
    )
    append(world, job, LaunchRequested(at=now, launch=1), ready)
    append(world, job, TrainingStarted(at=now, attempt=1, step=0, keeps_state=keeps_state))
    return job


@pytest.fixture
def trained(sky: SimulatedService) -> str:
    return created_once(sky, start)


def lose_workers(world: SimulatedService, job: str) -> None:
    for node in (1, 2):
        lost = NodeLost(
            at=world.clock.now(),
            group=1,
            attempt=1,
            node=node,
            with_node=1 if node > 1 else None,
            nodes=2 - node,
            micros_per_hour=0,
            on_demand_micros_per_hour=0,
            cause=Cause.NODE_FAILED,
        )
        append(world, job, lost)


def asked(world: SimulatedService, job: str, attempt: int = 1) -> tuple[list[Any], float | None]:
    """What the response to a delivery of reports requests of node 0."""
    body: Mapping[str, object] = {"attempt": attempt, "reports": []}
    path, token = f"/v1/jobs/{job}/reports", world.worker_token(job)
    found = world.http.post(path, json=body, headers=token).json()
    return [(one["nodes"], one["within_s"]) for one in found["drills"]], found["leave_within_s"]


def request_event(world: SimulatedService, job: str) -> dict[str, Any]:
    events = world.http.get(f"/v1/jobs/{job}/events").json()
    [event] = [event for event in events if event["kind"] == "DrillRequested"]
    body: dict[str, Any] = event["body"]
    return body


@pytest.mark.parametrize(
    ("place", "nodes"),
    [
        ({}, [1, 2]),
        ({"node": 1}, [1, 2]),
        ({"node": 2}, [1, 2]),
        ({"group": "workers"}, [1, 2]),
        ({"node": 0}, [0]),
        ({"group": "head"}, [0]),
    ],
)
def test_node_0_is_asked_to_end_the_group(
    sky: SimulatedService, trained: str, place: dict[str, Any], nodes: list[int]
) -> None:
    before = asked(sky, trained)

    accepted = sky.drill(trained, 60, **place)
    sky.clock.advance(20)

    assert accepted.status_code == 202
    assert before == ([], None)
    assert asked(sky, trained) == ([(nodes, 40)], None)
    assert asked(sky, trained, attempt=2) == ([], None)
    recorded = request_event(sky, trained)
    assert recorded["group"] == ("head" if nodes == [0] else "workers")
    assert (recorded["node"], recorded["through_worker"]) == (place.get("node"), True)


def test_group_ends_at_once_without_notice(sky: SimulatedService, trained: str) -> None:
    assert sky.drill(trained).status_code == 202
    sky.clock.advance(20)

    assert asked(sky, trained) == ([([1, 2], 0)], None)
    sky.clock.advance(40)
    assert asked(sky, trained) == ([], None), "a request that did not arrive is dropped"


def test_request_ends_with_the_loss(sky: SimulatedService, trained: str) -> None:
    sky.drill(trained, 60)
    lose = NodeLost(
        at=sky.clock.now(), group=1, attempt=1, node=1, nodes=0, micros_per_hour=0,
        on_demand_micros_per_hour=0, cause=Cause.NODE_FAILED, drill=True,
    )  # fmt: skip

    append(sky, trained, lose)

    assert asked(sky, trained) == ([], None)


@pytest.mark.parametrize(
    ("place", "words"),
    [
        ({"node": 3}, "has nodes 0 to 2; node 3 does not exist"),
        ({"group": "more"}, "has the node groups head, workers; group more does not exist"),
    ],
)
def test_unknown_place_is_refused(
    sky: SimulatedService, trained: str, place: dict[str, Any], words: str
) -> None:
    refused = sky.drill(trained, 60, **place)

    assert (refused.status_code, words in refused.json()["detail"]) == (409, True)


def test_node_and_group_together_are_refused(sky: SimulatedService, trained: str) -> None:
    refused = sky.drill(trained, 60, node=1, group="workers")

    assert refused.status_code == 400
    assert refused.json()["detail"] == "the request names a node and a group; give one of them"


def test_job_without_groups_has_no_group(world: SimulatedService) -> None:
    job = world.submit()["id"]
    world.until(job, "training")

    refused = world.drill(job, 60, group="head")

    assert refused.json()["detail"] == f"job {job} has no node groups; group head does not exist"


def test_missing_group_is_refused(sky: SimulatedService, trained: str) -> None:
    lose_workers(sky, trained)

    refused = sky.drill(trained, 60)

    assert refused.status_code == 409
    assert "nodes 1 and 2 (workers) are already missing" in refused.json()["detail"]
    assert sky.drill(trained, 60, node=0).status_code == 202


def test_second_request_is_refused(sky: SimulatedService, trained: str) -> None:
    sky.drill(trained, 60)

    refused = sky.drill(trained, 60, node=1)

    assert "group workers is being preempted already" in refused.json()["detail"]


def test_short_notice_is_refused(sky: SimulatedService, trained: str) -> None:
    refused = sky.drill(trained, 10, force=True)

    assert "give it at least as much, or none with --no-notice" in refused.json()["detail"]


def save(world: SimulatedService, job: str, step: int, took_s: float) -> None:
    """Record a checkpoint, and then one more step."""
    now = world.clock.now()
    world.clock.advance(took_s)
    committed = CheckpointCommitted(
        at=world.clock.now(), attempt=1, step=step, checkpoint=f"c{step}", size_bytes=1, stall_ms=1,
        upload_ms=1, snapshot_at=now, weights_sha256="",
    )  # fmt: skip
    append(world, job, committed)
    body: Mapping[str, object] = {
        "attempt": 1,
        "reports": [
            {
                "n": 1,
                "at": world.clock.now().isoformat(),
                "kind": "progress",
                "body": {"step": step + 5, "values": {}},
            }
        ],
    }
    path = f"/v1/jobs/{job}/reports"
    assert world.http.post(path, json=body, headers=world.worker_token(job)).status_code == 200


@pytest.mark.parametrize(
    ("keeps_state", "group", "notice_s", "is_refused"),
    [
        (True, "workers", None, False),
        (False, "workers", None, True),
        (False, "workers", 30, True),
        (False, "workers", 90, False),
        (True, "head", None, True),
        (True, "head", 90, False),
    ],
)
def test_drill_that_loses_steps_needs_force(
    sky: SimulatedService, keeps_state: bool, group: str, notice_s: float | None, is_refused: bool
) -> None:
    job = start(sky, keeps_state=keeps_state)
    save(sky, job, step=10, took_s=60)

    answer = sky.drill(job, notice_s, group=group)

    assert (answer.status_code == 409) is is_refused, answer.text
    if is_refused:
        assert "5 steps since the checkpoint at step 10" in answer.json()["detail"]
        assert sky.drill(job, notice_s, group=group, force=True).status_code == 202


@pytest.fixture
def at_terminal(sky: SimulatedService, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliRunner]:
    """A command line that is configured for the service."""
    with served(sky) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        yield CliRunner()


@pytest.mark.parametrize(
    ("place", "named"),
    [
        ((), "group workers (nodes 1 and 2)"),
        (("--node", "1"), "group workers (nodes 1 and 2)"),
        (("--group", "workers", "--no-notice"), "group workers (nodes 1 and 2)"),
        (("--node", "0"), "group head (node 0)"),
    ],
)
def test_command_names_the_whole_group(
    at_terminal: CliRunner, trained: str, place: tuple[str, ...], named: str
) -> None:
    done = at_terminal.invoke(app, ["preempt", trained, *place])

    how = "without notice" if "--no-notice" in place else "120 s notice"
    assert done.stdout == f"preempting {named} of job {trained} ({how})\n"


def test_command_says_which_groups_exist(at_terminal: CliRunner, trained: str) -> None:
    done = at_terminal.invoke(app, ["preempt", trained, "--group", "more"])

    assert done.exit_code != 0
    assert "has the node groups head, workers; group more does not exist" in str(done.exception)

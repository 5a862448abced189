"""The list of launchers: from the newest probe, without a request to them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from holdfast.api.app import create_app
from holdfast.cli.app import app
from holdfast.confinement import Confinement
from holdfast.domain.jobfile.spec import Engine
from holdfast.launchers.simulated import SimulatedCloud
from holdfast.ports import EngineInfo, LauncherHealth, OrphanedResource
from support.simulated_service import SimulatedService, at_a_port, client
from typer.testing import CliRunner

SEEN = datetime(2026, 3, 1, tzinfo=UTC)
VITALS = EngineInfo(
    version="0.14.1",
    guarantee="exactly-once",
    waits_for_service=False,
    clouds=("aws",),
    clock_skew_s=0.4,
)


class FarCloud(SimulatedCloud):
    """A cloud with a separate engine, which no route may contact."""

    strangers: Sequence[OrphanedResource] | None = (
        OrphanedResource(
            key="j1-1",
            description="SkyPilot managed job 7 (hf0000-j1-1)",
            since=SEEN,
            stopped=False,
        ),
    )

    async def sweep(self, is_live: Callable[[str], bool | None]) -> Sequence[OrphanedResource]:
        raise AssertionError("a request swept the engine")

    async def engine_info(self) -> EngineInfo:
        raise AssertionError("a request asked the engine")


class SharedCloud(FarCloud):
    """A cloud in which jobs of different users share resources."""

    shared_resources = "one account"


class UnsweptCloud(FarCloud):
    """A cloud of a service that has just started."""

    strangers = None


def test_launch_list_is_complete_only_after_a_search(
    world: SimulatedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    unswept = UnsweptCloud.__new__(UnsweptCloud)
    known = (LauncherHealth(engine=Engine.SKYPILOT),)
    launchers = {**world.services.launchers, Engine.SKYPILOT: unswept}
    services = replace(world.services, launchers=launchers, health=lambda: known)
    with at_a_port(create_app(services)) as address:
        monkeypatch.setenv("HOLDFAST_URL", address)
        early = CliRunner().invoke(app, ["launches", "list"]).stderr
        monkeypatch.setattr(unswept, "strangers", ())
        late = CliRunner().invoke(app, ["launches", "list"]).stderr

    assert early.strip() == "not searched yet: skypilot; run this again in a minute"
    assert late.strip() == "every launch is in the database"


def launchers_by_engine(world: SimulatedService, **health: object) -> dict[str, dict[str, object]]:
    """The listed launchers of a service with SkyPilot, by engine."""
    far = FarCloud.__new__(FarCloud)
    known = (LauncherHealth(engine=Engine.LOCAL), LauncherHealth(engine=Engine.SKYPILOT, **health))
    services = replace(
        world.services,
        launchers={**world.services.launchers, Engine.SKYPILOT: far},
        health=lambda: known,
        worker_url="https://holdfast.example.com",
    )
    answer = client(create_app(services)).get("/v1/launchers")
    assert answer.status_code == 200, answer.text
    return {item["engine"]: item for item in answer.json()}


def test_missing_launchers_are_listed_as_not_configured(world: SimulatedService) -> None:
    body = {item["engine"]: item for item in world.http.get("/v1/launchers").json()}

    assert set(body) == {"local", "slurm", "skypilot"}
    assert [body[name]["configured"] for name in ("local", "slurm", "skypilot")] == [
        True,
        False,
        False,
    ]


def test_responding_engine_is_listed_with_its_version(world: SimulatedService) -> None:
    now = world.clock.now()

    skypilot = launchers_by_engine(world, engine_info=VITALS, answered_at=now)["skypilot"]

    assert skypilot == {
        "engine": "skypilot",
        "configured": True,
        "reachable": True,
        "version": "0.14.1",
        "guarantee": "exactly-once",
        "waits_for_service": False,
        "clouds": ["aws"],
        "clock_skew_s": 0.4,
        "swept": True,
        "strangers": ["SkyPilot managed job 7 (hf0000-j1-1)"],
        "strange_launches": ["j1-1"],
        "undecided": [],
        "trouble": None,
        "since": None,
        "answered_at": now.isoformat().replace("+00:00", "Z"),
        "reports_to": "https://holdfast.example.com",
        "users_share": None,
    }


def test_unreachable_launcher_keeps_its_last_version(world: SimulatedService) -> None:
    since = world.clock.now()

    skypilot = launchers_by_engine(
        world,
        engine_info=VITALS,
        answered_at=since - timedelta(seconds=15),
        error="it does not answer",
        since=since,
    )["skypilot"]

    assert (skypilot["reachable"], skypilot["trouble"]) == (False, "it does not answer")
    assert skypilot["version"] == "0.14.1"


def test_unprobed_launcher_has_unknown_reachability(world: SimulatedService) -> None:
    result = launchers_by_engine(world)

    assert result["skypilot"]["reachable"] is None
    assert result["local"]["reachable"] is True


def test_launches_that_need_a_decision_are_listed(world: SimulatedService) -> None:
    launches, now = world.services.launches, world.clock.now()
    launches.open("j1-1", "j1", now)
    launches.record_missing("j1-1", now)
    launches.record_lost("j1-1", "SkyPilot cluster hf-j1-1 in aws/us-east-1")

    before = launchers_by_engine(world)["skypilot"]["undecided"]
    unconnected = world.http.get("/v1/launchers").json()
    launches.tombstone("j1-1", "j1", now)

    assert before == [
        {
            "launch": "j1-1",
            "job_id": "j1",
            "what": "SkyPilot cluster hf-j1-1 in aws/us-east-1",
            "since": now.isoformat().replace("+00:00", "Z"),
        }
    ]
    assert [item["undecided"] for item in unconnected if item["engine"] == "skypilot"] == [before]
    assert launchers_by_engine(world)["skypilot"]["undecided"] == []


def test_users_share_is_shown_unless_users_are_refused(world: SimulatedService) -> None:
    cloud = SharedCloud.__new__(SharedCloud)
    launchers = {Engine.LOCAL: cloud, Engine.SLURM: cloud}
    services = replace(
        world.services,
        launchers=launchers,
        health=lambda: tuple(LauncherHealth(engine=engine) for engine in launchers),
        confinement=Confinement(refused={Engine.LOCAL: "for admins"}),
    )

    body = {
        item["engine"]: item["users_share"]
        for item in client(create_app(services)).get("/v1/launchers").json()
    }

    assert body == {"local": None, "slurm": "one account", "skypilot": None}


def test_launchers_require_authentication(world: SimulatedService) -> None:
    assert client(world.app, "192.0.2.7").get("/v1/launchers").status_code == 401


def test_readiness_names_the_revision_of_the_database(world: SimulatedService) -> None:
    ready = world.http.get("/readyz").json()

    assert ready["revision"] >= "0003"
    assert world.http.get("/healthz").json()["revision"] is None


def test_a_launch_without_a_row_is_stopped_on_request(world: SimulatedService) -> None:
    found: list[str] = []

    class Cloud(FarCloud):
        async def cancel(self, key: str) -> None:
            found.append(key)

    far = Cloud.__new__(Cloud)
    services = replace(
        world.services,
        launchers={Engine.SKYPILOT: far},
        health=lambda: (LauncherHealth(engine=Engine.SKYPILOT),),
    )
    http = client(create_app(services))

    stopped = http.post("/v1/launches/j1-1/stop")
    unknown = http.post("/v1/launches/j2-1/stop")

    assert (stopped.status_code, unknown.status_code) == (202, 404)
    assert found == ["j1-1"]
    assert services.audit.page(limit=1)[0].audit_action.action == "launch.stop"

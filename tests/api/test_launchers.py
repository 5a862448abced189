"""The launchers of a service, as they are told: from the newest probe, without asking anybody."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from holdfast.adapters.simulated import SimulatedCloud
from holdfast.api.app import create_app
from holdfast.domain.spec import Engine
from holdfast.ports import Vitals
from holdfast.pulse import Health
from world import World, client

VITALS = Vitals(
    version="0.14.1",
    guarantee="exactly-once",
    waits_for_us=False,
    clouds=("aws",),
    clock_skew_s=0.4,
    strangers=("SkyPilot managed job 7 (hf0000-j1-1)",),
)


class FarCloud(SimulatedCloud):
    """A cloud behind an engine of its own, which must not be asked by a route."""

    async def vitals(self) -> Vitals:
        raise AssertionError("a request asked the engine")


def _told(world: World, **health: object) -> dict[str, dict[str, object]]:
    """What a person is told by a service with SkyPilot, of which this much is known."""
    far = FarCloud.__new__(FarCloud)
    known = (Health(engine=Engine.LOCAL), Health(engine=Engine.SKYPILOT, **health))
    services = replace(
        world.services,
        launchers={**world.services.launchers, Engine.SKYPILOT: far},
        health=lambda: known,
        worker_url="https://holdfast.example.com",
    )
    answer = client(create_app(services)).get("/v1/launchers")
    assert answer.status_code == 200, answer.text
    return {item["engine"]: item for item in answer.json()}


def test_what_a_service_does_without_is_told_as_such(world: World) -> None:
    told = {item["engine"]: item for item in world.http.get("/v1/launchers").json()}

    assert set(told) == {"local", "slurm", "skypilot"}
    assert [told[name]["configured"] for name in ("local", "slurm", "skypilot")] == [
        True,
        False,
        False,
    ]


def test_an_engine_that_answers(world: World) -> None:
    now = world.clock.now()

    sky = _told(world, vitals=VITALS, answered_at=now)["skypilot"]

    assert sky == {
        "engine": "skypilot",
        "configured": True,
        "reachable": True,
        "version": "0.14.1",
        "guarantee": "exactly-once",
        "waits_for_service": False,
        "clouds": ["aws"],
        "clock_skew_s": 0.4,
        "strangers": ["SkyPilot managed job 7 (hf0000-j1-1)"],
        "trouble": None,
        "since": None,
        "answered_at": now.isoformat().replace("+00:00", "Z"),
        "reports_to": "https://holdfast.example.com",
    }


def test_an_engine_that_is_silent_keeps_what_it_said_last(world: World) -> None:
    since = world.clock.now()

    sky = _told(
        world,
        vitals=VITALS,
        answered_at=since - timedelta(seconds=15),
        trouble="it does not answer",
        since=since,
    )["skypilot"]

    assert (sky["reachable"], sky["trouble"]) == (False, "it does not answer")
    assert sky["version"] == "0.14.1"


def test_an_engine_that_was_not_asked_yet_is_neither_well_nor_ill(world: World) -> None:
    told = _told(world)

    assert told["skypilot"]["reachable"] is None
    assert told["local"]["reachable"] is True


def test_a_stranger_is_not_told(world: World) -> None:
    assert client(world.app, "192.0.2.7").get("/v1/launchers").status_code == 401


def test_readiness_names_the_revision_of_the_database(world: World) -> None:
    ready = world.http.get("/readyz").json()

    assert ready["revision"] >= "0003"
    assert world.http.get("/healthz").json()["revision"] is None

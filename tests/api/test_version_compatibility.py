"""Clients and workers of one version against a service of another."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import httpx2
import pytest
from holdfast import __version__
from holdfast.cli.app import app
from holdfast.client import Client, ServiceUnreachable
from holdfast.store.database import writing
from holdfast_worker.protocol.release import HEADER, difference
from sqlalchemy import text
from support.newer_version import UNHEARD, NewerService, write_event
from support.simulated_service import SimulatedService, served
from typer.testing import CliRunner

COMMANDS = (
    *("ps", "show JOB", "events JOB", "bill JOB", "why JOB", "checkpoints JOB", "metrics JOB"),
    *("logs JOB --json", "ranks JOB", "costs", "preemptions", "prices --accelerator T4"),
    *("whoami", "users list", "projects list", "tokens list", "budgets list", "channels list"),
    *("limits JOB --max-wait 3h", "pause JOB", "cancel JOB"),
)  # fmt: skip


@pytest.fixture
def at_terminal(world: SimulatedService, monkeypatch: pytest.MonkeyPatch) -> Iterator[CliRunner]:
    """A command line of an older version than the service."""
    with served(world, NewerService(world.app)) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        yield CliRunner()


def test_older_client_works_with_a_newer_service(
    world: SimulatedService, at_terminal: CliRunner, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = world.submit()["id"]
    world.until(job_id, "training")
    world.pass_time(30)

    done = {command: at_terminal.invoke(app, command.replace("JOB", job_id).split()) for command in COMMANDS}  # fmt: skip

    assert {command: str(d.exception) for command, d in done.items() if d.exit_code} == {}
    assert UNHEARD in done["ps"].stdout
    assert UNHEARD in done["events JOB"].stdout
    assert f"the service is Holdfast 0.2.0, this client is {__version__}" in caplog.text


def test_events_of_a_newer_replica_do_not_break_answers(world: SimulatedService) -> None:
    job_id = world.submit()["id"]
    world.until(job_id, "training")
    write_event(
        world.services.engine, job_id, world.clock.now(), "NodeMeasured", "launcher", attempt=1
    )
    world.pass_time(30)

    paths = ("", "/events", "/bill", "/story", "/checkpoints", "/bundle", "/manifest")
    answers = {path: world.http.get(f"/v1/jobs/{job_id}{path}") for path in paths}
    kinds = [(event["kind"], event["source"]) for event in answers["/events"].json()]
    ended = world.until(job_id, "succeeded")

    assert {path: answer.status_code for path, answer in answers.items()} == {
        **dict.fromkeys(paths, 200),
        "/manifest": answers["/manifest"].status_code,
    }
    assert ("NodeMeasured", "launcher") in kinds
    assert ended["exit_code"] == 0
    assert not world.services.journal.is_inconsistent(job_id)


def test_older_replica_stays_ready_after_a_newer_one_migrated(world: SimulatedService) -> None:
    set_revision = text("UPDATE alembic_version SET version_num = :at")
    with writing(world.services.engine) as connection:
        connection.execute(set_revision, {"at": "9999"})
    newer = world.http.get("/readyz")
    with writing(world.services.engine) as connection:
        connection.execute(set_revision, {"at": "0001"})
    older = world.http.get("/readyz")

    assert (newer.status_code, newer.json()["revision"]) == (200, "9999")
    assert (older.status_code, older.json()["detail"][:31]) == (
        503,
        "the database is at revision 000",
    )


def test_client_and_service_name_their_versions(world: SimulatedService) -> None:
    requests: list[str] = []

    def service(request: httpx2.Request) -> httpx2.Response:
        requests.append(request.headers["User-Agent"])
        return httpx2.Response(200, json={"status": "ok", "version": "9.9.9"})

    with Client("http://service", transport=httpx2.MockTransport(service)) as client:
        assert client.is_healthy()

    assert requests == [f"holdfast-client/{__version__}"]
    assert world.http.get("/healthz").headers[HEADER] == __version__
    assert world.http.get("/v1/nothing").headers[HEADER] == __version__


def test_note_about_another_version_is_printed_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "holdfast.client")
    answer = httpx2.Response(200, json={"status": "ok", "version": "9"}, headers={HEADER: "9.4.1"})

    with Client("http://service", transport=httpx2.MockTransport(lambda _: answer)) as client:
        client.service.ready()
        client.service.ready()

    (line,) = caplog.messages
    assert line == (
        f"note: the service is Holdfast 9.4.1, this client is {__version__}; only neighbouring minor versions work "
        "together: install holdfast-train 9.4.1"
    )


def test_unreadable_answer_names_both_versions() -> None:
    answer = httpx2.Response(200, json={"id": 1}, headers={HEADER: "9.4.1"})

    with (
        Client("http://service", transport=httpx2.MockTransport(lambda _: answer)) as client,
        pytest.raises(
            ServiceUnreachable, match=rf"runs Holdfast 9\.4\.1, and this client, {__version__}"
        ) as refused,
    ):
        client.jobs.get("j1")

    assert refused.value.exit_code == 3


@pytest.mark.parametrize(
    ("service", "client", "command"),
    [
        ("0.1.0", "0.1.0", ""),
        ("0.1.0", "unknown", ""),
        ("0.1.1", "0.1.0", "the service is Holdfast 0.1.1, this client is 0.1.0"),
        ("0.2.0", "0.1.9", "the service is Holdfast 0.2.0, this client is 0.1.9"),
    ],
)
def test_adjacent_version_difference_is_one_line(service: str, client: str, command: str) -> None:
    assert difference(service, client) == command


@pytest.mark.parametrize(("service", "client"), [("0.3.0", "0.1.0"), ("1.0.0", "0.1.0"), ("?", "1.0.0")])  # fmt: skip
def test_unsupported_version_gap_names_version_to_install(service: str, client: str) -> None:
    assert difference(service, client).endswith(f"install holdfast-train {service}")

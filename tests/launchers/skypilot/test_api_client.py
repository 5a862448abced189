"""Errors of SkyPilot's server, or of a proxy before it: which are final, and which are passed on."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fake_skypilot import FaultyTransport, JobSimulation
from holdfast.cli.serve import _SkyPilotServer
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.errors import LauncherUnreachable, LaunchRefused
from holdfast.launchers.skypilot.api_client import SkyPilotClient
from holdfast.launchers.skypilot.orphans import cancel
from holdfast.launchers.skypilot.upload import upload
from holdfast.settings import Settings
from support.skypilot.launcher import CANARY, NewSkyPilotHarness, SkyPilotHarness, do

REFUSED = {"object": "gASV", "type": "ValueError", "message": "Task name must match"}
NOT_A_WORD_ABOUT_THE_TASK = [
    httpx2.Response(400, json={"error": "version_mismatch", "message": "API version 62 is too old"}),
    httpx2.Response(400, text="<html>Request Header Or Cookie Too Large</html>"),
    httpx2.Response(400, json={"detail": "Invalid JSON"}),
    httpx2.Response(404, json={"detail": "Not Found"}),
    httpx2.Response(413, text="<html>Request Entity Too Large</html>"),
    httpx2.Response(422, text="<html>Unprocessable Entity</html>"),
]  # fmt: skip
SAID = [str(reply.content[:40]) for reply in NOT_A_WORD_ABOUT_THE_TASK]


@dataclass
class Says(FaultyTransport):
    """A line on which somebody else answers some calls."""

    instead: dict[str, httpx2.Response] = field(default_factory=dict)
    heard: list[httpx2.Request] = field(default_factory=list)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.heard.append(request)
        answer = self.instead.get(request.url.path) or self.instead.get("*")
        if answer is None:
            return await super().handle_async_request(request)
        return httpx2.Response(answer.status_code, content=answer.content, headers=answer.headers)


@pytest.fixture
def harness(new_harness: NewSkyPilotHarness) -> SkyPilotHarness:
    """One whose job is up, and stays up."""
    harness = new_harness(JobSimulation(runs_s=100_000))
    harness.until(LaunchStatus.UP)
    return harness


@pytest.mark.parametrize("reply", NOT_A_WORD_ABOUT_THE_TASK, ids=SAID)
def test_launch_refused_by_a_proxy_is_retried(
    harness: SkyPilotHarness, reply: httpx2.Response
) -> None:
    line = Says(harness.server, instead={"/jobs/launch": reply})

    with pytest.raises(LauncherUnreachable):
        do(harness.replica(line).submit(harness.launch("new-1")))

    assert harness.until(LaunchStatus.UP, "new-1").placements == 1


@pytest.mark.parametrize("reply", [httpx2.Response(400, json={"detail": REFUSED}), httpx2.Response(422, json={"detail": [{"loc": ["body", "task"], "msg": "Task name must match"}]})])  # fmt: skip
def test_a_task_that_skypilot_itself_turns_away_is_refused(
    harness: SkyPilotHarness, reply: httpx2.Response
) -> None:
    line = Says(harness.server, instead={"/jobs/launch": reply})

    with pytest.raises(LaunchRefused, match="Task name must match"):
        do(harness.replica(line).submit(harness.launch("new-1")))


def test_rejection_detail_omits_the_request_body(harness: SkyPilotHarness) -> None:
    """FastAPI shows what it could not read: of a field that is missing, the whole body, with all secrets."""
    body = {"task": f"{CANARY}-user", "env_vars": {"TOKEN": f"{CANARY}-worker"}}
    flaw = {"type": "missing", "loc": ["body", "name"], "msg": "Field required", "input": body}
    replies = [{"detail": [flaw]}, {"detail": {"body": body}}, [flaw, body, str(body)]]
    found = []

    for number, reply in enumerate(replies, start=1):
        line = Says(harness.server, instead={"/jobs/launch": httpx2.Response(422, json=reply)})
        with pytest.raises((LaunchRefused, LauncherUnreachable)) as refusal:
            do(harness.replica(line).submit(harness.launch(f"new-{number}")))
        found.append(refusal.value.detail)

    assert "body.name: Field required" in found[0]
    assert CANARY not in "".join(found)


@pytest.mark.parametrize("reply", NOT_A_WORD_ABOUT_THE_TASK, ids=SAID)
def test_whatever_is_answered_nothing_else_breaks_than_the_way(
    harness: SkyPilotHarness, reply: httpx2.Response, tmp_path: Path
) -> None:
    line = Says(harness.server, instead={"*": reply})
    launcher, door = harness.replica(line), SkyPilotClient("http://sky", user="hf", transport=line)
    calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        launcher.engine_info,
        lambda: launcher.observe("job-1"),
        lambda: launcher.cancel("job-1"),
        lambda: launcher.sweep(lambda key: False),
        lambda: launcher.submit(harness.launch("new-1")),
        lambda: cancel(door, 1),
        lambda: door.find_requests("0"),
        lambda: upload(door, [tmp_path]),
    ]

    for call in calls:
        with pytest.raises(LauncherUnreachable):
            do(call())
    assert not do(launcher.logs("job-1"))


def test_404_from_a_proxy_is_not_an_unknown_request(
    harness: SkyPilotHarness,
) -> None:
    """An ingress whose service is being replaced answers 404 as well."""
    proxy = httpx2.Response(404, text="default backend - 404")
    line = Says(harness.server, instead={"/api/get": proxy})
    door = SkyPilotClient("http://sky", user="hf", transport=line)

    with pytest.raises(LauncherUnreachable, match="default backend"):
        do(door.fetch_result("some-request"))


def test_a_password_in_the_address_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(skypilot_url="http://me:hush@sky:8080", skypilot_shares_files=False)

    _SkyPilotServer(port=None, install=False)(settings, "http://127.0.0.1:8642")

    printed = capsys.readouterr()
    assert "HOLDFAST_SKYPILOT_URL" in printed.err
    assert "hush" not in printed.out + printed.err


def test_password_in_url_is_used_but_never_shown(harness: SkyPilotHarness) -> None:
    line = Says(harness.server)
    door = SkyPilotClient("http://me:hush@sky:8080/", user="hf", transport=line)

    do(door.health())
    line.dark = True
    with pytest.raises(LauncherUnreachable) as trouble:
        do(door.health())

    assert door.url == "http://sky:8080"
    assert line.heard[0].headers["Authorization"] == "Basic bWU6aHVzaA=="
    assert "http://sky:8080 did not respond" in trouble.value.detail
    assert "hush" not in f"{trouble.value.detail} {line.heard[0].url}"

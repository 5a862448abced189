"""Errors of SkyPilot's server or of a proxy: which are final, and which are retried."""

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
PROXY_RESPONSES = [
    httpx2.Response(400, json={"error": "version_mismatch", "message": "API version 62 is too old"}),
    httpx2.Response(400, text="<html>Request Header Or Cookie Too Large</html>"),
    httpx2.Response(400, json={"detail": "Invalid JSON"}),
    httpx2.Response(404, json={"detail": "Not Found"}),
    httpx2.Response(413, text="<html>Request Entity Too Large</html>"),
    httpx2.Response(422, text="<html>Unprocessable Entity</html>"),
]  # fmt: skip
IDS = [str(reply.content[:40]) for reply in PROXY_RESPONSES]


@dataclass
class ProxyTransport(FaultyTransport):
    """A connection on which a proxy answers some requests."""

    instead: dict[str, httpx2.Response] = field(default_factory=dict)
    requests: list[httpx2.Request] = field(default_factory=list)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.requests.append(request)
        answer = self.instead.get(request.url.path) or self.instead.get("*")
        if answer is None:
            return await super().handle_async_request(request)
        return httpx2.Response(answer.status_code, content=answer.content, headers=answer.headers)


@pytest.fixture
def harness(new_harness: NewSkyPilotHarness) -> SkyPilotHarness:
    """A harness whose job is up and stays up."""
    harness = new_harness(JobSimulation(runs_s=100_000))
    harness.until(LaunchStatus.UP)
    return harness


@pytest.mark.parametrize("reply", PROXY_RESPONSES, ids=IDS)
def test_launch_refused_by_a_proxy_is_retried(
    harness: SkyPilotHarness, reply: httpx2.Response
) -> None:
    transport = ProxyTransport(harness.server, instead={"/jobs/launch": reply})

    with pytest.raises(LauncherUnreachable):
        do(harness.replica(transport).submit(harness.launch("new-1")))

    assert harness.until(LaunchStatus.UP, "new-1").placements == 1


@pytest.mark.parametrize("reply", [httpx2.Response(400, json={"detail": REFUSED}), httpx2.Response(422, json={"detail": [{"loc": ["body", "task"], "msg": "Task name must match"}]})])  # fmt: skip
def test_task_rejected_by_skypilot_itself_is_refused(
    harness: SkyPilotHarness, reply: httpx2.Response
) -> None:
    transport = ProxyTransport(harness.server, instead={"/jobs/launch": reply})

    with pytest.raises(LaunchRefused, match="Task name must match"):
        do(harness.replica(transport).submit(harness.launch("new-1")))


def test_rejection_detail_omits_the_request_body(harness: SkyPilotHarness) -> None:
    """FastAPI echoes unreadable input: for a missing field the whole body with all secrets."""
    body = {"task": f"{CANARY}-user", "env_vars": {"TOKEN": f"{CANARY}-worker"}}
    flaw = {"type": "missing", "loc": ["body", "name"], "msg": "Field required", "input": body}
    replies = [{"detail": [flaw]}, {"detail": {"body": body}}, [flaw, body, str(body)]]
    found = []

    for number, reply in enumerate(replies, start=1):
        transport = ProxyTransport(
            harness.server, instead={"/jobs/launch": httpx2.Response(422, json=reply)}
        )
        with pytest.raises((LaunchRefused, LauncherUnreachable)) as refusal:
            do(harness.replica(transport).submit(harness.launch(f"new-{number}")))
        found.append(refusal.value.detail)

    assert "body.name: Field required" in found[0]
    assert CANARY not in "".join(found)


@pytest.mark.parametrize("reply", PROXY_RESPONSES, ids=IDS)
def test_proxy_response_raises_launcher_unreachable(
    harness: SkyPilotHarness, reply: httpx2.Response, tmp_path: Path
) -> None:
    transport = ProxyTransport(harness.server, instead={"*": reply})
    launcher, client = (
        harness.replica(transport),
        SkyPilotClient("http://sky", user="hf", transport=transport),
    )
    calls: list[Callable[[], Coroutine[Any, Any, Any]]] = [
        launcher.engine_info,
        lambda: launcher.observe("job-1"),
        lambda: launcher.cancel("job-1"),
        lambda: launcher.sweep(lambda key: False),
        lambda: launcher.submit(harness.launch("new-1")),
        lambda: cancel(client, 1),
        lambda: client.find_requests("0"),
        lambda: upload(client, [tmp_path]),
    ]

    for call in calls:
        with pytest.raises(LauncherUnreachable):
            do(call())
    assert not do(launcher.logs("job-1"))


def test_404_from_a_proxy_is_not_an_unknown_request(
    harness: SkyPilotHarness,
) -> None:
    """An ingress whose service is being replaced also responds with 404."""
    proxy = httpx2.Response(404, text="default backend - 404")
    transport = ProxyTransport(harness.server, instead={"/api/get": proxy})
    client = SkyPilotClient("http://sky", user="hf", transport=transport)

    with pytest.raises(LauncherUnreachable, match="default backend"):
        do(client.fetch_result("some-request"))


def test_password_in_address_is_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    settings = Settings(skypilot_url="http://me:hush@sky:8080", skypilot_shares_files=False)

    _SkyPilotServer(port=None, install=False)(settings, "http://127.0.0.1:8642")

    output = capsys.readouterr()
    assert "HOLDFAST_SKYPILOT_URL" in output.err
    assert "hush" not in output.out + output.err


def test_password_in_url_is_used_but_never_shown(harness: SkyPilotHarness) -> None:
    transport = ProxyTransport(harness.server)
    client = SkyPilotClient("http://me:hush@sky:8080/", user="hf", transport=transport)

    do(client.health())
    transport.dark = True
    with pytest.raises(LauncherUnreachable) as error:
        do(client.health())

    assert client.url == "http://sky:8080"
    assert transport.requests[0].headers["Authorization"] == "Basic bWU6aHVzaA=="
    assert "http://sky:8080 did not respond" in error.value.detail
    assert "hush" not in f"{error.value.detail} {transport.requests[0].url}"

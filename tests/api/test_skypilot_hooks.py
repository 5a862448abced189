"""Requests from SkyPilot's server: admission of every launch, nudges on status changes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from datetime import timedelta
from typing import Any

import httpx2
import pytest
import yaml
from holdfast.domain.jobs.launch_admission import TokenState
from holdfast.errors import BadRequest
from holdfast.launchers.skypilot.admission import PROBE, WIDE_PROBE, AdmissionRequest
from holdfast.launchers.skypilot.task_body import TOKEN_ENV
from hypothesis import given
from hypothesis import strategies as st
from support.simulated_service import SimulatedService


def question(token: str | None, request_name: str = "jobs.launch", **task: Any) -> bytes:
    """The body that SkyPilot posts: a JSON string that contains JSON."""
    envs = {TOKEN_ENV: token, "A": "b"} if token else {"A": "b"}
    text = yaml.safe_dump({"run": "true", "secrets": {"KEY": "CANARY-user"}, "envs": envs, **task})
    words = {"task": text, "skypilot_config": "{}", "request_name": request_name}
    return json.dumps(json.dumps({**words, "request_options": None, "at_client_side": False})).encode()  # fmt: skip


def request_hook(world: SimulatedService, raw: bytes, secret: str | None = None) -> httpx2.Response:
    secret = world.services.tokens.for_gate() if secret is None else secret
    answer: httpx2.Response = world.http.post(f"/v1/skypilot/policy/{secret}", content=raw)
    return answer


def token_of(world: SimulatedService, key: str = "job-1") -> str:
    launches = world.services.launches
    return launches.token(launches.open(key, key.rpartition("-")[0], world.clock.now()))


def test_launch_is_admitted_once_and_unchanged(world: SimulatedService) -> None:
    raw = question(token_of(world))

    first, second = request_hook(world, raw), request_hook(world, raw)

    assert first.status_code == 200
    body = json.loads(first.json())
    sent = json.loads(json.loads(raw))
    assert body == {"task": sent["task"], "skypilot_config": sent["skypilot_config"]}
    assert second.status_code == 400
    assert "was used, revoked or never issued" in second.text


@pytest.mark.parametrize("name", ["jobs.launch_controller", "jobs.launch_cluster", "validate", "optimize", "launch", "exec"])  # fmt: skip
def test_other_requests_do_not_consume_the_token(world: SimulatedService, name: str) -> None:
    token = token_of(world)

    assert [request_hook(world, question(token, name)).status_code for _ in range(2)] == [200, 200]
    assert request_hook(world, question(token)).status_code == 200
    assert request_hook(world, question(token, name)).status_code == 200


@pytest.mark.parametrize("key", [PROBE, WIDE_PROBE])
def test_validation_consumes_only_a_probe_token(world: SimulatedService, key: str) -> None:
    probe = token_of(world, key)

    assert request_hook(world, question(probe, "validate")).status_code == 200
    assert request_hook(world, question(probe, "validate")).status_code == 400
    row = world.services.launches.find(key)
    assert row
    assert row.state is TokenState.CONSUMED


def test_foreign_launches_are_admitted_unchanged(world: SimulatedService) -> None:
    raw = question(None)

    assert [request_hook(world, raw).status_code for _ in range(3)] == [200, 200, 200]


def test_revoked_launch_is_not_admitted(world: SimulatedService) -> None:
    token = token_of(world)
    world.services.launches.tombstone("job-1", "job", world.clock.now())

    assert request_hook(world, question(token)).status_code == 400


@pytest.mark.parametrize("token", ["hfl_", "hfl_job-1_1_" + "0" * 64, "x", "hfl_job-1_99999_" + "a" * 64])  # fmt: skip
def test_unknown_token_is_refused(world: SimulatedService, token: str) -> None:
    assert request_hook(world, question(token)).status_code == 400


@pytest.mark.parametrize("secret", ["0" * 32, "x", "%00", "\u00e9"])
def test_wrong_hook_secret_is_not_found(world: SimulatedService, secret: str) -> None:
    token = token_of(world)

    assert request_hook(world, question(token), secret).status_code == 404
    assert request_hook(world, question(token)).status_code == 200


@pytest.mark.parametrize(
    "raw",
    [
        b"", b"null", b"[]", b"7", b'"x"', b"\xff", b"{", b'"{}"', b"[" * 100_000,
        json.dumps({"request_name": "jobs.launch", "task": "{", "skypilot_config": ""}).encode(),
        json.dumps({"request_name": "jobs.launch", "task": "[" * 5000, "skypilot_config": ""}).encode(),
        json.dumps({"request_name": "jobs.launch", "task": "!!python/object:os.system x", "skypilot_config": ""}).encode(),
    ],
)  # fmt: skip
def test_malformed_admission_request_is_refused(world: SimulatedService, raw: bytes) -> None:
    assert request_hook(world, raw).status_code == 400


@given(st.binary() | st.text().map(str.encode) | st.builds(
    lambda name, task: json.dumps({"request_name": name, "task": task, "skypilot_config": "{}"}).encode(),
    st.text(max_size=20),
    st.text() | st.sampled_from(["envs: []", "- a", f"envs: {{{TOKEN_ENV}: [1]}}", "a: &a [*a]", "2001-99-99", "? !!set {a}", "!!int x", "=", "1:99:99"]),
))  # fmt: skip
def test_any_bytes_parse_or_raise_bad_request(raw: bytes) -> None:
    try:
        request = AdmissionRequest.parse(raw)
    except BadRequest:
        return
    assert json.loads(request.unchanged_reply())["task"] == request.task


def test_long_task_does_not_block_other_requests(world: SimulatedService) -> None:
    raw = question(None, config={f"K{number}": "value" for number in range(8000)})
    gate = f"/v1/skypilot/policy/{world.services.tokens.for_gate()}"
    sized = {"Content-Length": str(len(raw))}

    async def answered() -> list[str]:
        names, sent = list[str](), asyncio.Event()
        transport = httpx2.ASGITransport(world.app)

        async def body() -> AsyncIterator[bytes]:
            yield raw
            sent.set()

        async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:

            async def launch() -> None:
                assert (await http.post(gate, content=body(), headers=sized)).status_code == 200
                names.append("launch")

            async def observe() -> None:
                await sent.wait()
                assert (await http.get("/healthz")).status_code == 200
                names.append("look")

            await asyncio.gather(launch(), observe())
        return names

    assert asyncio.run(answered()) == ["look", "launch"]


def test_no_launch_is_admitted_without_the_database(world: SimulatedService) -> None:
    token = token_of(world)
    with world.services.engine.begin() as connection:
        connection.exec_driver_sql("ALTER TABLE launches RENAME TO elsewhere")

    answer = request_hook(world, question(token))

    assert answer.status_code >= 500


def test_gate_logs_and_answers_contain_no_secrets(world: SimulatedService, caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    caplog.set_level("DEBUG", logger="holdfast")
    token = token_of(world)

    found = [
        request_hook(world, question(token)),
        request_hook(world, question(token)),
        request_hook(world, b"CANARY"),
    ]

    assert "refused a second launch request" in caplog.text
    for text in (caplog.text, found[1].text, found[2].text):
        assert "CANARY" not in text
        assert token not in text
        assert world.services.tokens.for_gate() not in text


def test_a_nudge_makes_a_job_due_at_once(world: SimulatedService) -> None:
    job = world.submit()["id"]
    world.pass_time(2)
    world.services.leases.release(
        job,
        leased_until=world.services.leases.next_due() or world.clock.now(),
        due_at=world.clock.now() + timedelta(hours=1),
        seen_at=None,
        trouble=None,
    )
    secret = world.services.tokens.for_nudge(job)

    answer = world.http.post(f"/v1/jobs/{job}/nudge/{secret}")

    assert answer.status_code == 204
    assert world.services.leases.next_due() == world.clock.now()


def test_nudge_with_a_foreign_secret_has_no_effect(world: SimulatedService) -> None:
    job = world.submit()["id"]

    answer = world.http.post(f"/v1/jobs/{job}/nudge/{world.services.tokens.for_nudge('other')}")

    assert answer.status_code == 404

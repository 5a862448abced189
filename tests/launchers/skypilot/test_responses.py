"""Arbitrary responses of SkyPilot are understood, or have no effect."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fake_skypilot import FaultyTransport, JobSimulation
from fake_skypilot.network_faults import faulty_responses
from holdfast.domain.jobs.observation import LaunchStatus
from holdfast.errors import LauncherUnreachable
from holdfast.store.database import open_database, upgrade
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Engine
from support.repetitions import repeat_count
from support.skypilot.launcher import CANARY, NAMES, SkyPilotHarness, do

ACTS = {"/jobs/launch", "/jobs/cancel", "/down"}
CONCLUSIONS = {None, LaunchStatus.UP, LaunchStatus.WAITING}
"""Valid conclusions about a job that is up: up, being placed, or unknown; never absent."""
READS = ["/api/health", "/api/status", "/jobs/events", "/jobs/queue/v2", "/cost_report"]
ODD_VALUES: list[Any] = [
    None, True, -1, 0, 2.5, 1e308, float("nan"), float("inf"), 10**30, "", "-", "\0", "\ud800", "RESTARTING",
    "SUCCEEDED", "CANCELLED", "PENDING", "INACTIVE", "RECOVERING", "2026-13-01", "9999-12-31T23:59:59-23:59", "1e999", [], [[]], {}, [None], {"jobs": None}, "x" * 70_000,
]  # fmt: skip


class Tampering(httpx2.AsyncBaseTransport):
    """A transport that changes responses."""

    def __init__(self, transport: FaultyTransport) -> None:
        self.transport = transport
        self.change: Callable[[str, Any], Any] = lambda path, value: value
        self.change_reply: Callable[[str, httpx2.Response], httpx2.Response] = lambda path, r: r
        self._asked: dict[str, str] = {}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        path = request.url.path
        reply = await self.transport.handle_async_request(request)
        if request_id := reply.headers.get("X-Skypilot-Request-ID"):
            self._asked[request_id] = path
            return self.change_reply("POST " + path, reply)
        if path != "/api/get":
            parsed = self.change(path, json.loads(reply.content)) if reply.content != b"null" else None  # fmt: skip
            return self.change_reply(path, _json(reply.status_code, parsed))
        asked = self._asked.get(request.url.params["request_id"], "")
        body = json.loads(reply.content)
        if reply.status_code == 200:
            body["return_value"] = json.dumps(self.change(asked, json.loads(body["return_value"])))
        return self.change_reply(asked, _json(reply.status_code, body))


def _json(code: int, value: Any) -> httpx2.Response:
    return httpx2.Response(code, content=json.dumps(value).encode())


def harness_with_running_job(engine: Engine, folder: Path) -> SkyPilotHarness:
    """Create a harness whose job is up and stays up."""
    upgrade(engine)
    harness = SkyPilotHarness(engine, folder, JobSimulation(runs_s=100_000, denial_rate=0.3))
    harness.submit()
    harness.until(LaunchStatus.UP)
    return harness


@pytest.fixture
def harness(tmp_path: Path, open_engine: Callable[[str], Engine]) -> SkyPilotHarness:
    return harness_with_running_job(open_engine(f"sqlite:///{tmp_path / 'holdfast.db'}"), tmp_path)


@pytest.fixture(scope="module")
def shared_harness(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SkyPilotHarness]:
    """A harness for many observations, each of which is rolled back."""
    folder = tmp_path_factory.mktemp("shared")
    engine = open_database(f"sqlite:///{folder / 'holdfast.db'}")
    yield harness_with_running_job(engine, folder)
    engine.dispose()


@contextmanager
def rolled_back(harness: SkyPilotHarness) -> Iterator[None]:
    """Roll back all writes to the launch store."""
    with closing(sqlite3.connect(":memory:")) as kept, harness.book._engine.connect() as connection:
        book = connection.connection.driver_connection
        book.backup(kept)
        try:
            yield
        finally:
            kept.backup(book)


def concluded(harness: SkyPilotHarness, tampering: Tampering) -> LaunchStatus | None:
    """Observe once and roll back; return the status, or None if unknown.

    Observations have no effects.
    """
    posts = len(harness.server.posts)
    status: LaunchStatus | None = None

    with rolled_back(harness):
        try:
            seen = do(harness.replica(tampering).observe("job-1"))
        except LauncherUnreachable as unknown:
            result = unknown.detail
        else:
            result, status = repr(seen), seen.status

    assert CANARY not in result
    assert not ACTS & {path for path, _ in harness.server.posts[posts:]}
    return status


def paths_of(value: Any) -> list[tuple[Any, ...]]:
    """All paths to values within a JSON value."""
    found: list[tuple[Any, ...]] = [()]
    inner: Any = ()
    if isinstance(value, dict):
        inner = value.items()
    elif isinstance(value, list):
        inner = enumerate(value)
    for key, item in inner:
        found += [(key, *rest) for rest in paths_of(item)]
    return found


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """Return a copy with `new` at a path; with Ellipsis, without the value there."""
    if not path:
        return None if new is ... else new
    copy = dict(value) if isinstance(value, dict) else list(value)
    key, *rest = path
    if not rest and new is ...:
        del copy[key]
    else:
        copy[key] = changed(copy[key], tuple(rest), new)
    return copy


@settings(max_examples=repeat_count(40, 400))
@given(data=st.data(), where=st.sampled_from(READS))
def test_corrupted_json_is_parsed_or_rejected_without_effect(
    shared_harness: SkyPilotHarness, data: st.DataObject, where: str
) -> None:
    tampering = Tampering(shared_harness.line)

    def change(path: str, value: Any) -> Any:
        if path != where:
            return value
        target = data.draw(st.sampled_from(paths_of(value)))
        return changed(value, target, data.draw(st.sampled_from([..., *ODD_VALUES])))

    tampering.change = change

    assert concluded(shared_harness, tampering) in CONCLUSIONS


@settings(max_examples=repeat_count(25, 200))
@given(data=st.data(), where=st.sampled_from([*READS, *("POST " + path for path in READS[2:])]))
def test_faulty_http_reply_is_parsed_or_rejected_without_effect(
    shared_harness: SkyPilotHarness, data: st.DataObject, where: str
) -> None:
    tampering = Tampering(shared_harness.line)

    def change(path: str, reply: httpx2.Response) -> httpx2.Response:
        if path != where:
            return reply
        deep = httpx2.Response(200, content=b"[" * 100_000)
        moved = httpx2.Response(302, headers={"Location": "http://elsewhere"})
        number = data.draw(st.integers(0, len(reply.content)))
        cut = httpx2.Response(reply.status_code, content=reply.content[:number], headers=reply.headers)  # fmt: skip
        odd = httpx2.Response(200, content=b"null", headers={"X-Skypilot-Request-ID": "x" * 100})
        code = httpx2.Response(data.draw(st.integers(300, 599)), text="what")
        return data.draw(st.sampled_from([*faulty_responses(reply), deep, moved, cut, odd, code]))

    tampering.change_reply = change

    assert concluded(shared_harness, tampering) in CONCLUSIONS


@pytest.mark.parametrize("version", ["0.15.0", "0.13.9", "1.0.0", "", "0.14"])
def test_unsupported_version_blocks_launches_but_not_observation(
    harness: SkyPilotHarness, version: str
) -> None:
    harness.server.version = version
    launched = len(harness.posted("/jobs/launch"))

    with pytest.raises(LauncherUnreachable, match=r"supports 0\.14\.x: running jobs continue"):
        harness.submit("other-1")

    assert harness.look().status is LaunchStatus.UP
    assert len(harness.posted("/jobs/launch")) == launched


@pytest.mark.parametrize("status", ["HIBERNATING", "running", None, 7])
def test_unknown_job_status_raises_launcher_unreachable(
    harness: SkyPilotHarness, status: Any
) -> None:
    harness.state.jobs[1].status = status

    with pytest.raises(LauncherUnreachable, match="unknown job status"):
        do(harness.replica().observe("job-1"))


@pytest.mark.parametrize("code", [401, 403])
def test_rejected_credentials_name_the_setting_and_keep_jobs(
    harness: SkyPilotHarness, code: int
) -> None:
    tampering = Tampering(harness.line)
    tampering.change_reply = lambda path, reply: httpx2.Response(code, json={"detail": "no"})
    launcher = harness.replica(tampering)

    for call in (launcher.observe("job-1"), launcher.submit(harness.launch("new-1"))):
        with pytest.raises(LauncherUnreachable, match="HOLDFAST_SKYPILOT_TOKEN"):
            do(call)
    assert not harness.jobs("new-1")


def test_secrets_are_absent_from_logs_observations_and_files(
    harness: SkyPilotHarness, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level("DEBUG")
    harness.state.policy = lambda raw: (_ for _ in ()).throw(ConnectionError("refused"))
    harness.submit("new-1")
    harness.state.delay_s = 0
    harness.pass_time(60)
    found = [repr(harness.look("new-1")), repr(harness.look())]
    task = harness.posted("/jobs/launch")[0]["task"]

    harness.book._engine.dispose()
    stored = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())

    assert f"{CANARY}-user" in task
    assert CANARY not in caplog.text + "".join(found)
    assert CANARY.encode() not in stored
    assert "5" * 32 not in "".join(found) + caplog.text, "the secret of the gate's address"
    assert repr(harness.launch("new-1")).count(f"{CANARY}-user") == 0
    assert NAMES.job_name("job-1") in task

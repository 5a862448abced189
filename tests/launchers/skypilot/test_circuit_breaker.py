"""A SkyPilot server that takes every call and answers none: its silence is found out once, and not by each call."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import httpx2
import pytest
from holdfast.launchers.skypilot.api_client import MAX_CONCURRENT, SkyPilotClient, priority
from holdfast.launchers.skypilot.circuit_breaker import RETRY_S
from holdfast.launchers.skypilot.responses import Unanswered
from support.skypilot.launcher import do


@dataclass
class Frozen(httpx2.AsyncBaseTransport):
    """It answers no call to `silent`, and every other."""

    silent: str = "/"
    calls: list[str] = field(default_factory=list)
    patience: asyncio.Event | None = None
    """When a call without an answer is given up; None: soon."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.calls.append(request.url.path)
        if self.silent and request.url.path.startswith(self.silent):
            await (self.patience.wait() if self.patience else asyncio.sleep(0))
            raise httpx2.ReadTimeout("")
        return httpx2.Response(200, json={}, headers={"X-Skypilot-Request-ID": "r-1"})


async def _fails(door: SkyPilotClient) -> bool:
    try:
        await door.get("/api/status", {})
    except Unanswered:
        return True
    return False


def test_64_calls_wait_for_one_silence_together() -> None:
    line = Frozen()
    door = SkyPilotClient("http://sky", user="hf", transport=line, monotonic_s=lambda: 0.0)

    async def look() -> list[bool]:
        return await asyncio.gather(*(_fails(door) for _ in range(64)))

    assert all(do(look()))
    assert len(line.calls) == MAX_CONCURRENT + 1, "one question for all the others"


def test_a_silent_server_is_asked_again_after_a_while() -> None:
    line, now_s = Frozen(), [0.0]
    door = SkyPilotClient("http://sky", user="hf", transport=line, monotonic_s=lambda: now_s[0])
    found = [do(_fails(door)) for _ in range(3)]
    calls = len(line.calls)

    now_s[0] = RETRY_S
    found.append(do(_fails(door)))
    line.silent = ""
    found.append(do(_fails(door)))
    now_s[0] = 2 * RETRY_S
    found.append(do(_fails(door)))

    assert found == [True, True, True, True, True, False]
    assert (calls, line.calls[2:]) == (2, ["/api/health", "/api/health", "/api/status"])


def test_one_late_answer_is_no_silence() -> None:
    line = Frozen(silent="/api/get")
    door = SkyPilotClient("http://sky", user="hf", transport=line)

    with pytest.raises(Unanswered):
        do(door.fetch_result("r-1"))

    assert not do(_fails(door))


def test_a_cancel_goes_ahead_of_looks() -> None:
    line = Frozen(silent="/api/status")
    door = SkyPilotClient("http://sky", user="hf", transport=line)

    async def cancel() -> str:
        line.patience = asyncio.Event()
        looks = [asyncio.create_task(_fails(door)) for _ in range(64)]
        for _ in range(MAX_CONCURRENT * 10):
            await asyncio.sleep(0)
        assert len(line.calls) == MAX_CONCURRENT
        with priority():
            taken = await door.submit("/jobs/cancel", {"job_ids": [1]})
        line.patience.set()
        await asyncio.gather(*looks)
        return taken

    assert do(cancel()) == "r-1"

"""A circuit breaker for an unresponsive SkyPilot server: one probe instead of each request."""

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
class UnresponsiveTransport(httpx2.AsyncBaseTransport):
    """A transport that never answers requests to `silent`."""

    silent: str = "/"
    calls: list[str] = field(default_factory=list)
    timeout: asyncio.Event | None = None
    """When an unanswered request times out; None: soon."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        self.calls.append(request.url.path)
        if self.silent and request.url.path.startswith(self.silent):
            await (self.timeout.wait() if self.timeout else asyncio.sleep(0))
            raise httpx2.ReadTimeout("")
        return httpx2.Response(200, json={}, headers={"X-Skypilot-Request-ID": "r-1"})


async def _fails(client: SkyPilotClient) -> bool:
    try:
        await client.get("/api/status", {})
    except Unanswered:
        return True
    return False


def test_concurrent_requests_share_one_timeout() -> None:
    transport = UnresponsiveTransport()
    client = SkyPilotClient("http://sky", user="hf", transport=transport, monotonic_s=lambda: 0.0)

    async def request_all() -> list[bool]:
        return await asyncio.gather(*(_fails(client) for _ in range(64)))

    assert all(do(request_all()))
    assert len(transport.calls) == MAX_CONCURRENT + 1, "one probe for all requests"


def test_unresponsive_server_is_probed_again_later() -> None:
    transport, now_s = UnresponsiveTransport(), [0.0]
    client = SkyPilotClient(
        "http://sky", user="hf", transport=transport, monotonic_s=lambda: now_s[0]
    )
    found = [do(_fails(client)) for _ in range(3)]
    calls = len(transport.calls)

    now_s[0] = RETRY_S
    found.append(do(_fails(client)))
    transport.silent = ""
    found.append(do(_fails(client)))
    now_s[0] = 2 * RETRY_S
    found.append(do(_fails(client)))

    assert found == [True, True, True, True, True, False]
    assert (calls, transport.calls[2:]) == (2, ["/api/health", "/api/health", "/api/status"])


def test_one_timeout_does_not_open_the_breaker() -> None:
    transport = UnresponsiveTransport(silent="/api/get")
    client = SkyPilotClient("http://sky", user="hf", transport=transport)

    with pytest.raises(Unanswered):
        do(client.fetch_result("r-1"))

    assert not do(_fails(client))


def test_cancel_takes_precedence_over_observations() -> None:
    transport = UnresponsiveTransport(silent="/api/status")
    client = SkyPilotClient("http://sky", user="hf", transport=transport)

    async def cancel() -> str:
        transport.timeout = asyncio.Event()
        requests = [asyncio.create_task(_fails(client)) for _ in range(64)]
        for _ in range(MAX_CONCURRENT * 10):
            await asyncio.sleep(0)
        assert len(transport.calls) == MAX_CONCURRENT
        with priority():
            request_id = await client.submit("/jobs/cancel", {"job_ids": [1]})
        transport.timeout.set()
        await asyncio.gather(*requests)
        return request_id

    assert do(cancel()) == "r-1"

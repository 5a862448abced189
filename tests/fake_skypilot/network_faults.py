"""A transport to the fake server that loses requests and responses or falsifies responses."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import httpx2

from fake_skypilot.server import Server


async def _no_wait() -> None:
    return


@dataclass
class FaultyTransport(httpx2.AsyncBaseTransport):
    """A transport to a server in this process."""

    server: Server
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    bad: float = 0.0
    """Probability of a fault at each of several moments of a request."""
    dark: bool = False
    """Whether the server is unreachable."""
    wait: Callable[[], Awaitable[None]] = _no_wait
    """Awaited before a request arrives, and before its response does."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        await self.wait()
        if self.dark or self._fails():
            raise httpx2.ConnectError("connection refused")
        answer = self.server.answer(request)
        if self._fails():
            self.server.answer(request)  # Repeated by a proxy.
        await self.wait()
        if self.dark or self._fails():
            raise httpx2.ReadTimeout("the reply was lost")
        if self._fails():
            return self.rng.choice(faulty_responses(answer))
        return answer

    def _fails(self) -> bool:
        return self.rng.random() < self.bad


def faulty_responses(answer: httpx2.Response) -> list[httpx2.Response]:
    """Responses of a failing server or of a proxy."""
    truncated = answer.content[: len(answer.content) // 2]
    return [
        httpx2.Response(500, text="Internal Server Error"),
        httpx2.Response(502, text="<html>Bad Gateway</html>"),
        httpx2.Response(503, json={"detail": "Server is shutting down"}),
        httpx2.Response(429, json={"detail": "slow down"}),
        httpx2.Response(200, content=truncated),
        httpx2.Response(200, content=b""),
        httpx2.Response(200, json=[]),
        httpx2.Response(401, json={"detail": "no"}),
    ]

"""The way to the stand-in: calls that never arrive, replies that are lost, and answers that are no answers."""

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
    """Chance that something goes wrong with a call, at each of three moments."""
    dark: bool = False
    """Whether nothing arrives at all."""
    wait: Callable[[], Awaitable[None]] = _no_wait
    """Is waited for before a call arrives, and before its answer does."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        await request.aread()
        await self.wait()
        if self.dark or self._strikes():
            raise httpx2.ConnectError("connection refused")
        answer = self.server.answer(request)
        if self._strikes():
            self.server.answer(request)  # By a proxy that tries again.
        await self.wait()
        if self.dark or self._strikes():
            raise httpx2.ReadTimeout("the reply was lost")
        if self._strikes():
            return self.rng.choice(bad_answers(answer))
        return answer

    def _strikes(self) -> bool:
        return self.rng.random() < self.bad


def bad_answers(answer: httpx2.Response) -> list[httpx2.Response]:
    """What a server in trouble, or a proxy before it, says instead."""
    half = answer.content[: len(answer.content) // 2]
    return [
        httpx2.Response(500, text="Internal Server Error"),
        httpx2.Response(502, text="<html>Bad Gateway</html>"),
        httpx2.Response(503, json={"detail": "Server is shutting down"}),
        httpx2.Response(429, json={"detail": "slow down"}),
        httpx2.Response(200, content=half),
        httpx2.Response(200, content=b""),
        httpx2.Response(200, json=[]),
        httpx2.Response(401, json={"detail": "no"}),
    ]

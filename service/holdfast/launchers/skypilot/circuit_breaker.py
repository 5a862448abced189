"""Circuit breaker: while a server is silent, calls fail at once instead of queueing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.launchers.skypilot.responses import Unanswered

RETRY_S: Final = 5.0
"""Seconds during which calls fail at once before the server is probed again.
A lower value probes a dead server more often; a higher value detects its recovery later."""


class CircuitBreaker:
    """Circuit breaker of one server, opened by a failed probe.

    After a call without a response, one probe serves all waiting calls.
    """

    def __init__(
        self, url: str, answers: Callable[[], Awaitable[bool]], monotonic_s: Callable[[], float]
    ) -> None:
        self._url = url
        self._answers = answers
        self._monotonic_s = monotonic_s
        self._is_suspect = False
        self._silent_at_s: float | None = None
        """When the server was last found silent; None while it responds."""
        self._probe_lock = asyncio.Lock()

    def suspect(self) -> None:
        """Make the next call probe the server: a single response may just be late."""
        self._is_suspect = True

    async def check(self) -> None:
        """Let a call pass.

        Raises:
            Unanswered: the server is silent.
        """
        if self._is_suspect and not (self._is_silent and self._probe_lock.locked()):
            async with self._probe_lock:
                await self._probe()
        if self._is_suspect:
            raise Unanswered(
                f"SkyPilot's API server at {self._url} does not respond; retrying every {RETRY_S:.0f} s"
            )

    @property
    def _is_silent(self) -> bool:
        return self._silent_at_s is not None

    async def _probe(self) -> None:
        if not self._is_suspect:
            return
        if self._silent_at_s is not None and self._monotonic_s() - self._silent_at_s < RETRY_S:
            return
        if await self._answers():
            self._is_suspect, self._silent_at_s = False, None
        else:
            self._silent_at_s = self._monotonic_s()

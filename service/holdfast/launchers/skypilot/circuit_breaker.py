"""A circuit breaker: once a server is silent, calls fail at once instead of waiting in line for the same silence."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

from holdfast.launchers.skypilot.responses import Unanswered

AGAIN_S: Final = 5.0
"""How long calls fail at once before the server is asked again. A lower value asks a dead server more often; a higher value
notices later that it is back."""


class CircuitBreaker:
    """Whether one server is silent: suspected after a call without an answer, then asked once for all calls that wait."""

    def __init__(
        self, url: str, answers: Callable[[], Awaitable[bool]], monotonic_s: Callable[[], float]
    ) -> None:
        self._url = url
        self._answers = answers
        self._monotonic_s = monotonic_s
        self._is_suspect = False
        self._asked_s: float | None = None
        """When the server was silent last; None while it answers."""
        self._asking = asyncio.Lock()

    def suspect(self) -> None:
        """Have the next call ask whether the server answers at all: one answer may come late by itself."""
        self._is_suspect = True

    async def check(self) -> None:
        """Let a call pass.

        Raises:
            Unanswered: the server is silent.
        """
        if self._is_suspect and not (self._is_silent and self._asking.locked()):
            async with self._asking:
                await self._ask()
        if self._is_suspect:
            raise Unanswered(
                f"SkyPilot's API server at {self._url} is silent; it is asked again every {AGAIN_S:.0f} s"
            )

    @property
    def _is_silent(self) -> bool:
        return self._asked_s is not None

    async def _ask(self) -> None:
        if not self._is_suspect:
            return
        if self._asked_s is not None and self._monotonic_s() - self._asked_s < AGAIN_S:
            return
        if await self._answers():
            self._is_suspect, self._asked_s = False, None
        else:
            self._asked_s = self._monotonic_s()

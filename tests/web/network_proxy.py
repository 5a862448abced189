"""A proxy between browser and application that delays or drops requests and responses."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Handler = Callable[[Callable[[Any], Awaitable[None]], Any], Awaitable[None]]
"""Handles a request: receives a function that answers into a `send`, and the real `send`."""


@dataclass
class Held:
    """Requests that are on hold."""

    _waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[bool]]] = field(
        default_factory=list
    )
    _is_over: bool = False

    async def wait(self) -> bool:
        """Wait for the decision; return whether the request may continue."""
        if self._is_over:
            return True
        loop = asyncio.get_running_loop()
        decision: asyncio.Future[bool] = loop.create_future()
        self._waiting.append((loop, decision))
        return await decision

    def release(self) -> None:
        """Answer all held and all later requests."""
        self._is_over = True
        self._decide(is_released=True)

    def drop(self) -> None:
        """Drop the requests that are on hold now."""
        self._decide(is_released=False)

    def _decide(self, *, is_released: bool) -> None:
        waiting, self._waiting = self._waiting, []
        for loop, decision in waiting:
            loop.call_soon_threadsafe(decision.set_result, is_released)


class NetworkProxy:
    """An application behind a faulty network.

    Requests are selected by a pattern of `GET /path?query`; the last matching rule applies.
    """

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        self._rules: list[tuple[re.Pattern[str], Handler]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def answer(to: Any) -> None:
            await self._app(scope, receive, to)

        for pattern, handler in reversed(self._rules):
            if scope["type"] == "http" and pattern.search(_request_line(scope)):
                await handler(answer, send)
                return
        await answer(send)

    @contextmanager
    def holding(self, pattern: str) -> Iterator[Held]:
        """Hold matching requests, until the end of the block at the latest."""
        held = Held()

        async def wait(answer: Callable[[Any], Awaitable[None]], send: Any) -> None:
            await (answer(send) if await held.wait() else _disconnect(send))

        with self._rule(pattern, wait):
            yield held
            held.release()

    @contextmanager
    def cut(self, pattern: str) -> Iterator[None]:
        """Drop matching requests."""

        async def cut(_answer: Any, send: Any) -> None:
            await _disconnect(send)

        with self._rule(pattern, cut):
            yield

    @contextmanager
    def losing_responses(self, pattern: str) -> Iterator[None]:
        """Deliver matching requests and drop their responses."""

        async def lose(answer: Callable[[Any], Awaitable[None]], send: Any) -> None:
            async def discard(_message: Any) -> None:
                pass

            await answer(discard)
            await _disconnect(send)

        with self._rule(pattern, lose):
            yield

    @contextmanager
    def after(self, pattern: str, happens: Callable[[], None]) -> Iterator[None]:
        """Call `happens` before each matching request is delivered."""

        async def run_before(answer: Callable[[Any], Awaitable[None]], send: Any) -> None:
            await asyncio.to_thread(happens)
            await answer(send)

        with self._rule(pattern, run_before):
            yield

    @contextmanager
    def _rule(self, pattern: str, handler: Handler) -> Iterator[None]:
        rule = re.compile(pattern), handler
        self._rules.append(rule)
        try:
            yield
        finally:
            self._rules.remove(rule)


def _request_line(scope: Any) -> str:
    query = scope["query_string"].decode()
    return f"{scope['method']} {scope['path']}" + (f"?{query}" if query else "")


async def _disconnect(send: Any) -> None:
    """Close the connection without a response, which only the server's end can do."""
    cycle = send.__self__
    cycle.transport.abort()
    while not cycle.disconnected:  # noqa: ASYNC110 - no event to wait for
        await asyncio.sleep(0.01)

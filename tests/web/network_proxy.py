"""The road between the browser and the application, on which requests wait and answers are lost, as networks have it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

Fate = Callable[[Callable[[Any], Awaitable[None]], Any], Awaitable[None]]
"""What becomes of a request, from what answers it into a `send`, and the real `send`."""


@dataclass
class Held:
    """Requests that wait."""

    _waiting: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[bool]]] = field(
        default_factory=list
    )
    _is_over: bool = False

    async def wait(self) -> bool:
        """Whether to continue, once that is decided."""
        if self._is_over:
            return True
        loop = asyncio.get_running_loop()
        decided: asyncio.Future[bool] = loop.create_future()
        self._waiting.append((loop, decided))
        return await decided

    def let_go(self) -> None:
        """Have all of them answered, and those that come from now on."""
        self._is_over = True
        self._decide(is_to_go_on=True)

    def cut_off(self) -> None:
        """Have no one answer those that wait by now."""
        self._decide(is_to_go_on=False)

    def _decide(self, *, is_to_go_on: bool) -> None:
        waiting, self._waiting = self._waiting, []
        for loop, decided in waiting:
            loop.call_soon_threadsafe(decided.set_result, is_to_go_on)


class NetworkProxy:
    """An application behind a faulty network. Requests are selected by a pattern of `GET /path?query`; the last rule applies."""

    def __init__(self, app: Callable[..., Awaitable[None]]) -> None:
        self._app = app
        self._fates: list[tuple[re.Pattern[str], Fate]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        async def answer(to: Any) -> None:
            await self._app(scope, receive, to)

        for pattern, fate in reversed(self._fates):
            if scope["type"] == "http" and pattern.search(_asked(scope)):
                await fate(answer, send)
                return
        await answer(send)

    @contextmanager
    def holding(self, pattern: str) -> Iterator[Held]:
        """Such requests wait, until the end of the block at the latest."""
        held = Held()

        async def wait(answer: Callable[[Any], Awaitable[None]], send: Any) -> None:
            await (answer(send) if await held.wait() else _hang_up(send))

        with self._with(pattern, wait):
            yield held
            held.let_go()

    @contextmanager
    def cut(self, pattern: str) -> Iterator[None]:
        """Such requests never arrive."""

        async def cut(_answer: Any, send: Any) -> None:
            await _hang_up(send)

        with self._with(pattern, cut):
            yield

    @contextmanager
    def losing_answers(self, pattern: str) -> Iterator[None]:
        """Such requests arrive, and their answers do not."""

        async def lose(answer: Callable[[Any], Awaitable[None]], send: Any) -> None:
            async def nobody(_message: Any) -> None:
                pass

            await answer(nobody)
            await _hang_up(send)

        with self._with(pattern, lose):
            yield

    @contextmanager
    def after(self, pattern: str, happens: Callable[[], None]) -> Iterator[None]:
        """Something happens each time before such a request arrives."""

        async def come_late(answer: Callable[[Any], Awaitable[None]], send: Any) -> None:
            await asyncio.to_thread(happens)
            await answer(send)

        with self._with(pattern, come_late):
            yield

    @contextmanager
    def _with(self, pattern: str, fate: Fate) -> Iterator[None]:
        here = re.compile(pattern), fate
        self._fates.append(here)
        try:
            yield
        finally:
            self._fates.remove(here)


def _asked(scope: Any) -> str:
    query = scope["query_string"].decode()
    return f"{scope['method']} {scope['path']}" + (f"?{query}" if query else "")


async def _hang_up(send: Any) -> None:
    """End the connection, silently. Only the server's own end of it can do that."""
    cycle = send.__self__
    cycle.transport.abort()
    while not cycle.disconnected:  # noqa: ASYNC110 - it has no event
        await asyncio.sleep(0.01)

"""The door to a SkyPilot API server: plain HTTP, one try for each call.

Every POST of SkyPilot answers at once with the id of a request that it queues; `GET /api/get` waits for its result.
Nothing is tried again here. A second POST of a launch may be a second cluster, and what a failed read means is for
the next look to find out. SkyPilot's own client repeats itself for minutes, which is why it is not used.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import aclosing, asynccontextmanager, contextmanager
from contextvars import ContextVar
from datetime import datetime
from pathlib import Path
from typing import Any, Final

import httpx2

from holdfast.errors import LauncherUnreachable
from holdfast.launchers.skypilot import responses
from holdfast.launchers.skypilot.circuit_breaker import CircuitBreaker
from holdfast.launchers.skypilot.responses import Asked, RequestFailed, RequestGone, Unanswered
from holdfast.launchers.skypilot.version import VERSION

CONNECT_S: Final = 10.0
ANSWER_S: Final = 30.0
"""How long one answer may take. Shorter gives up on a server under load; longer holds up the jobs behind it."""
AT_ONCE: Final = 8
"""Calls side by side. A SkyPilot server runs each in a process of its own, and has few."""
AHEAD: Final = 2
"""Calls beside these that launch or cancel, so that they do not wait behind looks."""
HEALTH_S: Final = 5.0
"""How long a server that did not answer in time is given to say that it is there."""
PIECE_BYTES: Final = 1024 * 1024
"""Of what is written to a file while it comes. Smaller: more turns of threads. Bigger: more memory."""

_IS_AHEAD: ContextVar[bool] = ContextVar("is_ahead", default=False)
_API_VERSION: Final = "62"
"""The version of the API of that SkyPilot."""


@contextmanager
def ahead() -> Iterator[None]:
    """Let the calls made in here wait in a line of their own."""
    before = _IS_AHEAD.set(True)
    try:
        yield
    finally:
        _IS_AHEAD.reset(before)


class SkyPilotClient:
    """One API server, spoken to as one user. It belongs to the event loop in which it is first used."""

    def __init__(
        self,
        url: str,
        *,
        user: str,
        token: str | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        address = httpx2.URL(url.rstrip("/"))
        self._url = str(address.copy_with(userinfo=b""))
        self._user = user
        headers = {"X-SkyPilot-API-Version": _API_VERSION, "X-SkyPilot-Version": VERSION}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._client = httpx2.AsyncClient(
            base_url=self._url,
            headers=headers,
            auth=(address.username, address.password) if address.userinfo else None,
            timeout=httpx2.Timeout(ANSWER_S, connect=CONNECT_S),
            transport=transport,
            trust_env=False,
        )
        self.date: datetime | None = None
        """The server's clock as its newest answer told it, to a second; None before one did."""
        self._turns = {False: asyncio.Semaphore(AT_ONCE), True: asyncio.Semaphore(AHEAD)}
        """By whether a call is one of those that go ahead."""
        self._breaker = CircuitBreaker(self._url, self._answers, monotonic_s)

    @property
    def url(self) -> str:
        """Where the server is, without a name and a password that may stand in its address."""
        return self._url

    @property
    def user(self) -> str:
        """The user hash under which jobs are submitted, unless the server has authentication."""
        return self._user

    async def health(self) -> Mapping[str, Any]:
        """What the server says of itself.

        Raises:
            LauncherUnreachable: nothing that can be understood.
        """
        return await self.get("/api/health", {})

    async def ask(self, path: str, body: Mapping[str, Any] | None) -> str:
        """The id of a request that SkyPilot has taken. Where `body` is None, it is one that is asked with GET.

        Raises:
            LauncherUnreachable: nobody knows whether it has.
        """
        request = self._get(path) if body is None else self._post(path, body)
        return responses.request_id(responses.sound(await self._send(request)))

    async def launch(self, body: Mapping[str, Any]) -> str:
        """The id of a launch request that SkyPilot has taken.

        Raises:
            LauncherUnreachable: nobody knows whether it has.
            RequestFailed: it was refused outright.
        """
        reply = await self._send(self._post("/jobs/launch", body))
        return responses.request_id(responses.granted(reply))

    async def validate(self, body: Mapping[str, Any]) -> None:
        """Have SkyPilot look at a task, and ask its policy about it.

        Raises:
            LauncherUnreachable: nobody knows whether it has.
            RequestFailed: it was refused.
        """
        responses.granted(await self._send(self._post("/validate", body)))

    async def answer(self, request_id: str) -> Any:
        """The result of a request, once there is one.

        Raises:
            Unanswered: none in time; it can be asked for again.
            LauncherUnreachable: none that can be understood.
            RequestFailed: the request failed.
            RequestGone: SkyPilot does not know it.
        """
        reply = await self._send(self._get("/api/get", {"request_id": request_id}))
        return responses.result(reply, request_id)

    async def read(self, path: str, body: Mapping[str, Any] | None) -> Any:
        """The result of a request that changes nothing; `body` as for `ask`.

        Raises:
            LauncherUnreachable: it could not be read.
        """
        return await self.result(await self.ask(path, body), path)

    async def result(self, request_id: str, path: str) -> Any:
        """The same of a request that was made before, at `path`.

        Raises:
            Unanswered: there is none yet.
            LauncherUnreachable: it could not be read.
        """
        try:
            return await self.answer(request_id)
        except (RequestFailed, RequestGone) as error:
            raise LauncherUnreachable(f"SkyPilot failed at {path}: {error.detail}") from error

    async def asked(self, request_id: str) -> list[Asked]:
        """The request of this id; empty if SkyPilot does not know it.

        Raises:
            LauncherUnreachable: it could not be read.
        """
        return await self._asked({"all_status": "true", "request_ids": request_id})

    async def under_way(self) -> list[Asked]:
        """All requests that have not come to an end.

        Raises:
            LauncherUnreachable: they could not be read.
        """
        return await self._asked({})

    async def newest_asked(self, limit: int = 200) -> list[Asked]:
        """The newest requests, over or not.

        Raises:
            LauncherUnreachable: they could not be read.
        """
        return await self._asked({"all_status": "true", "limit": str(limit)})

    async def _asked(self, params: Mapping[str, str]) -> list[Asked]:
        return responses.asked(responses.sound(await self._send(self._get("/api/status", params))))

    async def save(self, path: str, body: Mapping[str, Any], file: Path) -> None:
        """What a streaming call says until its end, written to a file.

        Raises:
            LauncherUnreachable: it broke off.
            OSError: the file cannot be written.
        """
        async with self._exchange(self._post(path, body)) as reply:
            if reply.is_error:
                await reply.aread()
            responses.sound(reply)
            with file.open("wb") as into:
                async for piece in reply.aiter_bytes(PIECE_BYTES):
                    await asyncio.to_thread(into.write, piece)

    async def send_chunk(self, path: str, params: Mapping[str, str], chunk: bytes) -> str:
        """The status that SkyPilot gives to an upload after one more chunk of it.

        Raises:
            LauncherUnreachable: nobody knows whether it arrived.
        """
        request = self._client.build_request("POST", path, params=params, content=chunk)
        reply = responses.sound(await self._send(request))
        return str(responses.mapping(reply, "an upload").get("status", ""))

    async def get(self, path: str, params: Mapping[str, str]) -> Mapping[str, Any]:
        """The JSON object at a path.

        Raises:
            LauncherUnreachable: it could not be read.
        """
        return responses.mapping(responses.sound(await self._send(self._get(path, params))), path)

    def _get(self, path: str, params: Mapping[str, str] | None = None) -> httpx2.Request:
        return self._client.build_request("GET", path, params=params)

    def _post(self, path: str, body: Mapping[str, Any]) -> httpx2.Request:
        """A POST with what every body holds; SkyPilot's own client would add the credentials of its environment."""
        common = {
            "env_vars": {"SKYPILOT_USER_ID": self._user, "SKYPILOT_USER": "holdfast"},
            "entrypoint": "holdfast",
            "entrypoint_command": "holdfast",
            "using_remote_api_server": True,
            "override_skypilot_config": {},
        }
        return self._client.build_request("POST", path, json={**common, **body})

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """A whole answer, whatever it says."""
        async with self._exchange(request) as reply:
            await reply.aread()
        return reply

    @asynccontextmanager
    async def _exchange(self, request: httpx2.Request) -> AsyncIterator[httpx2.Response]:
        """An answer, of which no more than the head has come."""
        try:
            async with self._turns[_IS_AHEAD.get()]:
                await self._breaker.check()
                async with aclosing(await self._client.send(request, stream=True)) as reply:
                    self.date = responses.date(reply) or self.date
                    yield reply
        except httpx2.HTTPError as error:
            if isinstance(error, httpx2.TimeoutException):
                self._breaker.suspect()
            words = str(error) or type(error).__name__
            raise Unanswered(
                f"SkyPilot's API server at {self._url} does not answer ({words})"
            ) from error

    async def _answers(self) -> bool:
        """Whether the server answers at all, whatever it says; a refused connection needs no waiting either."""
        request = self._client.build_request("GET", "/api/health", timeout=HEALTH_S)
        try:
            await self._client.send(request)
        except httpx2.TimeoutException:
            return False
        except httpx2.HTTPError:
            pass
        return True

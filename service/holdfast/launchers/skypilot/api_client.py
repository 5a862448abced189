"""Client for a SkyPilot API server: plain HTTP, one attempt per call.

Each POST returns the id of a queued request at once; `GET /api/get` waits for its result. Calls are not retried here: a
second POST of a launch could create a second cluster, and the next observation resolves a failed read. SkyPilot's own
client is not used because it retries for minutes.
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
from holdfast.launchers.skypilot.responses import (
    ApiRequest,
    RequestFailed,
    RequestNotFound,
    Unanswered,
)
from holdfast.launchers.skypilot.version import VERSION

CONNECT_S: Final = 10.0
READ_S: Final = 30.0
"""Seconds allowed for one response.
A lower value fails on a server under load; a higher value delays the jobs behind it."""
MAX_CONCURRENT: Final = 8
"""Limit of concurrent calls. A SkyPilot server runs each in one of a few processes."""
MAX_PRIORITY: Final = 2
"""Additional slots for calls that launch or cancel, so that they do not queue behind reads."""
HEALTH_S: Final = 5.0
"""Seconds a server that timed out has to answer a health check."""
CHUNK_BYTES: Final = 1024 * 1024
"""Size of the pieces in which a download is written.
A lower value adds thread switches; a higher value uses more memory."""

_IS_PRIORITY: ContextVar[bool] = ContextVar("is_ahead", default=False)
_API_VERSION: Final = "62"
"""API version of the supported SkyPilot."""


@contextmanager
def priority() -> Iterator[None]:
    """Use the slots reserved for launches and cancels for the calls inside."""
    before = _IS_PRIORITY.set(True)
    try:
        yield
    finally:
        _IS_PRIORITY.reset(before)


class SkyPilotClient:
    """Client of one API server with one user, bound to the event loop of its first use."""

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
            timeout=httpx2.Timeout(READ_S, connect=CONNECT_S),
            transport=transport,
            trust_env=False,
        )
        self.date: datetime | None = None
        """The server's clock in its newest response, to the second; None before the first one."""
        self._slots = {
            False: asyncio.Semaphore(MAX_CONCURRENT),
            True: asyncio.Semaphore(MAX_PRIORITY),
        }
        """Slots, by whether a call has priority."""
        self._circuit_breaker = CircuitBreaker(self._url, self._is_responding, monotonic_s)

    @property
    def url(self) -> str:
        """Address of the server without user name and password."""
        return self._url

    @property
    def user(self) -> str:
        """User hash under which jobs are submitted, unless the server has authentication."""
        return self._user

    async def health(self) -> Mapping[str, Any]:
        """Return the server's health report.

        Raises:
            LauncherUnreachable: no response, or one that cannot be interpreted.
        """
        return await self.get("/api/health", {})

    async def submit(self, path: str, body: Mapping[str, Any] | None) -> str:
        """Queue a request and return its id. Uses GET if `body` is None.

        Raises:
            LauncherUnreachable: it is unknown whether SkyPilot accepted the request.
        """
        request = self._get(path) if body is None else self._post(path, body)
        return responses.request_id(responses.require_success(await self._send(request)))

    async def launch(self, body: Mapping[str, Any]) -> str:
        """Queue a launch request and return its id.

        Raises:
            LauncherUnreachable: it is unknown whether SkyPilot accepted the request.
            RequestFailed: SkyPilot refused the request.
        """
        reply = await self._send(self._post("/jobs/launch", body))
        return responses.request_id(responses.require_accepted(reply))

    async def validate(self, body: Mapping[str, Any]) -> None:
        """Have SkyPilot validate a task, including its admission policy.

        Raises:
            LauncherUnreachable: the result is unknown.
            RequestFailed: SkyPilot refused the task.
        """
        responses.require_accepted(await self._send(self._post("/validate", body)))

    async def fetch_result(self, request_id: str) -> Any:
        """Wait for the result of a request.

        Raises:
            Unanswered: no result in time; it can be fetched again.
            LauncherUnreachable: the response cannot be interpreted.
            RequestFailed: the request failed.
            RequestNotFound: SkyPilot does not know the request.
        """
        reply = await self._send(self._get("/api/get", {"request_id": request_id}))
        return responses.result(reply, request_id)

    async def read(self, path: str, body: Mapping[str, Any] | None) -> Any:
        """Return the result of a read-only request; `body` as for `submit`.

        Raises:
            LauncherUnreachable: the read failed.
        """
        return await self.result(await self.submit(path, body), path)

    async def result(self, request_id: str, path: str) -> Any:
        """Return the result of a read-only request submitted before, at `path`.

        Raises:
            Unanswered: there is no result yet.
            LauncherUnreachable: the read failed.
        """
        try:
            return await self.fetch_result(request_id)
        except (RequestFailed, RequestNotFound) as error:
            raise LauncherUnreachable(
                f"SkyPilot's request {path} failed: {error.detail}"
            ) from error

    async def find_requests(self, request_id: str) -> list[ApiRequest]:
        """Find the request with this id; empty if SkyPilot does not know it.

        Raises:
            LauncherUnreachable: the read failed.
        """
        return await self._list_requests({"all_status": "true", "request_ids": request_id})

    async def list_pending(self) -> list[ApiRequest]:
        """List all unfinished requests.

        Raises:
            LauncherUnreachable: the read failed.
        """
        return await self._list_requests({})

    async def list_recent(self, limit: int = 200) -> list[ApiRequest]:
        """List the newest requests, finished or not.

        Raises:
            LauncherUnreachable: the read failed.
        """
        return await self._list_requests({"all_status": "true", "limit": str(limit)})

    async def _list_requests(self, params: Mapping[str, str]) -> list[ApiRequest]:
        return responses.request_list(
            responses.require_success(await self._send(self._get("/api/status", params)))
        )

    async def download(self, path: str, body: Mapping[str, Any], file: Path) -> None:
        """Write the full output of a streaming call to a file.

        Raises:
            LauncherUnreachable: the stream was interrupted.
            OSError: the file cannot be written.
        """
        async with self._exchange(self._post(path, body)) as reply:
            if reply.is_error:
                await reply.aread()
            responses.require_success(reply)
            with file.open("wb") as into:
                async for piece in reply.aiter_bytes(CHUNK_BYTES):
                    await asyncio.to_thread(into.write, piece)

    async def send_chunk(self, path: str, params: Mapping[str, str], chunk: bytes) -> str:
        """Send one more chunk of an upload and return SkyPilot's status of it.

        Raises:
            LauncherUnreachable: it is unknown whether the chunk arrived.
        """
        request = self._client.build_request("POST", path, params=params, content=chunk)
        reply = responses.require_success(await self._send(request))
        return str(responses.mapping(reply, "an upload").get("status", ""))

    async def get(self, path: str, params: Mapping[str, str]) -> Mapping[str, Any]:
        """Return the JSON object at a path.

        Raises:
            LauncherUnreachable: the read failed.
        """
        return responses.mapping(
            responses.require_success(await self._send(self._get(path, params))), path
        )

    def _get(self, path: str, params: Mapping[str, str] | None = None) -> httpx2.Request:
        return self._client.build_request("GET", path, params=params)

    def _post(self, path: str, body: Mapping[str, Any]) -> httpx2.Request:
        """Build a POST with the fields of every body.

        SkyPilot's own client would add credentials from its environment.
        """
        common = {
            "env_vars": {"SKYPILOT_USER_ID": self._user, "SKYPILOT_USER": "holdfast"},
            "entrypoint": "holdfast",
            "entrypoint_command": "holdfast",
            "using_remote_api_server": True,
            "override_skypilot_config": {},
        }
        return self._client.build_request("POST", path, json={**common, **body})

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        """Return a complete response of any status."""
        async with self._exchange(request) as reply:
            await reply.aread()
        return reply

    @asynccontextmanager
    async def _exchange(self, request: httpx2.Request) -> AsyncIterator[httpx2.Response]:
        """Yield a response of which only the headers have been read."""
        try:
            async with self._slots[_IS_PRIORITY.get()]:
                await self._circuit_breaker.check()
                async with aclosing(await self._client.send(request, stream=True)) as reply:
                    self.date = responses.date(reply) or self.date
                    yield reply
        except httpx2.HTTPError as error:
            if isinstance(error, httpx2.TimeoutException):
                self._circuit_breaker.suspect()
            words = str(error) or type(error).__name__
            raise Unanswered(
                f"SkyPilot's API server at {self._url} did not respond ({words})"
            ) from error

    async def _is_responding(self) -> bool:
        """Whether calls to the server end in time, with any response or a refused connection."""
        request = self._client.build_request("GET", "/api/health", timeout=HEALTH_S)
        try:
            await self._client.send(request)
        except httpx2.TimeoutException:
            return False
        except httpx2.HTTPError:
            pass
        return True

"""The door to a SkyPilot API server: plain HTTP, one try for each call.

Every POST of SkyPilot answers at once with the id of a request that it queues; `GET /api/get` waits for its result.
Nothing is tried again here. A second POST of a launch may be a second cluster, and what a failed read means is for
the next look to find out. SkyPilot's own client repeats itself for minutes, which is why it is not used.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final

import httpx2

from holdfast.errors import HoldfastError, LauncherUnreachable

CONNECT_S: Final = 10.0
ANSWER_S: Final = 30.0
"""How long one answer may take. Shorter gives up on a server under load; longer holds up the jobs behind it."""
LONGEST_ID: Final = 64
"""Of a request; SkyPilot's have 36 letters, and the database has room for so many."""
AT_ONCE: Final = 8
"""Calls side by side. A SkyPilot server runs each in a process of its own, and has few."""

_API_VERSION: Final = "62"
"""The version of SkyPilot 0.14.1, whose answers this package was written and measured against."""


class RequestFailed(HoldfastError):
    """SkyPilot has carried out a request, and it failed."""

    def __init__(self, kind: str, detail: str) -> None:
        self.kind = kind
        """Name of SkyPilot's exception."""
        super().__init__(detail)


class RequestGone(HoldfastError):
    """SkyPilot does not know this request any more."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One request, as SkyPilot lists it."""

    request_id: str
    name: str
    status: str
    body: Mapping[str, Any]

    @property
    def is_over(self) -> bool:
        """Whether it will change nothing any more."""
        return self.status in {"SUCCEEDED", "FAILED", "CANCELLED"}


class Door:
    """One API server, spoken to as one user."""

    def __init__(
        self,
        url: str,
        *,
        user: str,
        token: str | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._user = user
        headers = {"X-SkyPilot-API-Version": _API_VERSION, "X-SkyPilot-Version": "0.14.1"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._client = httpx2.AsyncClient(
            base_url=self._url,
            headers=headers,
            timeout=httpx2.Timeout(ANSWER_S, connect=CONNECT_S),
            transport=transport,
            trust_env=False,
        )
        self.date: datetime | None = None
        """The server's clock as its newest answer told it, to a second; None before one did."""
        self._turns: dict[asyncio.AbstractEventLoop, asyncio.Semaphore] = {}

    @property
    def url(self) -> str:
        """Where the server is."""
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
        reply = await self._send("GET", "/api/health")
        return _mapping(_json(reply), "health")

    async def ask(self, path: str, body: Mapping[str, Any] | None) -> str:
        """The id of a request that SkyPilot has taken. Where `body` is None, it is one that is asked with GET.

        Raises:
            LauncherUnreachable: nobody knows whether it has.
            RequestFailed: it was refused outright.
        """
        if body is None:
            reply = await self._send("GET", path)
        else:
            reply = await self._send("POST", path, body={**self._common(), **body})
        request_id = str(reply.headers.get("X-Skypilot-Request-ID", ""))
        if 0 < len(request_id) <= LONGEST_ID:
            return request_id
        raise LauncherUnreachable(f"SkyPilot answered {path} without the id of a request")

    async def call(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The answer to a POST that SkyPilot carries out at once instead of queueing it.

        Raises:
            LauncherUnreachable: nobody knows whether it has.
            RequestFailed: it was refused.
        """
        reply = await self._send("POST", path, body={**self._common(), **body})
        return {"text": reply.text}

    async def answer(self, request_id: str) -> Any:
        """The result of a request, once there is one.

        Raises:
            LauncherUnreachable: none in time, or none that can be understood.
            RequestFailed: the request failed.
            RequestGone: SkyPilot does not know it.
        """
        reply = await self._send("GET", "/api/get", params={"request_id": request_id})
        payload = _mapping(_json(reply), "a request")
        return _loaded(payload.get("return_value"), "the result of a request")

    async def read(self, path: str, body: Mapping[str, Any] | None) -> Any:
        """The result of a request that changes nothing; `body` as for `ask`.

        Raises:
            LauncherUnreachable: it could not be read.
        """
        try:
            return await self.answer(await self.ask(path, body))
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
        listed = _json(await self._send("GET", "/api/status", params=params))
        if not isinstance(listed, list):
            raise LauncherUnreachable(
                "SkyPilot listed its requests in a way that is not known here"
            )
        return [_asked(item) for item in listed]

    async def text(self, path: str, body: Mapping[str, Any]) -> bytes:
        """What a streaming call says until its end.

        Raises:
            LauncherUnreachable: it broke off.
        """
        reply = await self._send("POST", path, body={**self._common(), **body})
        return bytes(reply.content)

    async def send_chunk(self, path: str, params: Mapping[str, str], chunk: bytes) -> str:
        """The status that SkyPilot gives to an upload after one more chunk of it.

        Raises:
            LauncherUnreachable: nobody knows whether it arrived.
        """
        reply = await self._send("POST", path, params=params, content=chunk)
        return str(_mapping(_json(reply), "an upload").get("status", ""))

    async def get(self, path: str, params: Mapping[str, str]) -> Mapping[str, Any]:
        """The JSON object at a path.

        Raises:
            LauncherUnreachable: it could not be read.
        """
        return _mapping(_json(await self._send("GET", path, params=params)), path)

    def _common(self) -> dict[str, Any]:
        """What every body holds; SkyPilot's own client would add the credentials of its environment."""
        return {
            "env_vars": {"SKYPILOT_USER_ID": self._user, "SKYPILOT_USER": "holdfast"},
            "entrypoint": "holdfast",
            "entrypoint_command": "holdfast",
            "using_remote_api_server": True,
            "override_skypilot_config": {},
        }

    async def _send(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, Any] | None = None,
        params: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> httpx2.Response:
        try:
            async with self._turn():
                reply = await self._client.request(
                    method, path, json=body, params=params, content=content
                )
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            words = str(error) or type(error).__name__
            raise LauncherUnreachable(
                f"SkyPilot's API server at {self._url} does not answer ({words})"
            ) from error
        self.date = _date(reply) or self.date
        _check(reply, path)
        return reply

    def _turn(self) -> asyncio.Semaphore:
        """The queue before the server; one for each event loop, as those of asyncio belong to one."""
        return self._turns.setdefault(asyncio.get_running_loop(), asyncio.Semaphore(AT_ONCE))


def _check(reply: httpx2.Response, path: str) -> None:
    code = reply.status_code
    if code < 300:
        return
    detail = _detail(reply)
    if code == 404 and path == "/api/get":
        raise RequestGone(str(detail))
    if code in {401, 403}:
        raise LauncherUnreachable(
            "SkyPilot's API server refuses this service; set HOLDFAST_SKYPILOT_TOKEN to a service account's token"
        )
    if code == 500 and isinstance(detail, dict) and detail.get("error"):
        error = _loaded(detail["error"], "an error")
        if isinstance(error, dict):
            raise RequestFailed(str(error.get("type", "")), str(error.get("message", "")))
    if code in {400, 422}:
        raise RequestFailed("Refused", _words(detail))
    raise LauncherUnreachable(
        f"SkyPilot's API server answered {path} with {code}: {_words(detail)}"
    )


def _date(reply: httpx2.Response) -> datetime | None:
    """When the server answered, by its own clock; None where it does not say, or says it in a way of its own."""
    try:
        date = parsedate_to_datetime(reply.headers.get("Date", ""))
    except ValueError:
        return None
    return date if date.tzinfo else None


def _detail(reply: httpx2.Response) -> Any:
    try:
        told = reply.json()
    except (ValueError, RecursionError):
        return reply.text[:500]
    return told.get("detail", told) if isinstance(told, dict) else told


def _words(detail: Any) -> str:
    if isinstance(detail, dict) and isinstance(detail.get("message"), str):
        return str(detail["message"])[:2000]
    return (detail if isinstance(detail, str) else json.dumps(detail))[:2000]


def _json(reply: httpx2.Response) -> Any:
    try:
        return reply.json()
    except (ValueError, RecursionError) as error:
        raise LauncherUnreachable("SkyPilot's answer is not JSON; nothing is concluded") from error


def _loaded(text: Any, what: str) -> Any:
    try:
        return json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise LauncherUnreachable(f"{what} is not JSON; nothing is concluded from it") from error


def _mapping(value: Any, what: str) -> Mapping[str, Any]:
    if isinstance(value, dict):
        return value
    raise LauncherUnreachable(f"SkyPilot told {what} in a way that is not known here")


def _asked(item: Any) -> Asked:
    told = _mapping(item, "a request")
    try:
        body = json.loads(told.get("request_body") or "null")
    except (TypeError, ValueError, RecursionError):
        body = None
    return Asked(
        request_id=str(told.get("request_id", "")),
        name=str(told.get("name", "")),
        status=str(told.get("status", "")),
        body=body if isinstance(body, dict) else {},
    )

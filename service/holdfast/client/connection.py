"""The two clients of the API: they send calls, repeat them if needed, and read responses."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, ClassVar, Final, Self, TypeVar

import httpx2
from holdfast_worker.protocol.release import DISTRIBUTION, HEADER, difference, user_agent
from pydantic import ValidationError

from holdfast import __version__
from holdfast.addresses import is_here
from holdfast.client.calls import Call, EventStream, Many, Pages, given, json_call
from holdfast.client.credentials import Credentials
from holdfast.client.event_stream import MessageParser, StreamMessage
from holdfast.client.refusals import NoAnswer, Refused, ServiceUnreachable, refusal_of
from holdfast.client.resources import AsyncClientResources, ClientResources
from holdfast.errors import HoldfastError
from holdfast.settings import Settings, read_settings

_PROXY_ERRORS: Final = frozenset({413, 429, 502, 503, 504})
"""Statuses with which a proxy in front of a service refuses a request."""
_RESTARTING: Final = frozenset({502, 503, 504})
"""Statuses of a proxy while the service behind it restarts."""
_NOT_HANDLED: Final = 429
"""The status of a request that was refused before anything was done."""
_TEMPORARY: Final = frozenset({_NOT_HANDLED, 503})
"""Statuses of refusals that end by themselves."""
TIMEOUT_S: Final = 30.0
"""Timeout of one response in seconds.

A lower value fails on a busy service; a higher value detects a dead one later.
"""
RECONNECT_S: Final = (0.5, 1, 2, 5, 5, 5, 5, 5)
"""Seconds before each reconnection of a broken stream; after the last one the service counts as unreachable."""
RETRY_PAUSES_S: Final = (0.5, 2, 5)
"""Seconds before each repetition of a failed request.

Fewer values fail during a restart of the service; more values report an outage later.
"""
MAX_RETRY_AFTER_S: Final = 60
"""Maximum seconds that the service can make the client wait before a repetition."""
_STREAM_TIMEOUT: Final = httpx2.Timeout(
    TIMEOUT_S, read=60.0
)  # Streams send a keep-alive every 15 s.

T = TypeVar("T")
log = logging.getLogger("holdfast.client")


class _Connection:
    """What both clients know of a service, and how they read its responses."""

    user_agent: ClassVar[str] = user_agent("holdfast-client")

    def __init__(
        self, url: str, token: str | None, timeout_s: float, retry_pauses_s: Sequence[float]
    ) -> None:
        if not url.startswith(("http://", "https://")):
            raise ServiceUnreachable(
                f"HOLDFAST_URL must begin with http:// or https://; it is {url!r}"
            )
        self._url = url
        self._retry_pauses_s = tuple(retry_pauses_s)
        self._service = ""  # The service's version, from its newest response.
        headers = {"User-Agent": self.user_agent}
        headers |= {"Authorization": f"Bearer {token}"} if token else {}
        self._options: dict[str, Any] = {"base_url": url, "headers": headers, "timeout": timeout_s}

    @classmethod
    def from_settings(
        cls, settings: Settings, timeout_s: float = TIMEOUT_S, retry_pauses_s: Sequence[float] = ()
    ) -> Self:
        """Create a client from the settings, else from the saved login.

        Without a token in either, it reads the token from the home directory of a local service.
        """
        login = Credentials.read(settings.login_file)
        url = settings.url
        if login.url and "url" not in settings.model_fields_set:
            url = login.url
        token = settings.token.get_secret_value() if settings.token else None
        if token is None and login.url == url:
            token = login.token
        if token is None and is_here(url):
            try:
                token = settings.token_file.read_text().strip()
            except OSError:
                token = None  # Another user's service, or none yet: loopback also works without a token.
        return cls(url, token, timeout_s=timeout_s, retry_pauses_s=retry_pauses_s)

    @classmethod
    def from_environment(cls) -> Self:
        """Create a client as the command line does: from HOLDFAST_* variables or the saved login."""
        return cls.from_settings(read_settings(), retry_pauses_s=RETRY_PAUSES_S)

    @property
    def url(self) -> str:
        """The address of the service."""
        return self._url

    def _result(self, call: Call[T], answer: httpx2.Response) -> T:
        """Read a response, or raise the error that it is."""
        self._log_version_difference(answer.headers.get(HEADER, ""))
        if answer.is_error:
            raise self._error(answer, call.path)
        try:
            return call.read(answer)
        except ValidationError as error:
            raise ServiceUnreachable(self._unreadable(call.path)) from error

    def _pause_s(self, call: Call[Any], error: HoldfastError, failures: int) -> float | None:
        """Seconds before a failed call is repeated; None if it is not."""
        if isinstance(error, ServiceUnreachable):
            is_temporary, may_repeat = error.is_temporary, call.is_repeatable
        else:
            status = error.problem.status if isinstance(error, Refused) else None
            is_temporary = status in _TEMPORARY
            may_repeat = call.is_repeatable or status == _NOT_HANDLED
        if not is_temporary or not may_repeat or failures >= len(self._retry_pauses_s):
            return None
        wanted = error.retry_after_s if isinstance(error, Refused) else 0
        return max(self._retry_pauses_s[failures], min(wanted, MAX_RETRY_AFTER_S))

    def _no_answer(self, error: Exception) -> NoAnswer:
        detail = f"no service responds at {self._url} ({error}); start one with `holdfast serve`, or set HOLDFAST_URL"
        return NoAnswer(detail, is_temporary=True)

    def _invalid_address(self, error: Exception) -> ServiceUnreachable:
        return ServiceUnreachable(f"HOLDFAST_URL={self._url!r} is not a valid address: {error}")

    def _broken_stream(self, reason: str) -> ServiceUnreachable:
        return ServiceUnreachable(f"{self._url} no longer responds ({reason}); the job continues")

    def _error(self, answer: httpx2.Response, path: str) -> HoldfastError:
        if refusal := refusal_of(answer):
            return refusal
        detail = self._foreign_error(answer, path)
        return ServiceUnreachable(detail, is_temporary=answer.status_code in _RESTARTING)

    def _log_version_difference(self, service: str) -> None:
        """Log once that the service has a different version."""
        if service and service != self._service and (words := difference(service, __version__)):
            log.warning("note: %s", words)
        self._service = service

    def _foreign_error(self, answer: httpx2.Response, path: str) -> str:
        """Describe an error response that Holdfast did not send."""
        status = f"{answer.status_code} {answer.reason_phrase}".rstrip()
        if answer.status_code in _PROXY_ERRORS:
            return f"a proxy at {self._url} responded {status} to {path}; check the service behind it, or HOLDFAST_URL"
        return (
            f"{self._url} is not a Holdfast service ({path} responded {status}); check HOLDFAST_URL"
        )

    def _unreadable(self, path: str) -> str:
        if not self._service:
            return f"{self._url} is not a Holdfast service ({path}); check HOLDFAST_URL"
        return (
            f"{self._url} runs Holdfast {self._service}, and this client, {__version__}, cannot read its response to {path}; "
            f"install {DISTRIBUTION} {self._service}"
        )


class _StreamPosition:
    """How far a stream was read, and how long to wait before it is opened again."""

    def __init__(self) -> None:
        self.parser = MessageParser()
        self._last: str | None = None
        self._failures = 0

    def headers(self) -> dict[str, str]:
        self.parser = MessageParser()  # A broken connection may have ended within a message.
        return {"Last-Event-ID": self._last} if self._last else {}

    def note(self, message: StreamMessage) -> None:
        self._last, self._failures = message.id, 0

    def pause_s(self) -> float | None:
        self._failures += 1
        return RECONNECT_S[self._failures - 1] if self._failures <= len(RECONNECT_S) else None


class Client(_Connection, ClientResources):
    """A connection to a service. Use it as a context manager."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        transport: httpx2.BaseTransport | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        retry_pauses_s: Sequence[float] = RETRY_PAUSES_S,
    ) -> None:
        super().__init__(url, token, timeout_s, retry_pauses_s)
        try:
            self._http = httpx2.Client(**self._options, transport=transport)
        except httpx2.InvalidURL as error:
            raise self._invalid_address(error) from error
        ClientResources.__init__(self, self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the service."""
        self._http.close()

    def call(self, call: Call[T]) -> T:
        """Send a call and return its result, after repetitions if it may be repeated."""
        failures = 0
        while True:
            try:
                return self._result(call, self._request(call))
            except HoldfastError as error:
                if (pause_s := self._pause_s(call, error, failures)) is None:
                    raise
            failures += 1
            time.sleep(pause_s)

    def _request(self, call: Call[Any]) -> httpx2.Response:
        try:
            return self._http.request(call.method, call.path, **call.request)
        except httpx2.TransportError as error:
            raise self._no_answer(error) from error

    def iterate(self, many: Many[T]) -> Iterator[T]:
        """Yield the items of pages or of a stream."""
        if isinstance(many, EventStream):
            for message in self._follow(many.path, many.params):
                yield many.read(message.data)
        else:
            yield from self._pages(many)

    def _pages(self, pages: Pages[T]) -> Iterator[T]:
        call: Call[Any] | None = pages.first
        while call is not None:
            page = self.call(call)
            yield from pages.items(page)
            more = pages.following(page)
            call = None if more is None else call.with_params(more)

    def _follow(self, path: str, params: Mapping[str, Any]) -> Iterator[StreamMessage]:
        """Yield the messages of a stream until its `end`, reconnecting where it broke."""
        position = _StreamPosition()
        asked: dict[str, Any] = {"params": params, "timeout": _STREAM_TIMEOUT}
        while True:
            try:
                with self._http.stream("GET", path, headers=position.headers(), **asked) as answer:
                    if answer.is_error:
                        answer.read()
                        raise self._error(answer, path)
                    for line in answer.iter_lines():
                        if (message := position.parser.feed(line)) is None:
                            continue
                        if message.event == "end":
                            return
                        position.note(message)
                        yield message
            except httpx2.TransportError as error:
                broken = str(error) or type(error).__name__
            else:
                broken = "the stream ended early"
            if (pause_s := position.pause_s()) is None:
                raise self._broken_stream(broken)
            time.sleep(pause_s)

    def get(self, kind: type[T], method: str, path: str, **request: Any) -> T:
        """Return the response of a route that has no method here."""
        return self.call(json_call(kind, method, path, **request))

    def send(self, method: str, path: str, **request: Any) -> None:
        """Send a request whose response has no content."""
        self.call(Call(lambda _: None, method, path, request))

    def get_csv(self, path: str, **asked: str | int | None) -> str:
        """Download a table of the API as CSV."""
        return self.call(_csv_call(path, asked))

    def is_healthy(self) -> bool:
        """Whether the service responds."""
        try:
            return self.service.health().status == "ok"
        except HoldfastError:
            return False


class AsyncClient(_Connection, AsyncClientResources):
    """A connection to a service for asynchronous programs. Use it as an async context manager."""

    def __init__(
        self,
        url: str,
        token: str | None = None,
        transport: httpx2.AsyncBaseTransport | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        retry_pauses_s: Sequence[float] = RETRY_PAUSES_S,
    ) -> None:
        super().__init__(url, token, timeout_s, retry_pauses_s)
        try:
            self._http = httpx2.AsyncClient(**self._options, transport=transport)
        except httpx2.InvalidURL as error:
            raise self._invalid_address(error) from error
        AsyncClientResources.__init__(self, self)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections to the service."""
        await self._http.aclose()

    async def call(self, call: Call[T]) -> T:
        """Send a call and return its result, after repetitions if it may be repeated."""
        failures = 0
        while True:
            try:
                return self._result(call, await self._request(call))
            except HoldfastError as error:
                if (pause_s := self._pause_s(call, error, failures)) is None:
                    raise
            failures += 1
            await asyncio.sleep(pause_s)

    async def _request(self, call: Call[Any]) -> httpx2.Response:
        try:
            return await self._http.request(call.method, call.path, **call.request)
        except httpx2.TransportError as error:
            raise self._no_answer(error) from error

    async def iterate(self, many: Many[T]) -> AsyncIterator[T]:
        """Yield the items of pages or of a stream."""
        if isinstance(many, EventStream):
            async for message in self._follow(many.path, many.params):
                yield many.read(message.data)
            return
        call: Call[Any] | None = many.first
        while call is not None:
            page = await self.call(call)
            for item in many.items(page):
                yield item
            more = many.following(page)
            call = None if more is None else call.with_params(more)

    async def _follow(self, path: str, params: Mapping[str, Any]) -> AsyncIterator[StreamMessage]:
        """Yield the messages of a stream until its `end`, reconnecting where it broke."""
        position = _StreamPosition()
        asked: dict[str, Any] = {"params": params, "timeout": _STREAM_TIMEOUT}
        while True:
            try:
                async with self._http.stream(
                    "GET", path, headers=position.headers(), **asked
                ) as answer:
                    if answer.is_error:
                        await answer.aread()
                        raise self._error(answer, path)
                    async for line in answer.aiter_lines():
                        if (message := position.parser.feed(line)) is None:
                            continue
                        if message.event == "end":
                            return
                        position.note(message)
                        yield message
            except httpx2.TransportError as error:
                broken = str(error) or type(error).__name__
            else:
                broken = "the stream ended early"
            if (pause_s := position.pause_s()) is None:
                raise self._broken_stream(broken)
            await asyncio.sleep(pause_s)

    async def get(self, kind: type[T], method: str, path: str, **request: Any) -> T:
        """Return the response of a route that has no method here."""
        return await self.call(json_call(kind, method, path, **request))

    async def send(self, method: str, path: str, **request: Any) -> None:
        """Send a request whose response has no content."""
        await self.call(Call(lambda _: None, method, path, request))

    async def get_csv(self, path: str, **asked: str | int | None) -> str:
        """Download a table of the API as CSV."""
        return await self.call(_csv_call(path, asked))

    async def is_healthy(self) -> bool:
        """Whether the service responds."""
        try:
            return (await self.service.health()).status == "ok"
        except HoldfastError:
            return False


def _csv_call(path: str, asked: Mapping[str, Any]) -> Call[str]:
    request = {"params": given(asked), "headers": {"Accept": "text/csv"}}
    return Call(lambda answer: answer.text, "GET", path, request)

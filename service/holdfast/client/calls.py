"""Calls of the API, each described once for the blocking and the asynchronous client.

A method marked `endpoint` or `sequence` builds a value that describes a request. The client of its object sends it: `Client`
at once, `AsyncClient` when its result is awaited or iterated.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload
from urllib.parse import quote

import httpx2
from pydantic import TypeAdapter

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
P = ParamSpec("P")
Page = TypeVar("Page")


@dataclass(frozen=True, slots=True)
class Call(Generic[T]):
    """One request and how its response is read."""

    read: Callable[[httpx2.Response], T]
    """Raises pydantic's ValidationError if the response has another form."""
    method: str
    path: str
    request: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the HTTP client, such as params and json."""

    @property
    def is_repeatable(self) -> bool:
        """Whether a second request has no further effect, so that it may follow a lost response."""
        return self.method != "POST" or "Idempotency-Key" in self.request.get("headers", {})

    def with_params(self, params: Mapping[str, Any]) -> Call[T]:
        """This call with further query parameters."""
        return replace(
            self, request={**self.request, "params": {**self.request.get("params", {}), **params}}
        )


@dataclass(frozen=True, slots=True)
class Pages(Generic[T]):
    """A list that the service returns in several responses."""

    first: Call[Any]
    items: Callable[[Any], Iterable[T]]
    """The items of a response."""
    following: Callable[[Any], Mapping[str, Any] | None]
    """Parameters of the next request; None after the last response."""


@dataclass(frozen=True, slots=True)
class EventStream(Generic[T]):
    """A stream of server-sent events until its `end`."""

    read: Callable[[Any], T]
    """Parses the data of a message."""
    path: str
    params: Mapping[str, Any] = field(default_factory=dict)


Many = Pages[T] | EventStream[T]


class BlockingCaller(Protocol):
    """What sends calls and waits for their responses."""

    def call(self, call: Call[T]) -> T:
        """Send a call and return its result."""

    def iterate(self, many: Many[T]) -> Iterator[T]:
        """Yield the items of pages or of a stream."""


class AsyncCaller(Protocol):
    """What sends calls without blocking."""

    async def call(self, call: Call[T]) -> T:
        """Send a call and return its result."""

    def iterate(self, many: Many[T]) -> AsyncIterator[T]:
        """Yield the items of pages or of a stream."""


class Resource:
    """Methods of the API about one subject, which block."""

    def __init__(self, client: BlockingCaller) -> None:
        self.client = client


class AsyncResource:
    """Methods of the API about one subject, which are awaited."""

    def __init__(self, client: AsyncCaller) -> None:
        self.client = client


class endpoint(Generic[P, T]):  # noqa: N801 - a decorator
    """Marks a method that describes one call: the caller gets the result, or awaits it."""

    def __init__(self, build: Callable[Concatenate[Any, P], Call[T]]) -> None:
        self._build = build
        functools.update_wrapper(self, build)  # type: ignore[arg-type]  # For help() and documentation.

    @overload
    def __get__(self, owner: None, kind: type) -> endpoint[P, T]: ...
    @overload
    def __get__(self, owner: Resource, kind: type) -> Callable[P, T]: ...
    @overload
    def __get__(self, owner: AsyncResource, kind: type) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, owner: Any, kind: type) -> Any:
        if owner is None:
            return self

        @functools.wraps(self._build)
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return owner.client.call(self._build(owner, *args, **kwargs))

        return method


class sequence(Generic[P, T]):  # noqa: N801 - a decorator
    """Marks a method that describes a list or stream: the caller iterates over its items."""

    def __init__(self, build: Callable[Concatenate[Any, P], Many[T]]) -> None:
        self._build = build
        functools.update_wrapper(self, build)  # type: ignore[arg-type]

    @overload
    def __get__(self, owner: None, kind: type) -> sequence[P, T]: ...
    @overload
    def __get__(self, owner: Resource, kind: type) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, owner: AsyncResource, kind: type) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, owner: Any, kind: type) -> Any:
        if owner is None:
            return self

        @functools.wraps(self._build)
        def method(*args: P.args, **kwargs: P.kwargs) -> Any:
            return owner.client.iterate(self._build(owner, *args, **kwargs))

        return method


def json_call(kind: type[T], method: str, path: str, **request: Any) -> Call[T]:
    """A call with a JSON response. Fields that this version does not know are ignored."""

    def read(answer: httpx2.Response) -> T:
        return TypeAdapter(kind).validate_json(answer.content, extra="ignore")

    return Call(read, method, path, request)


def get(kind: type[T], path: str, params: Mapping[str, Any] | None = None) -> Call[T]:
    """A call that reads; parameters that are None are not sent."""
    return json_call(kind, "GET", path, params=given(params or {}))


def empty_call(method: str, path: str) -> Call[None]:
    """A call whose response has no content."""
    return Call(lambda _: None, method, path)


def paged(
    kind: type[Page],
    path: str,
    params: Mapping[str, Any],
    items: Callable[[Page], Iterable[T]],
) -> Pages[T]:
    """A list whose responses carry the cursor of the following one as `next`."""

    def following(page: Any) -> Mapping[str, Any] | None:
        return None if page.next is None else {"cursor": page.next}

    return Pages(get(kind, path, params), items, following)


def given(params: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters that have a value."""
    return {name: value for name, value in params.items() if value is not None}


def url_path(*steps: str) -> str:
    """Build a path below `/v1`; each argument is quoted as one segment."""
    return "/v1/" + "/".join(quote(step, safe="") for step in steps)

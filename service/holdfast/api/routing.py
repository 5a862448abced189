"""What every route does before its body is read: the caller is admitted, and words of the query that it does not know are refused.

FastAPI reads and parses a body before it runs dependencies. Without this, a caller without a token would be answered about
the form of a body, and could have the service parse one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from holdfast.api.auth.authentication import authenticate
from holdfast.code_upload.tree import MOST_ENTRIES
from holdfast.domain.jobfile.validation import unknown_word
from holdfast.errors import BadRequest

MOST_VALUES: Final = 20_000
"""Keys and values of one body. A lower value refuses reports of many metrics; a higher value costs time and memory where
each of them is a mistake to be named."""
CODE: Final = "/v1/code/"
TREE: Final = f"{CODE}trees"
MOST_TREE_VALUES: Final = MOST_VALUES + 10 * MOST_ENTRIES
"""The same of a list of files, each of which has up to five keys with a value. A higher value costs memory."""
PIECES: Final = f"{CODE}pieces"
"""Below it, bodies are pieces of files."""
_TEXT: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


class Route(APIRoute):
    """A route that reads its body once it knows the caller."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler behind these checks."""
        answer = super().get_route_handler()
        known = sorted(_words(self.dependant)) if self.path.startswith("/v1/") else None
        has_values = not self.path.startswith(PIECES)
        most = MOST_TREE_VALUES if self.path == TREE else MOST_VALUES

        async def admitted(request: Request) -> Response:
            request.state.caller = await run_in_threadpool(authenticate, request)
            if known is not None:
                _check_query(request, known)
            try:
                body = await request.body()
            except ClientDisconnect:
                return Response(status_code=400)  # The client has gone, and reads no answer.
            if has_values and not is_small(body, most):
                raise BadRequest(f"the body holds more than {most} values; send fewer")
            return await answer(request)

        return admitted


class Router(APIRouter):
    """A router all of whose routes are such."""

    def __init__(self, **options: Any) -> None:
        super().__init__(route_class=Route, **options)


def _words(dependant: Dependant) -> Iterator[str]:
    """What a route reads of a query."""
    for field in dependant.query_params:
        yield field.alias
    for inner in dependant.dependencies:
        yield from _words(inner)


def _check_query(request: Request, known: list[str]) -> None:
    unknown = [word for word in request.query_params if word not in known]
    if unknown:
        # Ten are enough to see what is wrong.
        raise RequestValidationError(
            [{"loc": ("query", word), "msg": unknown_word(word, known)} for word in unknown[:10]]
        )


def is_small(body: bytes, most: int = MOST_VALUES) -> bool:
    """Whether a body has no more values than may be; what stands in quotes is no value by itself."""
    if body.count(b",") + body.count(b":") <= most:
        return True
    plain = _TEXT.split(body, maxsplit=most)
    if len(plain) > most:
        return False
    return sum(part.count(b",") + part.count(b":") for part in plain) <= most

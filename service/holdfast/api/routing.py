"""Checks of every route before its body is read: authorization and unknown query parameters.

FastAPI reads and parses a body before it runs dependencies. A caller without a token could have the service parse a
body, and would receive errors about its form.
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
from holdfast.domain.jobfile.validation import unknown_key_message
from holdfast.errors import BadRequest
from holdfast.log_context import log_context

MOST_VALUES: Final = 20_000
"""Maximum keys and values of one body.

A lower value refuses reports with many metrics; a higher value costs time and memory if each is invalid.
"""
CODE_PATH: Final = "/v1/code/"
TREES_PATH: Final = f"{CODE_PATH}trees"
MOST_TREE_VALUES: Final = MOST_VALUES + 10 * MOST_ENTRIES
"""Maximum values of a list of files, each with up to five keys and values.

A higher value uses more memory.
"""
PIECES_PATH: Final = f"{CODE_PATH}pieces"
"""Paths below this one receive pieces of files as bodies."""
_TEXT: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)


class Route(APIRoute):
    """A route that reads its body after the caller is authorized."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the handler in these checks."""
        answer = super().get_route_handler()
        known = sorted(_query_names(self.dependant)) if self.path.startswith("/v1/") else None
        has_values = not self.path.startswith(PIECES_PATH)
        most = MOST_TREE_VALUES if self.path == TREES_PATH else MOST_VALUES

        async def handle(request: Request) -> Response:
            job_id = request.path_params.get("job_id")
            with log_context(**({"job": job_id} if job_id else {})):
                return await admitted(request)

        async def admitted(request: Request) -> Response:
            request.state.caller = await run_in_threadpool(authenticate, request)
            if known is not None:
                _check_query(request, known)
            try:
                body = await request.body()
            except ClientDisconnect:
                return Response(
                    status_code=400
                )  # The client has disconnected and reads no response.
            if has_values and not is_small(body, most):
                raise BadRequest(f"the body holds more than {most} values; send fewer")
            return await answer(request)

        return handle


class Router(APIRouter):
    """A router whose routes are all of class Route."""

    def __init__(self, **options: Any) -> None:
        super().__init__(route_class=Route, **options)


def _query_names(dependant: Dependant) -> Iterator[str]:
    """Yield the query parameters that a route reads."""
    for field in dependant.query_params:
        yield field.alias
    for inner in dependant.dependencies:
        yield from _query_names(inner)


def _check_query(request: Request, known: list[str]) -> None:
    unknown = [word for word in request.query_params if word not in known]
    if unknown:
        # Ten are enough to show the mistake.
        raise RequestValidationError(
            [
                {"loc": ("query", word), "msg": unknown_key_message(word, known)}
                for word in unknown[:10]
            ]
        )


def is_small(body: bytes, most: int = MOST_VALUES) -> bool:
    """Whether a body has at most the allowed number of values; text within quotes counts once."""
    if body.count(b",") + body.count(b":") <= most:
        return True
    plain = _TEXT.split(body, maxsplit=most)
    if len(plain) > most:
        return False
    return sum(part.count(b",") + part.count(b":") for part in plain) <= most

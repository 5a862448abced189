"""What every request passes: it gets an id, and a body that is too large is refused before it is read.

Plain ASGI: Starlette's function middleware stands between a stream and the knowledge that its client has gone.
"""

from __future__ import annotations

import secrets

from fastapi import Request
from holdfast_worker.wire import LONGEST_BODY_BYTES
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.api import problems
from holdfast.api.schemas import Problem


class Gate:
    """The application behind it."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = secrets.token_hex(8)
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)["X-Request-ID"] = request_id
            await send(message)

        target = self._app if _fits(Headers(scope=scope)) else _too_large(Request(scope))
        await target(scope, receive, send_with_id)


def _fits(headers: Headers) -> bool:
    length = headers.get("content-length", "0")
    return (
        "transfer-encoding" not in headers
        and length.isdecimal()
        and int(length) <= LONGEST_BODY_BYTES
    )


def _too_large(request: Request) -> ASGIApp:
    detail = f"send at most {LONGEST_BODY_BYTES} bytes, with their number in Content-Length"
    kind = f"{problems.DOCS}#too-large"
    problem = Problem(type=kind, title="The body is too large.", status=413, detail=detail)
    return problems.answer(request, problem)

"""What every request passes: it gets an id; a body that is too large is refused before it is read, and an address that no
database can look for. What every answer carries: that id, what a browser may do with it, and how much more may be asked.

Plain ASGI: Starlette's function middleware stands between a stream and the knowledge that its client has gone.
"""

from __future__ import annotations

import secrets
from typing import Final

from anyio import BrokenResourceError
from fastapi import Request
from holdfast_worker.protocol.release import HEADER, version
from holdfast_worker.protocol.reports import LONGEST_BODY_BYTES
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.api import problems
from holdfast.api.rate_limit import MINUTE_S, RateLimitResult
from holdfast.api.routing import CODE
from holdfast.api.schemas.service import Problem
from holdfast.code_upload.tree import BODY_BYTES
from holdfast.errors import BadRequest, HoldfastError, NotFound

_POLICY: Final = (
    "default-src 'none'",
    "script-src 'self'",
    "style-src 'self'",
    "img-src 'self' data:",
    "font-src 'self'",
    "connect-src 'self'",
    "form-action 'self'",
    "base-uri 'none'",
    "frame-ancestors 'none'",
    "require-trusted-types-for 'script'",
)
HEADERS: Final = {
    HEADER: version(),
    "Content-Security-Policy": "; ".join(_POLICY),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
}
"""Our version, and what a browser may do with any answer of ours: show it, and have it read by pages of ours."""


class RequestLimits:
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
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                headers.update(HEADERS)
                # What only some may see must not be kept by what stands between, nor shown after a logout.
                headers.setdefault("Cache-Control", "no-store")
                if taken := scope["state"].get("traffic"):
                    headers.update(_told(taken))
            await send(message)

        target = self._app
        most = BODY_BYTES if scope["path"].startswith(CODE) else LONGEST_BODY_BYTES
        if not _fits(Headers(scope=scope), most):
            target = _too_large(Request(scope), most)
        elif flaw := _nul(Request(scope)):
            target = problems.refusal(Request(scope), flaw)
        try:
            await target(scope, receive, send_with_id)
        except* BrokenResourceError:
            # FastAPI's stream of events writes once more to a client that has gone.
            pass


def _told(taken: RateLimitResult) -> dict[str, str]:
    """How much more may be asked, in the words of the draft on rate limits for HTTP."""
    wait_s = MINUTE_S / taken.limit if taken.passes else taken.retry_after_s
    return {
        "RateLimit-Policy": f'"{taken.kind}";q={taken.limit};w={MINUTE_S:.0f}',
        "RateLimit": f'"{taken.kind}";r={taken.left};t={wait_s:.0f}',
    }


def _fits(headers: Headers, most: int) -> bool:
    length = headers.get("content-length", "0")
    return "transfer-encoding" not in headers and length.isdecimal() and int(length) <= most


def _nul(request: Request) -> HoldfastError | None:
    """What is wrong with an address that has a character in it which not every database can look for; None: it has none."""
    told = "holds a NUL character, which no text has; remove it"
    if "\0" in request.scope["path"]:
        return NotFound(f"there is nothing at this address: the path {told}")
    if b"%00" not in request.scope["query_string"]:
        return None
    said = request.query_params.multi_items()
    name = next((name for name, value in said if "\0" in value), "the query")
    return BadRequest(f"{name}: {told}")


def _too_large(request: Request, most: int) -> ASGIApp:
    detail = f"send at most {most} bytes, with their number in Content-Length"
    kind = f"{problems.DOCS}#too-large"
    problem = Problem(type=kind, title="The body is too large.", status=413, detail=detail)
    return problems.answer(request, problem)

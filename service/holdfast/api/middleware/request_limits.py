"""Request ids, limits for bodies and paths, and security and rate limit headers.

Bodies that are too large are refused before they are read, and also paths that no database can search for.

Plain ASGI: Starlette's function middleware hides the disconnection of a client from streams.
"""

from __future__ import annotations

import re
import secrets
from typing import Final

from anyio import BrokenResourceError
from fastapi import Request
from holdfast_worker.protocol.release import HEADER, version
from holdfast_worker.protocol.reports import MAX_BODY_BYTES
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.api import docs_site, problems
from holdfast.api.routing import CODE_PATH
from holdfast.api.schemas.service import Problem
from holdfast.code_upload.tree import BODY_BYTES
from holdfast.errors import BadRequest, HoldfastError, NotFound
from holdfast.log_context import log_context
from holdfast.rate_limit import MINUTE_S, RateLimitResult

_TRUSTED_TYPES: Final = "require-trusted-types-for 'script'"
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
    _TRUSTED_TYPES,
)
_REQUEST_ID: Final = re.compile(r"[A-Za-z0-9._-]{8,32}")
"""Ids that are accepted from clients: they are stored in the audit log, which has room for 32 characters."""
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
"""The service's version, and browser restrictions: only pages of the service may display and read responses."""
_DOCS_POLICY: Final = "; ".join(part for part in _POLICY if part != _TRUSTED_TYPES)
"""For the documentation site: the script of its theme shows search results without trusted types."""


class RequestLimits:
    """The application behind the request limits."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = _request_id(Headers(scope=scope))
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers["X-Request-ID"] = request_id
                headers.update(HEADERS)
                if scope["path"].startswith(f"{docs_site.PREFIX}/"):
                    headers["Content-Security-Policy"] = _DOCS_POLICY
                # Restricted data must not be cached by intermediaries, nor shown after a logout.
                headers.setdefault("Cache-Control", "no-store")
                if taken := scope["state"].get("traffic"):
                    headers.update(_rate_limit_headers(taken))
            await send(message)

        target = self._app
        most = BODY_BYTES if scope["path"].startswith(CODE_PATH) else MAX_BODY_BYTES
        if not _fits(Headers(scope=scope), most):
            target = _too_large(Request(scope), most)
        elif flaw := _nul_error(Request(scope)):
            target = problems.error_response(Request(scope), flaw)
        try:
            with log_context(request=request_id):
                await target(scope, receive, send_with_id)
        except* BrokenResourceError:
            # FastAPI's event stream writes once more to a disconnected client.
            pass


def _request_id(headers: Headers) -> str:
    """The id that the client or a proxy has given the request; a new one without a valid one."""
    given = headers.get("x-request-id", "")
    return given if _REQUEST_ID.fullmatch(given) else secrets.token_hex(8)


def _rate_limit_headers(taken: RateLimitResult) -> dict[str, str]:
    """Return the remaining requests in the header fields of the RateLimit draft for HTTP."""
    wait_s = MINUTE_S / taken.limit if taken.is_allowed else taken.retry_after_s
    return {
        "RateLimit-Policy": f'"{taken.limit_class}";q={taken.limit};w={MINUTE_S:.0f}',
        "RateLimit": f'"{taken.limit_class}";r={taken.remaining};t={wait_s:.0f}',
    }


def _fits(headers: Headers, most: int) -> bool:
    length = headers.get("content-length", "0")
    return "transfer-encoding" not in headers and length.isdecimal() and int(length) <= most


def _nul_error(request: Request) -> HoldfastError | None:
    """Return an error for a path or query with a NUL character.

    Not every database can search for it.
    """
    problem = "contains a NUL character; remove it"
    if "\0" in request.scope["path"]:
        return NotFound(f"there is no resource at this address: the path {problem}")
    if b"%00" not in request.scope["query_string"]:
        return None
    parameters = request.query_params.multi_items()
    name = next((name for name, value in parameters if "\0" in value), "the query")
    return BadRequest(f"{name}: {problem}")


def _too_large(request: Request, most: int) -> ASGIApp:
    detail = f"send at most {most} bytes, and their number in Content-Length"
    kind = f"{problems.DOCS}#too-large"
    problem = Problem(type=kind, title="The body is too large.", status=413, detail=detail)
    return problems.problem_response(request, problem)

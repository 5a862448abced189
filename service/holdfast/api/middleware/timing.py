"""How long requests take, by route: the outermost layer, so that all that is done for a request is in it.

The time ends where the answer begins: streams go on for hours.
"""

from __future__ import annotations

import time
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.services import Services
from holdfast.telemetry import NO_ROUTE

TEMPLATE: Final = "template"
"""Where whoever passes around the router says in the request's state which route it would have taken."""


class TimingMiddleware:
    """The application, with its time taken."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and note when its answer begins."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun_s, is_answered = time.perf_counter(), False

        def note(status: int) -> None:
            nonlocal is_answered
            is_answered = True
            services: Services = scope["app"].state.services
            took_s = time.perf_counter() - begun_s
            services.instruments.answered(scope["method"], _route(scope), status, took_s)

        async def noted(message: Message) -> None:
            if message["type"] == "http.response.start":
                note(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, noted)
        finally:
            if not is_answered:
                note(500)  # A bug, which is answered for further out.


def _route(scope: Scope) -> str:
    state: dict[str, Any] = scope.get("state", {})
    path: str = getattr(scope.get("route"), "path", NO_ROUTE)
    return str(state.get(TEMPLATE, path))

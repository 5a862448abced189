"""Request durations by route, measured in the outermost layer to include all processing.

A request ends where its response begins, as streams last for hours.
"""

from __future__ import annotations

import time
from typing import Any, Final

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.services import Services
from holdfast.telemetry import NO_ROUTE
from holdfast.tracing import describe_request

TEMPLATE: Final = "template"
"""Key of the request state under which a bypass of the router records the replaced route."""


class TimingMiddleware:
    """The application with request timing."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, and record when its response begins."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started_s, is_answered = time.perf_counter(), False

        def record(status: int) -> None:
            nonlocal is_answered
            is_answered = True
            services: Services = scope["app"].state.services
            duration_s = time.perf_counter() - started_s
            services.metrics.observe_request(scope["method"], _route(scope), status, duration_s)
            describe_request(scope["method"], _route(scope), **_names(scope))

        async def send_and_record(message: Message) -> None:
            if message["type"] == "http.response.start":
                record(message["status"])
            await send(message)

        try:
            await self._app(scope, receive, send_and_record)
        finally:
            if not is_answered:
                record(500)  # An unexpected error, to which an outer layer responds.


def _names(scope: Scope) -> dict[str, str]:
    """What the request is about: its id, and the job in its path."""
    state, path = scope.get("state", {}), scope.get("path_params", {})
    found = {"request": state.get("request_id"), "job": path.get("job_id")}
    return {name: str(value) for name, value in found.items() if value}


def _route(scope: Scope) -> str:
    state: dict[str, Any] = scope.get("state", {})
    path: str = getattr(scope.get("route"), "path", NO_ROUTE)
    return str(state.get(TEMPLATE, path))

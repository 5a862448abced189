"""The fast lane: reports come a thousand times a second, and take a way of their own around the router.

It lets by what the ordinary route would take, by the same token, limit and schema, in the event loop, without the layers
and the hops to threads of a route. Whatever it does not like at first sight goes the ordinary way, whose answer tells what
was wrong; so there is one place that refuses.
"""

from __future__ import annotations

import asyncio
import re
from typing import Final

from fastapi import Request, Response
from pydantic import ValidationError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.api import problems
from holdfast.api.auth.authentication import count_report, is_worker_of
from holdfast.api.middleware.timing import TEMPLATE
from holdfast.api.routes.workers import answer, batch_of, release_nodes
from holdfast.api.routing import is_small
from holdfast.api.schemas.workers import ReportsIn
from holdfast.errors import HoldfastError
from holdfast.services import Services

TAKES_REPORTS: Final = "/v1/jobs/{job_id}/reports"
_REPORTS: Final = re.compile(r"/v1/jobs/([^/]+)/reports")


class ReportFastPath:
    """The application, with a shorter way to one of its routes."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Take reports, or pass a request on as it came."""
        is_asked = scope["type"] == "http" and scope["method"] == "POST"
        found = _REPORTS.fullmatch(scope["path"]) if is_asked else None
        if found is None:
            await self._app(scope, receive, send)
            return
        request, job_id = Request(scope, receive), found[1]
        request.scope.setdefault("state", {})[TEMPLATE] = TAKES_REPORTS
        content = await request.body()
        body = _well_formed(request, job_id, content)
        if body is None:
            await self._app(scope, _again(content, receive), send)
            return
        await (await _taken(request, job_id, body))(scope, receive, send)


def _well_formed(request: Request, job_id: str, content: bytes) -> ReportsIn | None:
    """What a worker of the job says; None where somebody or something else came."""
    services: Services = request.app.state.services
    if request.headers.get("content-type") != "application/json":
        return None
    if not is_worker_of(job_id, request, services) or not is_small(content):
        return None
    try:
        return ReportsIn.model_validate_json(content)
    except ValidationError:
        # The ordinary parser takes half of a surrogate pair, which this one does not; a text may end in one.
        return None


async def _taken(request: Request, job_id: str, body: ReportsIn) -> Response:
    services: Services = request.app.state.services
    try:
        count_report(request, services, job_id)
        taken = await services.intake.take(batch_of(job_id, body))
    except HoldfastError as error:
        return problems.refusal(request, error)
    told, is_goodbye = answer(services, body, taken)
    if is_goodbye:
        await asyncio.to_thread(release_nodes, services, job_id)
    return Response(told.model_dump_json(), media_type="application/json")


def _again(content: bytes, receive: Receive) -> Receive:
    """The body once more, and then whatever comes after it."""
    said: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def next_message() -> Message:
        return said.pop() if said else await receive()

    return next_message

"""Fast path of worker reports, which arrive a thousand times a second and bypass the router.

It accepts only what the ordinary route would accept, with the same token, limit and schema. It runs in the event loop,
without the layers and thread switches of a route. Any other request takes the ordinary route, which alone creates error
responses.
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
from holdfast.api.routes.workers import batch_of, release_nodes, reports_reply
from holdfast.api.routing import is_small
from holdfast.api.schemas.workers import ReportsIn
from holdfast.errors import HoldfastError
from holdfast.services import Services

REPORTS_ROUTE: Final = "/v1/jobs/{job_id}/reports"
_REPORTS: Final = re.compile(r"/v1/jobs/([^/]+)/reports")


class ReportFastPath:
    """The application with a shorter path to the route of reports."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ingest reports, or pass the request on unchanged."""
        is_asked = scope["type"] == "http" and scope["method"] == "POST"
        found = _REPORTS.fullmatch(scope["path"]) if is_asked else None
        if found is None:
            await self._app(scope, receive, send)
            return
        request, job_id = Request(scope, receive), found[1]
        request.scope.setdefault("state", {})[TEMPLATE] = REPORTS_ROUTE
        content = await request.body()
        body = _parse_reports(request, job_id, content)
        if body is None:
            await self._app(scope, _replay_body(content, receive), send)
            return
        await (await _ingest(request, job_id, body))(scope, receive, send)


def _parse_reports(request: Request, job_id: str, content: bytes) -> ReportsIn | None:
    """Parse the reports of a job's worker; None for any other request."""
    services: Services = request.app.state.services
    if request.headers.get("content-type") != "application/json":
        return None
    if not is_worker_of(job_id, request, services) or not is_small(content):
        return None
    try:
        body = ReportsIn.model_validate_json(content)
    except ValidationError:
        # The ordinary parser accepts lone surrogates, which this one refuses; a text may end in one.
        return None
    return None if body.asks_end else body  # The event loop does not wait for an estimate.


async def _ingest(request: Request, job_id: str, body: ReportsIn) -> Response:
    services: Services = request.app.state.services
    try:
        count_report(request, services, job_id)
        taken = await services.report_commits.submit(batch_of(job_id, body))
    except HoldfastError as error:
        return problems.error_response(request, error)
    reply, is_goodbye = reports_reply(services, body, taken)
    if is_goodbye:
        await asyncio.to_thread(release_nodes, services, job_id)
    return Response(reply.model_dump_json(), media_type="application/json")


def _replay_body(content: bytes, receive: Receive) -> Receive:
    """Return a receiver that repeats the body and then forwards all later messages."""
    messages: list[Message] = [{"type": "http.request", "body": content, "more_body": False}]

    async def next_message() -> Message:
        return messages.pop() if messages else await receive()

    return next_message

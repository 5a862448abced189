"""The fake server on a real port, with persistent connections that may break."""

from __future__ import annotations

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from fake_skypilot.server import Server


def application(server: Server) -> Starlette:
    """Return an ASGI application for a fake server."""

    async def answer(request: Request) -> Response:
        asked = httpx2.Request(request.method, str(request.url), content=await request.body())
        result = server.answer(asked)
        return Response(result.content, result.status_code, dict(result.headers))

    return Starlette(routes=[Route("/{path:path}", answer, methods=["GET", "POST"])])

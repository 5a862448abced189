"""A bare endpoint that parses reports and stores nothing: `python -m ingest.baseline PORT`."""

from __future__ import annotations

import json
import sys

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route


async def acknowledge(request: Request) -> JSONResponse:
    """Acknowledge reports without storing them."""
    body = json.loads(await request.body())
    last = body["reports"][-1]["n"] if body["reports"] else 0
    return JSONResponse({"next": last + 1, "leave_within_s": None})


app = Starlette(routes=[Route("/v1/jobs/{job_id}/reports", acknowledge, methods=["POST"])])

if __name__ == "__main__":
    uvicorn.run(app, host="127.0.0.1", port=int(sys.argv[1]), log_config=None, access_log=False)

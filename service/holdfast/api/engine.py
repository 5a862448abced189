"""What SkyPilot's server calls: the admission gate before every launch, and a nudge at every turn of a job.

Neither can send a token in a header, so each address holds a secret of its own.
"""

from __future__ import annotations

import asyncio
import hmac
import logging

from fastapi import Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from holdfast.adapters.skypilot.gate import Petition
from holdfast.api.routing import Router
from holdfast.api.services import Services, The
from holdfast.errors import BadRequest, NotFound

router = Router(include_in_schema=False)
log = logging.getLogger(__name__)

POLICY = "/v1/skypilot/policy"


@router.post(POLICY + "/{secret}")
async def admit(secret: str, request: Request, services: The) -> Response:
    """Let a launch pass once, and everything that is not ours as it is."""
    if not hmac.compare_digest(secret.encode(), services.tokens.for_gate().encode()):
        raise NotFound("there is nothing here")
    # A task may be long, and to read it then takes seconds in which nobody else would be answered.
    return await asyncio.to_thread(_answer, await request.body(), services)


@router.post("/v1/jobs/{job_id}/nudge/{secret}")
def nudge(job_id: str, secret: str, services: The) -> Response:
    """Look at a job at once: SkyPilot says that something happened to it. What it was, only a look tells."""
    if not hmac.compare_digest(secret.encode(), services.tokens.for_nudge(job_id).encode()):
        raise NotFound(f"there is no job {job_id}")
    services.watches.nudge(job_id, services.clock.now())
    services.nudge()
    return Response(status_code=204)


def _answer(raw: bytes, services: Services) -> Response:
    try:
        petition = Petition.read(raw)
    except BadRequest as error:
        return _no(error.detail)
    if petition.consumes and not _admitted(petition, services):
        return _no("this launch token was used, revoked or never issued; nothing is launched")
    return JSONResponse(petition.unchanged())


def _admitted(petition: Petition, services: Services) -> bool:
    assert petition.token
    admitted = services.launches.admit(petition.token, services.clock.now())
    if not admitted:
        log.warning("turned a second launch request away")
    return admitted


def _no(why: str) -> Response:
    return PlainTextResponse(why, status_code=400)

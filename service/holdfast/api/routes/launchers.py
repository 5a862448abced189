"""Launchers and their health, unknown launches, and callbacks of SkyPilot's server.

SkyPilot calls the admission gate before every launch, and nudges at every status change of a job. Neither call can send
a token in a header, so each path contains a secret.

Lists show the newest probe and sweep; only stopping a launch calls a launcher.
"""

from __future__ import annotations

import asyncio
import hmac
import logging

from fastapi import Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from holdfast.api.auth.authentication import TheActor
from holdfast.api.dependencies import TheServices
from holdfast.api.routing import Router
from holdfast.api.schemas.service import LauncherOut, UndecidedOut
from holdfast.domain.jobfile.spec import Engine
from holdfast.errors import BadRequest, NotFound
from holdfast.ports import (
    AdmissionReview,
    LauncherHealth,
    OrphanScan,
    RemoteLauncher,
    SharedLauncher,
)
from holdfast.services import Services

engine_router = Router(include_in_schema=False)
log = logging.getLogger(__name__)

POLICY = "/v1/skypilot/policy"


@engine_router.post(POLICY + "/{secret}")
async def admit(secret: str, request: Request, services: TheServices) -> Response:
    """Admit a launch once, and pass unrelated requests through unchanged."""
    if not hmac.compare_digest(secret.encode(), services.tokens.for_gate().encode()):
        raise NotFound("there is no resource at this address")
    # Parsing a long task takes seconds, which would block other requests.
    return await asyncio.to_thread(_admission_response, await request.body(), services)


@engine_router.post("/v1/jobs/{job_id}/nudge/{secret}")
def nudge(job_id: str, secret: str, services: TheServices) -> Response:
    """Reconcile a job at once, as SkyPilot reports a change; the change itself is then observed."""
    if not hmac.compare_digest(secret.encode(), services.tokens.for_nudge(job_id).encode()):
        raise NotFound(f"there is no job {job_id}")
    services.leases.make_due(job_id, services.clock.now())
    services.nudge()
    return Response(status_code=204)


def _admission_response(raw: bytes, services: Services) -> Response:
    try:
        petition = services.read_admission(raw)
    except BadRequest as error:
        return _rejection(error.detail)
    if petition.consumes_token and not _is_admitted(petition, services):
        return _rejection(
            "this launch token was used, revoked or never issued; the launch is refused"
        )
    return JSONResponse(petition.unchanged_reply())


def _is_admitted(petition: AdmissionReview, services: Services) -> bool:
    assert petition.token
    admitted = services.launches.admit(petition.token, services.clock.now())
    if not admitted:
        log.warning("refused a second launch request")
    return admitted


def _rejection(why: str) -> Response:
    return PlainTextResponse(why, status_code=400)


launchers_router = Router(prefix="/v1")


@launchers_router.get("/launchers", response_model=list[LauncherOut], tags=["health"])
def list_launchers(services: TheServices) -> list[LauncherOut]:
    """List all launchers, including those that this service does not use."""
    known = {health.engine: health for health in services.health()}
    return [_view(services, engine, known.get(engine)) for engine in Engine]


@launchers_router.post(
    "/launches/{key}/stop", status_code=202, response_model=LauncherOut, tags=["health"]
)
async def stop_strange_launch(key: str, services: TheServices, actor: TheActor) -> LauncherOut:
    """Stop a launch that is missing from the database.

    It may save its work first, as in a cancellation.
    """
    for health in services.health():
        launcher = services.launchers[health.engine]
        strangers = launcher.strangers if isinstance(launcher, OrphanScan) else None
        if any(item.key == key for item in strangers or ()):
            entry = actor.audit_action("launch.stop", key, after={"engine": health.engine.value})
            await asyncio.to_thread(services.audit.record, entry)
            await services.call_launcher(launcher.cancel(key))
            return _view(services, health.engine, health)
    raise NotFound(
        f"the newest sweep found no unknown launch {key}; holdfast launches list shows those it found"
    )


def _view(services: Services, engine: Engine, health: LauncherHealth | None) -> LauncherOut:
    launcher = services.launchers.get(engine)
    undecided = _undecided(services) if engine is Engine.SKYPILOT else []
    if launcher is None or health is None:
        return LauncherOut(engine=engine, configured=launcher is not None, undecided=undecided)
    vitals = health.engine_info
    is_swept = isinstance(launcher, OrphanScan)
    strangers = launcher.strangers if isinstance(launcher, OrphanScan) else None
    is_asked = isinstance(launcher, RemoteLauncher)
    unasked = is_asked and health.answered_at is None and health.error is None
    return LauncherOut(
        engine=engine,
        configured=True,
        reachable=None if unasked else health.error is None,
        version=vitals.version if vitals else None,
        guarantee=vitals.guarantee if vitals else None,
        waits_for_service=vitals.waits_for_service if vitals else None,
        clouds=list(vitals.clouds) if vitals and vitals.clouds is not None else None,
        clock_skew_s=vitals.clock_skew_s if vitals else None,
        swept=strangers is not None if is_swept else None,
        strangers=[orphan.description for orphan in strangers or ()],
        strange_launches=sorted({orphan.key for orphan in strangers or () if orphan.key}),
        undecided=undecided,
        trouble=health.error,
        since=health.since,
        answered_at=health.answered_at,
        reports_to=services.worker_url or None,
        users_share=_shared(services, engine) or None,
    )


def _undecided(services: Services) -> list[UndecidedOut]:
    return [
        UndecidedOut(
            launch=row.key, job_id=row.job_id, what=row.lost or "", since=row.missing_since
        )
        for row in services.launches.undecided()
    ]


def _shared(services: Services, engine: Engine) -> str:
    launcher = services.launchers[engine]
    is_refused = bool(services.confinement.refused.get(engine))
    return (
        "" if is_refused or not isinstance(launcher, SharedLauncher) else launcher.shared_resources
    )

"""What SkyPilot's server calls: the admission gate before every launch, and a nudge at every turn of a job.

Neither can send a token in a header, so each address holds a secret of its own.

The launchers of the service, how the engines behind them are, and launches there that the database does not know.

Lists show the newest probe and the newest sweep; only the stop of a launch calls a launcher.
"""

from __future__ import annotations

import asyncio
import hmac
import logging

from fastapi import Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse

from holdfast.api.auth.authentication import TheDoer
from holdfast.api.dependencies import The
from holdfast.api.routing import Router
from holdfast.api.schemas.service import LauncherOut, UndecidedOut
from holdfast.controller.launcher_health import LauncherHealth
from holdfast.domain.jobfile.spec import Engine
from holdfast.errors import BadRequest, NotFound
from holdfast.launchers.skypilot.admission import AdmissionRequest
from holdfast.ports import OrphanScan, RemoteLauncher, Shared
from holdfast.services import Services

engine_router = Router(include_in_schema=False)
log = logging.getLogger(__name__)

POLICY = "/v1/skypilot/policy"


@engine_router.post(POLICY + "/{secret}")
async def admit(secret: str, request: Request, services: The) -> Response:
    """Let a launch pass once, and everything that is not ours as it is."""
    if not hmac.compare_digest(secret.encode(), services.tokens.for_gate().encode()):
        raise NotFound("there is nothing here")
    # A task may be long, and to read it then takes seconds in which nobody else would be answered.
    return await asyncio.to_thread(_answer, await request.body(), services)


@engine_router.post("/v1/jobs/{job_id}/nudge/{secret}")
def nudge(job_id: str, secret: str, services: The) -> Response:
    """Look at a job at once: SkyPilot says that something happened to it. What it was, only a look tells."""
    if not hmac.compare_digest(secret.encode(), services.tokens.for_nudge(job_id).encode()):
        raise NotFound(f"there is no job {job_id}")
    services.watches.nudge(job_id, services.clock.now())
    services.nudge()
    return Response(status_code=204)


def _answer(raw: bytes, services: Services) -> Response:
    try:
        petition = AdmissionRequest.read(raw)
    except BadRequest as error:
        return _no(error.detail)
    if petition.consumes and not _admitted(petition, services):
        return _no("this launch token was used, revoked or never issued; nothing is launched")
    return JSONResponse(petition.unchanged())


def _admitted(petition: AdmissionRequest, services: Services) -> bool:
    assert petition.token
    admitted = services.launches.admit(petition.token, services.clock.now())
    if not admitted:
        log.warning("turned a second launch request away")
    return admitted


def _no(why: str) -> Response:
    return PlainTextResponse(why, status_code=400)


launchers_router = Router(prefix="/v1")


@launchers_router.get("/launchers", response_model=list[LauncherOut], tags=["health"])
def list_launchers(services: The) -> list[LauncherOut]:
    """Every launcher that there is, also those that this service does without."""
    known = {health.engine: health for health in services.health()}
    return [_view(services, engine, known.get(engine)) for engine in Engine]


@launchers_router.post(
    "/launches/{key}/stop", status_code=202, response_model=LauncherOut, tags=["health"]
)
async def stop_strange_launch(key: str, services: The, doer: TheDoer) -> LauncherOut:
    """Stop a launch that the database does not know. It may save its work first, as with a cancel of its job."""
    for health in services.health():
        launcher = services.launchers[health.engine]
        strangers = launcher.strangers if isinstance(launcher, OrphanScan) else None
        if any(item.key == key for item in strangers or ()):
            deed = doer.did("launch.stop", key, after={"engine": health.engine.value})
            await asyncio.to_thread(services.audit.note, deed)
            await services.ask(launcher.cancel(key))
            return _view(services, health.engine, health)
    raise NotFound(
        f"no launch {key} was left alone by the newest sweep; holdfast launches list shows those that were"
    )


def _view(services: Services, engine: Engine, health: LauncherHealth | None) -> LauncherOut:
    launcher = services.launchers.get(engine)
    undecided = _undecided(services) if engine is Engine.SKYPILOT else []
    if launcher is None or health is None:
        return LauncherOut(engine=engine, configured=launcher is not None, undecided=undecided)
    vitals = health.vitals
    is_swept = isinstance(launcher, OrphanScan)
    strangers = launcher.strangers if isinstance(launcher, OrphanScan) else None
    is_asked = isinstance(launcher, RemoteLauncher)
    unasked = is_asked and health.answered_at is None and health.trouble is None
    return LauncherOut(
        engine=engine,
        configured=True,
        reachable=None if unasked else health.trouble is None,
        version=vitals.version if vitals else None,
        guarantee=vitals.guarantee if vitals else None,
        waits_for_service=vitals.waits_for_us if vitals else None,
        clouds=list(vitals.clouds) if vitals and vitals.clouds is not None else None,
        clock_skew_s=vitals.clock_skew_s if vitals else None,
        swept=strangers is not None if is_swept else None,
        strangers=[stray.what for stray in strangers or ()],
        strange_launches=sorted({stray.key for stray in strangers or () if stray.key}),
        undecided=undecided,
        trouble=health.trouble,
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
    return "" if is_refused or not isinstance(launcher, Shared) else launcher.shares

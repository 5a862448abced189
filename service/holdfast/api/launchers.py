"""The launchers of the service, how the engines behind them are, and launches there that the database does not know.

Lists show the newest probe and the newest sweep; only the stop of a launch calls a launcher.
"""

from __future__ import annotations

import asyncio

from holdfast.api.auth import TheDoer
from holdfast.api.routing import Router
from holdfast.api.schemas import LauncherOut, UndecidedOut
from holdfast.api.services import Services, The
from holdfast.domain.spec import Engine
from holdfast.errors import NotFound
from holdfast.ports import Remote, Shared, Sweeping
from holdfast.pulse import Health

router = Router(prefix="/v1")


@router.get("/launchers", response_model=list[LauncherOut], tags=["health"])
def list_launchers(services: The) -> list[LauncherOut]:
    """Every launcher that there is, also those that this service does without."""
    known = {health.engine: health for health in services.health()}
    return [_view(services, engine, known.get(engine)) for engine in Engine]


@router.post("/launches/{key}/stop", status_code=202, response_model=LauncherOut, tags=["health"])
async def stop_strange_launch(key: str, services: The, doer: TheDoer) -> LauncherOut:
    """Stop a launch that the database does not know. It may save its work first, as with a cancel of its job."""
    for health in services.health():
        launcher = services.launchers[health.engine]
        strangers = launcher.strangers if isinstance(launcher, Sweeping) else None
        if any(item.key == key for item in strangers or ()):
            deed = doer.did("launch.stop", key, after={"engine": health.engine.value})
            await asyncio.to_thread(services.audit.note, deed)
            await services.ask(launcher.cancel(key))
            return _view(services, health.engine, health)
    raise NotFound(
        f"no launch {key} was left alone by the newest sweep; holdfast launches list shows those that were"
    )


def _view(services: Services, engine: Engine, health: Health | None) -> LauncherOut:
    launcher = services.launchers.get(engine)
    undecided = _undecided(services) if engine is Engine.SKYPILOT else []
    if launcher is None or health is None:
        return LauncherOut(engine=engine, configured=launcher is not None, undecided=undecided)
    vitals = health.vitals
    is_swept = isinstance(launcher, Sweeping)
    strangers = launcher.strangers if isinstance(launcher, Sweeping) else None
    is_asked = isinstance(launcher, Remote)
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

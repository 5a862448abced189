"""The launchers of the service, and how the engines behind them are. Nobody is asked here: the newest probe is told."""

from __future__ import annotations

from fastapi import APIRouter

from holdfast.api.schemas import LauncherOut
from holdfast.api.services import Services, The
from holdfast.domain.spec import Engine
from holdfast.ports import Remote
from holdfast.pulse import Health

router = APIRouter(prefix="/v1")


@router.get("/launchers", response_model=list[LauncherOut], tags=["health"])
def list_launchers(services: The) -> list[LauncherOut]:
    """Every launcher that there is, also those that this service does without."""
    known = {health.engine: health for health in services.health()}
    return [_view(services, engine, known.get(engine)) for engine in Engine]


def _view(services: Services, engine: Engine, health: Health | None) -> LauncherOut:
    launcher = services.launchers.get(engine)
    if launcher is None or health is None:
        return LauncherOut(engine=engine, configured=launcher is not None)
    vitals = health.vitals
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
        strangers=list(vitals.strangers) if vitals else [],
        trouble=health.trouble,
        since=health.since,
        answered_at=health.answered_at,
        reports_to=services.worker_url or None,
    )

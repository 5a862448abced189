"""The application: routes, errors, and the gate before them."""

from __future__ import annotations

from itertools import chain
from typing import Any, Final

from fastapi import FastAPI

import holdfast
from holdfast.api import (
    access,
    audit,
    bills,
    budgets,
    bundles,
    channels,
    checkpoints,
    clones,
    code,
    control,
    costs,
    deliveries,
    differences,
    engine,
    hints,
    jobs,
    launchers,
    log_search,
    logs,
    manifests,
    members,
    metrics,
    pages,
    preemptions,
    prices,
    problems,
    proofs,
    removals,
    render,
    reports,
    rolls,
    series,
    sessions,
    stream,
    tokens,
    users,
    web,
    whatif,
)
from holdfast.api.fast_lane import FastLane
from holdfast.api.gate import Gate
from holdfast.api.routing import Route
from holdfast.api.schemas import HealthOut, Problem
from holdfast.api.services import Services, The
from holdfast.api.stopwatch import Stopwatch
from holdfast.errors import StoreUnavailable, Unavailable
from holdfast.store.database import is_newer, newest_revision, revision_of

_PROBLEM: Final = {"model": Problem, "content": {problems.MEDIA_TYPE: {}}}


def create_app(services: Services) -> FastAPI:
    """The API over `services`; nothing runs until a server serves it."""
    app = _routes()
    app.state.services = services
    return app


def describe() -> dict[str, Any]:
    """The OpenAPI description of the API; `docs/reference/openapi.json` is a copy of it."""
    return _routes().openapi()


def _routes() -> FastAPI:
    app = FastAPI(
        title="Holdfast",
        version=holdfast.__version__,
        description="Submit once; every preemption, every second and every cent is accounted for.",
        docs_url=None,
        redoc_url=None,
        responses=dict.fromkeys(("4XX", "5XX"), _PROBLEM),
    )
    app.router.route_class = Route
    problems.install(app)
    app.add_middleware(FastLane)
    app.add_middleware(Gate)  # It stands before that lane, too.
    app.add_middleware(Stopwatch)  # The outermost.
    of_jobs = (jobs, code, render, control, clones, removals, bills, checkpoints, series, stream)
    of_evidence = (logs, log_search, rolls, hints, manifests, differences, bundles, proofs)
    of_money = (costs, preemptions, budgets, prices, whatif)
    of_people = (sessions, users, members, tokens, audit, channels, deliveries)
    of_service = (reports, engine, launchers, metrics, pages, web)
    modules = (*of_jobs, *of_evidence, *of_money, *of_people, *of_service)
    routers = [module.router for module in modules]
    for router in routers:
        app.include_router(router)
    app.add_api_route("/healthz", healthz, response_model=HealthOut, tags=["health"])
    app.add_api_route("/readyz", readyz, response_model=HealthOut, tags=["health"])
    access.check(chain(app.routes, *(router.routes for router in routers)))
    return app


def healthz() -> HealthOut:
    """That the process answers."""
    return HealthOut(status="ok", version=holdfast.__version__)


def readyz(services: The) -> HealthOut:
    """That the database can be used and has the tables of this version, that there is room to record, and that jobs are watched."""
    if not services.is_reconciling():
        raise Unavailable(
            "the reconciler has stopped or has been stuck for 15 s, so no job is watched; if this lasts, restart the service"
        )
    if trouble := services.disk_trouble():
        raise StoreUnavailable(trouble)
    at, needed = revision_of(services.engine), newest_revision()
    if at != needed and not is_newer(at):
        raise StoreUnavailable(
            f"the database is at revision {at}, this version needs {needed}; run holdfast db upgrade"
        )
    return HealthOut(status="ready", version=holdfast.__version__, revision=at)

"""The FastAPI application: routes, errors and middleware."""

from __future__ import annotations

import re
from collections.abc import MutableMapping
from itertools import chain
from typing import Any, Final

from fastapi import FastAPI

import holdfast
from holdfast.api import docs_site, problems, static_files
from holdfast.api.auth import route_policy
from holdfast.api.dependencies import TheServices
from holdfast.api.middleware.report_fast_path import ReportFastPath
from holdfast.api.middleware.request_limits import RequestLimits
from holdfast.api.middleware.timing import TimingMiddleware
from holdfast.api.routes import (
    audit,
    billing,
    budgets,
    bundles,
    checkpoints,
    code_uploads,
    diagnostics,
    equivalence,
    identity,
    job_control,
    jobs,
    launchers,
    log_search,
    logs,
    metrics,
    notifications,
    planning,
    plans,
    preemptions,
    prices,
    prometheus,
    streams,
    traces,
    workers,
)
from holdfast.api.routes.artifacts import outputs
from holdfast.api.routes.fleet import sweeps
from holdfast.api.routes.nodes import commands, shells
from holdfast.api.routes.queue import quotas
from holdfast.api.routes.sign_in import single_sign_on
from holdfast.api.routing import Route
from holdfast.api.schemas.service import HealthOut, Problem
from holdfast.errors import StoreUnavailable, Unavailable
from holdfast.services import Services
from holdfast.store.database import is_newer, newest_revision, revision_of

_OF_JOBS = (
    jobs.jobs_router,
    code_uploads.router,
    jobs.render_router,
    job_control.control_router,
    job_control.actions_router,
    sweeps.router,
    jobs.clones_router,
    job_control.removals_router,
)
_OF_RECORDS = (
    billing.bills_router,
    checkpoints.router,
    outputs.router,
    commands.router,
    shells.router,
    metrics.router,
    streams.router,
    logs.router,
    log_search.router,
)
_OF_DIAGNOSTICS = (
    diagnostics.ranks_router,
    diagnostics.hints_router,
    diagnostics.manifests_router,
    diagnostics.differences_router,
)
_OF_RUNS = (bundles.router, equivalence.router)
_OF_MONEY = (
    billing.costs_router,
    preemptions.router,
    budgets.router,
    quotas.router,
    prices.router,
    planning.router,
    traces.router,
    plans.router,
)
_OF_PEOPLE = (
    identity.sessions_router,
    single_sign_on.router,
    single_sign_on.browser_router,
    identity.users_router,
    identity.members_router,
    identity.tokens_router,
    audit.router,
)
_OF_CHANNELS = (notifications.channels_router, notifications.deliveries_router)
_OF_SERVICE = (
    workers.router,
    commands.workers_router,
    shells.workers_router,
    launchers.engine_router,
    launchers.launchers_router,
    prometheus.router,
    docs_site.docs_router,
    static_files.web_router,
)
_ROUTERS: Final = (
    *_OF_JOBS,
    *_OF_RECORDS,
    *_OF_DIAGNOSTICS,
    *_OF_RUNS,
    *_OF_MONEY,
    *_OF_PEOPLE,
    *_OF_CHANNELS,
    *_OF_SERVICE,
)

_SHELL_BYTES: Final = re.compile(r"/v1/jobs/[^/]+/shells/[^/]+/.+")
_PROBLEM: Final = {"model": Problem, "content": {problems.MEDIA_TYPE: {}}}


def _is_untraced(scope: MutableMapping[str, Any]) -> bool:
    """Whether a request is not traced.

    The address to which an identity provider leads back has a code. Requests that carry the bytes of an open shell, some at each key, would
    make up most spans.
    """
    path = str(scope.get("path", ""))
    return path.startswith("/sign-in") or _SHELL_BYTES.fullmatch(path) is not None


def create_app(services: Services) -> FastAPI:
    """Create the API over `services`; a server must serve it."""
    app = _routes()
    app.state.services = services
    return app


def describe() -> dict[str, Any]:
    """Return the OpenAPI description of the API; `docs/reference/openapi.json` is a copy."""
    return _routes().openapi()


def _routes() -> FastAPI:
    app = FastAPI(
        title="Holdfast",
        version=holdfast.__version__,
        description="Submit once; every preemption, every second and every cent is accounted for.",
        docs_url=None,
        redoc_url=None,
        responses=dict.fromkeys(("4XX", "5XX"), _PROBLEM),
        telemetry={
            "metrics": False,  # Prometheus reads them at /metrics.
            "logs": False,
            "operation_spans": False,
            "exclude": _is_untraced,
        },
    )
    app.router.route_class = Route
    problems.install(app)
    app.add_middleware(ReportFastPath)
    app.add_middleware(RequestLimits)  # Timing must also include the fast path.
    app.add_middleware(TimingMiddleware)  # The outermost middleware.
    for router in _ROUTERS:
        app.include_router(router)
    app.add_api_route("/healthz", healthz, response_model=HealthOut, tags=["health"])
    app.add_api_route("/readyz", readyz, response_model=HealthOut, tags=["health"])
    route_policy.check(chain(app.routes, *(router.routes for router in _ROUTERS)))
    return app


def healthz() -> HealthOut:
    """Report that the process responds."""
    return HealthOut(status="ok", version=holdfast.__version__)


def readyz(services: TheServices) -> HealthOut:
    """Check the database, its schema revision, free space for events, and the reconciler."""
    if not services.is_reconciling():
        raise Unavailable(
            "the reconciler has stopped or has been stuck for 15 s, so job states are out of date; if this lasts, restart the service"
        )
    if trouble := services.disk_error():
        raise StoreUnavailable(trouble)
    at, needed = revision_of(services.engine), newest_revision()
    if at != needed and not is_newer(at):
        raise StoreUnavailable(
            f"the database is at revision {at}, this version needs {needed}; run holdfast db upgrade"
        )
    return HealthOut(status="ready", version=holdfast.__version__, revision=at)

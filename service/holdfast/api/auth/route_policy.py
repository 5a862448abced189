"""The access policy of every route, as one table that determines who may call it.

A route missing from the table prevents the service from starting and fails a test. Worker reports bypass the router
(`report_fast_path`) and need the token that their row here requires.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, TypeAlias

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from holdfast.api.schemas.jobs import Can
from holdfast.domain.access.permissions import ACTION_REQUIREMENTS, Action, Caller
from holdfast.errors import Forbidden, NotFound


class PublicAccess(StrEnum):
    """Access that is independent of users' roles."""

    OPEN = "open"
    """Anyone, with or without a token."""
    WORKER = "worker"
    """Workers of the job in the path, with its token."""
    ADDRESS = "address"
    """Callers that know the secret in the path, which the route itself checks."""


Access: TypeAlias = Action | PublicAccess

PAGES: Final = (
    *("/", "/jobs/{job_id}", "/sweeps", "/sweeps/{sweep_id}", "/queue"),
    *("/preemptions", "/prices", "/submit", "/team"),
)
"""Paths of the dashboard's pages.

A test compares them with the list in `dashboard/src/pages.ts`.
"""

ROUTES: Final[Mapping[str, Access]] = {
    "GET /healthz": PublicAccess.OPEN,
    "GET /readyz": PublicAccess.OPEN,
    "GET /metrics": Action.MEASURE,
    "GET /docs": PublicAccess.OPEN,
    "GET /docs/{name}": PublicAccess.OPEN,
    "GET /docs/{path:path}": PublicAccess.OPEN,
    **{f"GET {page}": PublicAccess.OPEN for page in PAGES},
    "GET /assets/{name}": PublicAccess.OPEN,
    "GET /sign-in": PublicAccess.OPEN,
    "GET /sign-in/callback": PublicAccess.OPEN,
    "GET /v1/sign-in": PublicAccess.OPEN,
    "POST /v1/sign-in/device": PublicAccess.OPEN,
    "POST /v1/sign-in/device/token": PublicAccess.OPEN,
    "POST /v1/jobs/{job_id}/muster": PublicAccess.WORKER,
    "POST /v1/jobs/{job_id}/rendezvous": PublicAccess.WORKER,
    "POST /v1/jobs/{job_id}/reports": PublicAccess.WORKER,
    "POST /v1/skypilot/policy/{secret}": PublicAccess.ADDRESS,
    "POST /v1/jobs/{job_id}/nudge/{secret}": PublicAccess.ADDRESS,
    "GET /v1/whoami": Action.LOOK_AROUND,
    "POST /v1/session": Action.LOOK_AROUND,
    "GET /v1/session": Action.LOOK_AROUND,
    "DELETE /v1/session": Action.LOOK_AROUND,
    "GET /v1/launchers": Action.LOOK_AROUND,
    "POST /v1/launches/{key}/stop": Action.MANAGE_SERVICE,
    "GET /v1/prices": Action.LOOK_AROUND,
    "GET /v1/prices/history": Action.LOOK_AROUND,
    "GET /v1/what-if/loss": Action.LOOK_AROUND,
    "GET /v1/what-if/cadence": Action.LOOK_AROUND,
    "GET /v1/advice": Action.LOOK_AROUND,
    "GET /v1/traces": Action.LOOK_AROUND,
    "GET /v1/traces/export": Action.LOOK_AROUND,
    "POST /v1/traces": Action.MANAGE_SERVICE,
    "POST /v1/render": Action.LOOK_AROUND,
    "POST /v1/plans": Action.LOOK_AROUND,
    "GET /v1/jobs": Action.SEE,
    "GET /v1/stream": Action.SEE,
    "GET /v1/costs": Action.SEE,
    "GET /v1/preemptions": Action.SEE,
    "GET /v1/preemptions/notices": Action.SEE,
    "GET /v1/preemptions/history": Action.SEE,
    "GET /v1/preemptions/jobs": Action.SEE,
    "GET /v1/jobs/{job_id}": Action.SEE,
    "GET /v1/jobs/{job_id}/attempts": Action.SEE,
    "GET /v1/jobs/{job_id}/bill": Action.SEE,
    "GET /v1/jobs/{job_id}/plan": Action.SEE,
    "GET /v1/jobs/{job_id}/bundle": Action.SEE,
    "GET /v1/jobs/{job_id}/story": Action.SEE,
    "GET /v1/jobs/{job_id}/checkpoints": Action.SEE,
    "GET /v1/jobs/{job_id}/deliveries": Action.SEE,
    "GET /v1/jobs/{job_id}/diff": Action.SEE,
    "GET /v1/jobs/{job_id}/events": Action.SEE,
    "GET /v1/jobs/{job_id}/events/stream": Action.SEE,
    "GET /v1/jobs/{job_id}/hints": Action.SEE,
    "GET /v1/jobs/{job_id}/logs": Action.SEE,
    "GET /v1/jobs/{job_id}/logs/ranks": Action.SEE,
    "GET /v1/jobs/{job_id}/logs/search": Action.SEE,
    "GET /v1/jobs/{job_id}/logs/stream": Action.SEE,
    "GET /v1/jobs/{job_id}/logs/text": Action.SEE,
    "GET /v1/jobs/{job_id}/manifest": Action.SEE,
    "GET /v1/jobs/{job_id}/metrics": Action.SEE,
    "GET /v1/jobs/{job_id}/outputs": Action.SEE,
    "GET /v1/jobs/{job_id}/outputs/{number}": Action.SEE,
    "GET /v1/jobs/{job_id}/proofs": Action.SEE,
    "GET /v1/jobs/{job_id}/series": Action.SEE,
    "GET /v1/jobs/{job_id}/throughput": Action.SEE,
    "GET /v1/jobs/{job_id}/gpus": Action.SEE,
    "PUT /v1/code/pieces/{digest}": Action.UPLOAD,
    "POST /v1/code/pieces": Action.UPLOAD,
    "POST /v1/code/trees": Action.UPLOAD,
    "POST /v1/jobs": Action.SUBMIT,
    "POST /v1/jobs/actions": Action.STEER,
    "GET /v1/sweeps": Action.SEE,
    "POST /v1/sweeps": Action.SUBMIT,
    "GET /v1/sweeps/{sweep_id}": Action.SEE,
    "GET /v1/sweeps/{sweep_id}/metrics": Action.SEE,
    "PATCH /v1/sweeps/{sweep_id}": Action.STEER,
    "DELETE /v1/jobs/{job_id}": Action.REMOVE,
    "POST /v1/jobs/{job_id}/cancel": Action.STEER,
    "POST /v1/jobs/{job_id}/preempt": Action.STEER,
    "POST /v1/jobs/{job_id}/pause": Action.STEER,
    "POST /v1/jobs/{job_id}/resume": Action.STEER,
    "POST /v1/jobs/{job_id}/resume/preview": Action.STEER,
    "PATCH /v1/jobs/{job_id}/limits": Action.STEER,
    "PATCH /v1/jobs/{job_id}/priority": Action.STEER,
    "POST /v1/jobs/{job_id}/proofs": Action.STEER,
    "POST /v1/jobs/{job_id}/commands": Action.EXECUTE,
    "GET /v1/jobs/{job_id}/commands/{command_id}": Action.EXECUTE,
    "POST /v1/jobs/{job_id}/commands/next": PublicAccess.WORKER,
    "POST /v1/jobs/{job_id}/commands/{command_id}/start": PublicAccess.WORKER,
    "POST /v1/jobs/{job_id}/commands/{command_id}/output": PublicAccess.WORKER,
    "POST /v1/jobs/{job_id}/shells": Action.EXECUTE,
    "POST /v1/jobs/{job_id}/shells/{shell_id}/write": Action.EXECUTE,
    "POST /v1/jobs/{job_id}/shells/{shell_id}/read": Action.EXECUTE,
    "POST /v1/jobs/{job_id}/shells/{shell_id}/input": PublicAccess.WORKER,
    "POST /v1/jobs/{job_id}/shells/{shell_id}/output": PublicAccess.WORKER,
    "POST /v1/jobs/{job_id}/clone": Action.SUBMIT,
    "POST /v1/jobs/{job_id}/retry": Action.SUBMIT,
    "GET /v1/budgets": Action.SEE,
    "PUT /v1/budgets/project/{project}": Action.SET_BUDGET,
    "DELETE /v1/budgets/project/{project}": Action.SET_BUDGET,
    "PUT /v1/budgets/user/{user}": Action.MANAGE_SERVICE,
    "DELETE /v1/budgets/user/{user}": Action.MANAGE_SERVICE,
    "GET /v1/queue": Action.SEE,
    "GET /v1/quotas": Action.SEE,
    "PUT /v1/quotas/service": Action.MANAGE_SERVICE,
    "DELETE /v1/quotas/service": Action.MANAGE_SERVICE,
    "PUT /v1/quotas/project/{project}": Action.SET_BUDGET,
    "DELETE /v1/quotas/project/{project}": Action.SET_BUDGET,
    "PUT /v1/quotas/user/{user}": Action.MANAGE_SERVICE,
    "DELETE /v1/quotas/user/{user}": Action.MANAGE_SERVICE,
    "GET /v1/projects": Action.SEE,
    "GET /v1/projects/{project}/members": Action.SEE,
    "PUT /v1/projects/{project}/members/{user}": Action.MANAGE_MEMBERS,
    "DELETE /v1/projects/{project}/members/{user}": Action.MANAGE_MEMBERS,
    "GET /v1/projects/{project}/channels": Action.SEE,
    "GET /v1/projects/{project}/channels/{channel}/deliveries": Action.SEE,
    "GET /v1/projects/{project}/channels/{channel}/deliveries/{delivery_id}": Action.SEE,
    "POST /v1/projects/{project}/channels": Action.MANAGE_CHANNELS,
    "POST /v1/projects/{project}/channels/{channel}/test": Action.MANAGE_CHANNELS,
    "POST /v1/projects/{project}/channels/{channel}/rotate": Action.MANAGE_CHANNELS,
    "DELETE /v1/projects/{project}/channels/{channel}": Action.MANAGE_CHANNELS,
    "POST /v1/projects": Action.MANAGE_SERVICE,
    "PATCH /v1/projects/{project}": Action.MANAGE_SERVICE,
    "GET /v1/users": Action.MANAGE_SERVICE,
    "POST /v1/users": Action.MANAGE_SERVICE,
    "PATCH /v1/users/{user}": Action.MANAGE_SERVICE,
    "GET /v1/tokens": Action.SEE_TOKENS,
    "POST /v1/tokens": Action.MANAGE_TOKENS,
    "POST /v1/tokens/{token_id}/rotate": Action.MANAGE_TOKENS,
    "DELETE /v1/tokens/{token_id}": Action.MANAGE_TOKENS,
    "GET /v1/audit": Action.AUDIT,
    "GET /v1/audit/verdict": Action.AUDIT,
}


def access_of(route: BaseRoute, method: str) -> Access:
    """Return the access policy of a route.

    Raises:
        KeyError: the route is not in the table; a bug that `check` finds at startup.
    """
    assert isinstance(route, APIRoute)
    return ROUTES[f"{method} {route.path}"]


def check(routes: Iterable[BaseRoute]) -> None:
    """Check that table and routes match, and that routes of one job or project check membership."""
    routes = list(routes)
    names = {
        f"{method} {route.path}"
        for route in routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    undeclared, gone = sorted(names - ROUTES.keys()), sorted(ROUTES.keys() - names)
    assert not undeclared, (
        f"add them to the table in holdfast.api.auth.route_policy: {', '.join(undeclared)}"
    )
    assert not gone, f"remove these from the table, as no such routes exist: {', '.join(gone)}"
    hasty = [
        route.path for route in routes if isinstance(route, APIRoute) and type(route) is APIRoute
    ]
    assert not hasty, f"create these with holdfast.api.routing.Router: {', '.join(hasty)}"
    loose = sorted(name for name, what in ROUTES.items() if _skips_membership(name, what))
    assert not loose, f"these need an action that requires a role: {', '.join(loose)}"


def _skips_membership(name: str, what: Access) -> bool:
    """Whether a route concerns one job or project but also admits users outside of it."""
    if isinstance(what, PublicAccess) or not ("{job_id}" in name or "{project}" in name):
        return False
    return ACTION_REQUIREMENTS[what].role is None and not ACTION_REQUIREMENTS[what].of_service


def allowed_actions(caller: Caller, project: str | None = None) -> dict[str, Can]:
    """List every action in a project, or those without one; each with the reason if not allowed."""
    return {
        action.value: _can(caller, action, project)
        for action in Action
        if (ACTION_REQUIREMENTS[action].role is None) == (project is None)
    }


def _can(caller: Caller, action: Action, project: str | None) -> Can:
    try:
        caller.require(action, project)
    except (Forbidden, NotFound) as refusal:
        return Can(allowed=False, reason=refusal.detail)
    return Can(allowed=True)

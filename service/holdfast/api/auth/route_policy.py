"""What every route of the API does, in one table: who may call it follows from here, and from nowhere else.

A route that is not in the table stops the service from being built, and a test with it. Reports of workers pass around the router
(`fast_lane`), with the token that their row here asks for.

What a caller may do to what belongs to no job: said beforehand, in the words of the refusal.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final, TypeAlias

from fastapi.routing import APIRoute
from starlette.routing import BaseRoute

from holdfast.api.schemas.jobs import Can
from holdfast.domain.access.permissions import NEEDS, Action, Caller
from holdfast.errors import Forbidden, NotFound


class PublicAccess(StrEnum):
    """Ways in that people's roles have nothing to do with."""

    OPEN = "open"
    """For everybody, with a token or without."""
    WORKER = "worker"
    """For the workers of the job in the path, with its token."""
    ADDRESS = "address"
    """For whoever knows the secret in the path, which the route looks at itself."""


Access: TypeAlias = Action | PublicAccess

ROUTES: Final[Mapping[str, Access]] = {
    "GET /healthz": PublicAccess.OPEN,
    "GET /readyz": PublicAccess.OPEN,
    "GET /metrics": Action.MEASURE,
    "GET /docs/{name}": PublicAccess.OPEN,
    "GET /": PublicAccess.OPEN,
    "GET /jobs/{job_id}": PublicAccess.OPEN,
    "GET /preemptions": PublicAccess.OPEN,
    "GET /prices": PublicAccess.OPEN,
    "GET /submit": PublicAccess.OPEN,
    "GET /team": PublicAccess.OPEN,
    "GET /assets/{name}": PublicAccess.OPEN,
    "POST /v1/jobs/{job_id}/muster": PublicAccess.WORKER,
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
    "POST /v1/render": Action.LOOK_AROUND,
    "GET /v1/jobs": Action.SEE,
    "GET /v1/stream": Action.SEE,
    "GET /v1/costs": Action.SEE,
    "GET /v1/preemptions": Action.SEE,
    "GET /v1/preemptions/notices": Action.SEE,
    "GET /v1/preemptions/jobs": Action.SEE,
    "GET /v1/jobs/{job_id}": Action.SEE,
    "GET /v1/jobs/{job_id}/attempts": Action.SEE,
    "GET /v1/jobs/{job_id}/bill": Action.SEE,
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
    "GET /v1/jobs/{job_id}/proofs": Action.SEE,
    "GET /v1/jobs/{job_id}/series": Action.SEE,
    "PUT /v1/code/pieces/{digest}": Action.UPLOAD,
    "POST /v1/code/pieces": Action.UPLOAD,
    "POST /v1/code/trees": Action.UPLOAD,
    "POST /v1/jobs": Action.SUBMIT,
    "DELETE /v1/jobs/{job_id}": Action.REMOVE,
    "POST /v1/jobs/{job_id}/cancel": Action.STEER,
    "POST /v1/jobs/{job_id}/preempt": Action.STEER,
    "POST /v1/jobs/{job_id}/pause": Action.STEER,
    "POST /v1/jobs/{job_id}/resume": Action.STEER,
    "PATCH /v1/jobs/{job_id}/limits": Action.STEER,
    "POST /v1/jobs/{job_id}/proofs": Action.STEER,
    "POST /v1/jobs/{job_id}/clone": Action.SUBMIT,
    "POST /v1/jobs/{job_id}/retry": Action.SUBMIT,
    "GET /v1/budgets": Action.SEE,
    "PUT /v1/budgets/project/{project}": Action.SET_BUDGET,
    "DELETE /v1/budgets/project/{project}": Action.SET_BUDGET,
    "PUT /v1/budgets/user/{user}": Action.MANAGE_SERVICE,
    "DELETE /v1/budgets/user/{user}": Action.MANAGE_SERVICE,
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


def of(route: BaseRoute, method: str) -> Access:
    """What a route does.

    Raises:
        KeyError: nobody has said it; a bug, which `check` finds before anybody can call.
    """
    assert isinstance(route, APIRoute)
    return ROUTES[f"{method} {route.path}"]


def check(routes: Iterable[BaseRoute]) -> None:
    """Nothing, if every route is in the table, the table has no others, and none forgets whose the thing in its path is."""
    routes = list(routes)
    names = {
        f"{method} {route.path}"
        for route in routes
        if isinstance(route, APIRoute)
        for method in route.methods or ()
    }
    undeclared, gone = sorted(names - ROUTES.keys()), sorted(ROUTES.keys() - names)
    assert not undeclared, (
        f"say in holdfast.api.auth.route_policy what they do: {', '.join(undeclared)}"
    )
    assert not gone, f"there are no such routes any more: {', '.join(gone)}"
    hasty = [
        route.path for route in routes if isinstance(route, APIRoute) and type(route) is APIRoute
    ]
    assert not hasty, f"make these with holdfast.api.routing.Router: {', '.join(hasty)}"
    loose = sorted(name for name, what in ROUTES.items() if _is_loose(name, what))
    assert not loose, f"these need an action that asks for a role: {', '.join(loose)}"


def _is_loose(name: str, what: Access) -> bool:
    """Whether a route is about one job or project, and lets in people who are not in it."""
    if isinstance(what, PublicAccess) or not ("{job_id}" in name or "{project}" in name):
        return False
    return NEEDS[what].role is None and not NEEDS[what].of_service


def may(caller: Caller, project: str | None = None) -> dict[str, Can]:
    """Every action in a project, or without one those that are about none, by name; why not, where they may not."""
    return {
        action.value: _can(caller, action, project)
        for action in Action
        if (NEEDS[action].role is None) == (project is None)
    }


def _can(caller: Caller, action: Action, project: str | None) -> Can:
    try:
        caller.require(action, project)
    except (Forbidden, NotFound) as refusal:
        return Can(allowed=False, reason=refusal.detail)
    return Can(allowed=True)

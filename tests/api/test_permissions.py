"""Permissions on every route of the OpenAPI description, for every kind of caller.

Each caller is tested in their own project and in a foreign one.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from holdfast.api.auth import route_policy
from holdfast.api.auth.route_policy import ROUTES, PublicAccess
from holdfast.domain.access.permissions import ACTION_REQUIREMENTS, Action, TokenScope
from support.principals import FOREIGN, OWN, STAGE, Principals, create_principals
from support.simulated_service import JOB_FILE, SimulatedService, client

ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

CALLERS = ("owner", "boss", "lead", "member", "viewer", "outsider", "reader", "confined")
"""The callers.

`boss` is an admin of the service, `reader` a token of `lead` with the scope read, and `confined` a
token of `boss` for the project `own`.
"""
TABLE = """
open              GET /healthz
open              GET /readyz
open              GET /docs
open              GET /docs/{name}
open              GET /docs/{path:path}
open              GET /
open              GET /jobs/{job_id}
open              GET /preemptions
open              GET /queue
open              GET /sweeps
open              GET /sweeps/{sweep_id}
open              GET /prices
open              GET /submit
open              GET /team
open              GET /assets/{name}
open              GET /sign-in
open              GET /sign-in/callback
open              GET /v1/sign-in
open              POST /v1/sign-in/device
open              POST /v1/sign-in/device/token
++333333 ++333333 GET /metrics
++333333 ++333333 PUT /v1/budgets/user/{user}
++333333 ++333333 DELETE /v1/budgets/user/{user}
++333333 ++333333 PUT /v1/quotas/service
++333333 ++333333 PUT /v1/quotas/user/{user}
++333333 ++333333 DELETE /v1/quotas/service
++333333 ++333333 DELETE /v1/quotas/user/{user}
++333333 ++333333 POST /v1/projects
++333333 ++333333 GET /v1/users
++333333 ++333333 POST /v1/users
++333333 ++333333 PATCH /v1/users/{user}
++333333 ++333333 GET /v1/audit
++333333 ++333333 POST /v1/traces
++333333 ++333333 POST /v1/launches/{key}/stop
++333333 ++333333 GET /v1/audit/verdict
worker            POST /v1/jobs/{job_id}/muster
worker            POST /v1/jobs/{job_id}/rendezvous
worker            POST /v1/jobs/{job_id}/reports
worker            POST /v1/jobs/{job_id}/commands/next
worker            POST /v1/jobs/{job_id}/commands/{command_id}/start
worker            POST /v1/jobs/{job_id}/commands/{command_id}/output
worker            POST /v1/jobs/{job_id}/shells/{shell_id}/input
worker            POST /v1/jobs/{job_id}/shells/{shell_id}/output
address           POST /v1/skypilot/policy/{secret}
address           POST /v1/jobs/{job_id}/nudge/{secret}
++++++++ ++++++++ GET /v1/whoami
++++++++ ++++++++ POST /v1/session
++++++++ ++++++++ GET /v1/session
++++++++ ++++++++ DELETE /v1/session
++++++++ ++++++++ GET /v1/launchers
++++++++ ++++++++ GET /v1/prices
++++++++ ++++++++ GET /v1/prices/history
++++++++ ++++++++ GET /v1/what-if/loss
++++++++ ++++++++ GET /v1/what-if/cadence
++++++++ ++++++++ GET /v1/advice
++++++++ ++++++++ GET /v1/traces
++++++++ ++++++++ GET /v1/traces/export
++++++++ ++++++++ POST /v1/render
++++++++ ++++++++ POST /v1/plans
++++++++ ++++++++ GET /v1/jobs
++++++++ ++++++++ GET /v1/sweeps
++++++++ ++++++++ GET /v1/sweeps/{sweep_id}
++++++++ ++++++++ GET /v1/sweeps/{sweep_id}/metrics
++++++++ ++++++++ GET /v1/stream
++++++++ ++++++++ GET /v1/costs
++++++++ ++++++++ GET /v1/preemptions
++++++++ ++++++++ GET /v1/preemptions/notices
++++++++ ++++++++ GET /v1/preemptions/history
++++++++ ++++++++ GET /v1/preemptions/jobs
++++++++ ++++++++ GET /v1/budgets
++++++++ ++++++++ GET /v1/quotas
++++++++ ++++++++ GET /v1/queue
++++++++ ++++++++ GET /v1/projects
++++++++ ++++++++ GET /v1/tokens
+++++4++ ++444444 GET /v1/jobs/{job_id}
+++++4++ ++444444 GET /v1/jobs/{job_id}/attempts
+++++4++ ++444444 GET /v1/jobs/{job_id}/bill
+++++4++ ++444444 GET /v1/jobs/{job_id}/plan
+++++4++ ++444444 GET /v1/jobs/{job_id}/bundle
+++++4++ ++444444 GET /v1/jobs/{job_id}/story
+++++4++ ++444444 GET /v1/jobs/{job_id}/checkpoints
+++++4++ ++444444 GET /v1/jobs/{job_id}/deliveries
+++++4++ ++444444 GET /v1/jobs/{job_id}/diff
+++++4++ ++444444 GET /v1/jobs/{job_id}/events
+++++4++ ++444444 GET /v1/jobs/{job_id}/events/stream
+++++4++ ++444444 GET /v1/jobs/{job_id}/hints
+++++4++ ++444444 GET /v1/jobs/{job_id}/logs
+++++4++ ++444444 GET /v1/jobs/{job_id}/logs/ranks
+++++4++ ++444444 GET /v1/jobs/{job_id}/logs/search
+++++4++ ++444444 GET /v1/jobs/{job_id}/logs/stream
+++++4++ ++444444 GET /v1/jobs/{job_id}/logs/text
+++++4++ ++444444 GET /v1/jobs/{job_id}/manifest
+++++4++ ++444444 GET /v1/jobs/{job_id}/metrics
+++++4++ ++444444 GET /v1/jobs/{job_id}/outputs
+++++4++ ++444444 GET /v1/jobs/{job_id}/outputs/{number}
+++++4++ ++444444 GET /v1/jobs/{job_id}/proofs
+++++4++ ++444444 GET /v1/jobs/{job_id}/series
+++++4++ ++444444 GET /v1/jobs/{job_id}/throughput
+++++4++ ++444444 GET /v1/jobs/{job_id}/gpus
+++++4++ ++444444 GET /v1/projects/{project}/members
+++++4++ ++444444 GET /v1/projects/{project}/channels
+++++4++ ++444444 GET /v1/projects/{project}/channels/{channel}/deliveries
+++++4++ ++444444 GET /v1/projects/{project}/channels/{channel}/deliveries/{delivery_id}
++++333+ ++++333+ PUT /v1/code/pieces/{digest}
++++333+ ++++333+ POST /v1/code/pieces
++++333+ ++++333+ POST /v1/code/trees
++++++3+ ++++++3+ POST /v1/jobs/actions
++++++3+ ++++++3+ POST /v1/sweeps
++++++3+ ++++++3+ PATCH /v1/sweeps/{sweep_id}
++++343+ ++444434 POST /v1/jobs
++++343+ ++444444 DELETE /v1/jobs/{job_id}
++++343+ ++444444 POST /v1/jobs/{job_id}/commands
++++343+ ++444444 GET /v1/jobs/{job_id}/commands/{command_id}
++++343+ ++444444 POST /v1/jobs/{job_id}/shells
++++343+ ++444444 POST /v1/jobs/{job_id}/shells/{shell_id}/write
++++343+ ++444444 POST /v1/jobs/{job_id}/shells/{shell_id}/read
++++343+ ++444444 POST /v1/jobs/{job_id}/cancel
++++343+ ++444444 POST /v1/jobs/{job_id}/preempt
++++343+ ++444444 POST /v1/jobs/{job_id}/pause
++++343+ ++444444 POST /v1/jobs/{job_id}/resume
++++343+ ++444444 POST /v1/jobs/{job_id}/resume/preview
++++343+ ++444444 PATCH /v1/jobs/{job_id}/limits
++++343+ ++444444 PATCH /v1/jobs/{job_id}/priority
++++343+ ++444444 POST /v1/jobs/{job_id}/proofs
++++343+ ++444444 POST /v1/jobs/{job_id}/clone
++++343+ ++444444 POST /v1/jobs/{job_id}/retry
+++3343+ ++444444 PUT /v1/budgets/project/{project}
+++3343+ ++444444 DELETE /v1/budgets/project/{project}
+++3343+ ++444444 PUT /v1/quotas/project/{project}
+++3343+ ++444444 DELETE /v1/quotas/project/{project}
+++3343+ ++444444 PUT /v1/projects/{project}/members/{user}
+++3343+ ++444444 DELETE /v1/projects/{project}/members/{user}
+++3343+ ++444444 POST /v1/projects/{project}/channels
+++3343+ ++444444 POST /v1/projects/{project}/channels/{channel}/test
+++3343+ ++444444 POST /v1/projects/{project}/channels/{channel}/rotate
+++3343+ ++444444 DELETE /v1/projects/{project}/channels/{channel}
++333433 ++444444 PATCH /v1/projects/{project}
++++++3+ ++444434 POST /v1/tokens
++++++3+ ++444434 POST /v1/tokens/{token_id}/rotate
++++++3+ ++444434 DELETE /v1/tokens/{token_id}
"""
"""The expected access to each route, one per line, written by hand.

One letter per entry of `CALLERS`, in their own project and in a foreign one: + allowed, 3 forbidden
(403), 4 not found (404). Routes without roles name their callers: everybody (open), workers of the
job (worker), callers with the secret in the path (address). A route without a project responds
equally in both.
"""
BODIES_OF: dict[str, dict[str, Any]] = {
    "POST /v1/jobs": {"task": JOB_FILE},
    "POST /v1/tokens": {"name": "new"},
    "POST /v1/tokens/{token_id}/rotate": {},
    "DELETE /v1/tokens/{token_id}": {},
    "PUT /v1/code/pieces/{digest}": {},
    "POST /v1/code/pieces": {},
    "POST /v1/code/trees": {"entries": []},
}
"""Routes that check permissions on their resource themselves, and have to run for it."""
LISTS = [
    route.partition(" ")[2]
    for route, what in ROUTES.items()
    if what is Action.SEE
    and route.startswith("GET ")
    and "{" not in route
    and "stream" not in route
]
"""Routes across projects, which list the data of the caller's projects."""


@pytest.fixture
def principals(world: SimulatedService) -> Principals:
    return create_principals(world)


def _revoked(principals: Principals) -> TestClient:
    text, token = principals.token("boss")
    principals.world.services.access_tokens.revoke(token.id, principals.world.clock.now(), STAGE)
    return principals.with_token(text)


def _disabled(principals: Principals) -> TestClient:
    people = principals.world.services.users
    people.add_user("gone", is_admin=True, actor=STAGE)
    people.change_user("gone", is_admin=None, is_disabled=True, actor=STAGE)
    return principals.person("gone")


OPENERS: dict[str, Callable[[Principals], TestClient]] = {
    "owner": lambda principals: client(principals.world.app),
    "boss": lambda principals: principals.person("boss"),
    "lead": lambda principals: principals.person("lead"),
    "member": lambda principals: principals.person("member"),
    "viewer": lambda principals: principals.person("viewer"),
    "outsider": lambda principals: principals.person("outsider"),
    "reader": lambda principals: principals.person("lead", scopes=[TokenScope.READ]),
    "confined": lambda principals: principals.person("boss", project=OWN),
    "nobody": lambda principals: client(principals.world.app, "192.0.2.8"),
    "forger": lambda principals: principals.with_token("hf_000000000000_forged"),
    "revoked": _revoked,
    "expired": lambda principals: principals.person("boss", lasts=timedelta(seconds=-1)),
    "disabled": _disabled,
    "worker": lambda principals: principals.worker(OWN),
    "other worker": lambda principals: principals.worker(FOREIGN),
}


@dataclass(frozen=True)
class RouteExpectation:
    """The expected responses of one route."""

    route: str
    own: str
    """Or the access rule that is independent of roles."""
    foreign: str = ""

    def due(self, who: str, place: str) -> int | None:
        """The status of the refusal; None if the caller is permitted."""
        match self.own:
            case "open":
                return None
            case "address":
                return 404
            case "worker":
                return None if who == {OWN: "worker", FOREIGN: "other worker"}[place] else 401
        if who not in CALLERS:
            return 403 if "worker" in who else 401
        letters = self.own if place == OWN else self.foreign
        return {"+": None, "3": 403, "4": 404}[letters[CALLERS.index(who)]]


def rows() -> list[RouteExpectation]:
    return [
        RouteExpectation(route=f"{method} {path}", own=first, foreign="".join(second))
        for first, *second, method, path in map(str.split, TABLE.strip().splitlines())
    ]


def status(
    principals: Principals, caller: TestClient, who: str, row: RouteExpectation, place: str
) -> int:
    """The status of a caller's response.

    An unknown query key ends a permitted request before it has an effect.
    """
    method, _, path = row.route.partition(" ")
    holder = {"owner": None, "reader": "lead", "confined": "boss"}.get(who, who)
    project = OWN if who == "confined" else None
    whose = (
        {"user": holder, "project": project}
        if place == OWN and who in CALLERS
        else {"user": "guest"}
    )
    token_id = principals.token(**whose)[1].id if "{token_id}" in path else ""
    steps = {
        "job_id": principals.job(place),
        "project": place,
        "token_id": token_id,
        "name": "errors",
    }
    url = path.replace(":path}", "}").format_map(defaultdict(lambda: "1", steps))
    body = BODIES_OF.get(row.route)
    if "{secret}" in path:
        return caller.request(method, url).status_code
    if body is None:
        return caller.request(method, url, params={"no-such-word": "1"}).status_code
    if row.route == "POST /v1/jobs" or (row.route == "POST /v1/tokens" and place == FOREIGN):
        body = {**body, "project": place}
    return caller.request(method, url, json=body if method == "POST" else None).status_code


def test_permission_table_lists_every_route() -> None:
    assert sorted(row.route for row in rows()) == sorted(ROUTES)


@ON_SQLITE
def test_every_route_enforces_the_permission_table(principals: Principals) -> None:
    wrong = []

    for who, opener in OPENERS.items():
        with opener(principals) as caller:
            # Unknown callers have no project of their own.
            places = (OWN, FOREIGN) if who in CALLERS or "worker" in who else (OWN,)
            for row, place in itertools.product(rows(), places):
                got = status(principals, caller, who, row, place)
                due = row.due(who, place)
                refused = got if got in {401, 403, 404} and row.own != "open" else None
                if refused != due or got >= 500:
                    wrong.append((who, row.route, place, got, due))

    assert not wrong, "\n".join(map(str, wrong))


def test_undeclared_route_fails_the_policy_check() -> None:
    app = FastAPI()
    app.add_api_route("/v1/forgotten", lambda: None)

    with pytest.raises(AssertionError, match="GET /v1/forgotten"):
        route_policy.check(app.routes)


def test_removed_route_fails_the_policy_check() -> None:
    with pytest.raises(AssertionError, match="no such routes exist"):
        route_policy.check([])


def test_job_and_project_routes_require_a_role_there() -> None:
    """A bill declared like the prices would be visible to every authenticated user."""
    loose = {
        route
        for route, what in ROUTES.items()
        if what in {Action.LOOK_AROUND, Action.SEE_TOKENS, Action.MANAGE_TOKENS}
        and ("{job_id}" in route or "{project}" in route)
    }

    assert not loose


def test_mutating_routes_require_more_than_read_scope() -> None:
    """A wrong row of the table would let a read-only token change data."""
    harmless = {"POST /v1/render", "POST /v1/plans", "POST /v1/session", "DELETE /v1/session"}

    changing = {
        route: what
        for route, what in ROUTES.items()
        if not route.startswith("GET ") and isinstance(what, Action) and route not in harmless
    }

    assert {ACTION_REQUIREMENTS[action].scope for action in changing.values()} == {
        TokenScope.WRITE,
        TokenScope.ADMIN,
    }


def test_eight_routes_at_most_are_for_workers() -> None:
    assert sum(what is PublicAccess.WORKER for what in ROUTES.values()) <= 8


@ON_SQLITE
def test_lists_omit_projects_of_others(principals: Principals) -> None:
    principals.world.http.put(f"/v1/budgets/project/{FOREIGN}", json={"monthly_usd": 500})
    principals.world.http.put(f"/v1/quotas/project/{FOREIGN}", json={"jobs": 1})
    principals.world.submit(project=FOREIGN)
    principals.world.take_node(principals.foreign, notice_s=None)
    principals.world.pass_time(2)
    task = {"task": JOB_FILE, "project": FOREIGN}
    sweep = principals.person("boss").post(
        "/v1/sweeps", json={"task": task, "params": {"a": ["1"]}}
    )
    assert sweep.status_code == 201
    everything = {path: principals.person("boss").get(path).text for path in LISTS}

    for who in ("lead", "member", "viewer", "outsider", "reader", "confined"):
        caller = OPENERS[who](principals)
        for path in LISTS:
            answer = caller.get(path)
            assert answer.status_code == 200
            for word in ("job-of-foreign", principals.foreign, '"foreign"'):
                assert word not in answer.text, (who, path)
            # A permitted user gets more details, so that this test can fail.
            assert everything[path] != answer.text, (who, path)


@ON_SQLITE
def test_hidden_job_is_answered_like_an_absent_one(
    principals: Principals,
) -> None:
    caller = principals.person("member")

    foreign = caller.get(f"/v1/jobs/{principals.foreign}")
    nothing = caller.get("/v1/jobs/j000000000000")

    assert foreign.status_code == nothing.status_code == 404
    assert (
        foreign.json()["detail"].replace(principals.foreign, "j000000000000")
        == nothing.json()["detail"]
    )
    assert foreign.json()["type"] == nothing.json()["type"]


@ON_SQLITE
@pytest.mark.parametrize("cursor", ["own", "foreign"])
def test_cursor_reveals_no_other_project(principals: Principals, cursor: str) -> None:
    answer = principals.person("viewer").get("/v1/jobs", params={"cursor": principals.job(cursor)})

    assert "job-of-foreign" not in answer.text

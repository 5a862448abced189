"""Who may do what: every route of the API's own description, for everybody, in their project and in another's."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from cast import FOREIGN, OWN, STAGE, Cast, gather
from fastapi import FastAPI
from fastapi.testclient import TestClient
from holdfast.api import access
from holdfast.api.access import ROUTES, Door
from holdfast.domain.channels import Manner
from holdfast.domain.rights import NEEDS, Action, Role, Scope
from world import JOB_FILE, World, client

ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

MAY = {
    Action.LOOK_AROUND: "owner boss lead member viewer outsider reader confined",
    Action.SEE: "owner boss lead member viewer reader confined",
    Action.SUBMIT: "owner boss lead member confined",
    Action.STEER: "owner boss lead member confined",
    Action.SET_BUDGET: "owner boss lead confined",
    Action.MANAGE_CHANNELS: "owner boss lead confined",
    Action.MANAGE_MEMBERS: "owner boss lead confined",
    Action.SEE_TOKENS: "owner boss lead member viewer outsider reader confined",
    Action.MANAGE_TOKENS: "owner boss lead member viewer outsider confined",
    Action.MANAGE_SERVICE: "owner boss",
    Action.AUDIT: "owner boss",
    Action.MEASURE: "owner boss",
}
"""Who may do it in the project `own`, by hand. In a project that is not theirs, only admins of the service may."""
EVERYWHERE = {"owner", "boss"}
IN_BODY = {"POST /v1/jobs", "POST /v1/tokens"}
"""Routes that name a project in what they are sent."""
LISTS = [
    route.partition(" ")[2]
    for route, what in ROUTES.items()
    if what is Action.SEE
    and route.startswith("GET ")
    and "{" not in route
    and "stream" not in route
]
"""Routes that are about no one project, and show what is in those of the caller."""


@pytest.fixture
def cast(world: World) -> Cast:
    return gather(world)


def _revoked(cast: Cast) -> TestClient:
    text, token = cast.token("boss")
    cast.world.services.keyring.revoke(token.id, cast.world.clock.now(), STAGE)
    return cast.with_token(text)


def _disabled(cast: Cast) -> TestClient:
    people = cast.world.services.people
    people.add_user("gone", is_admin=True, doer=STAGE)
    people.change_user("gone", is_admin=None, is_disabled=True, doer=STAGE)
    return cast.person("gone")


OPENERS: dict[str, Callable[[Cast], TestClient]] = {
    "owner": lambda cast: cast.world.http,
    "boss": lambda cast: cast.person("boss"),
    "lead": lambda cast: cast.person("lead"),
    "member": lambda cast: cast.person("member"),
    "viewer": lambda cast: cast.person("viewer"),
    "outsider": lambda cast: cast.person("outsider"),
    "reader": lambda cast: cast.person("lead", scopes=[Scope.READ]),
    "confined": lambda cast: cast.person("boss", project=OWN),
    "nobody": lambda cast: client(cast.world.app, "192.0.2.8"),
    "forger": lambda cast: cast.with_token("hf_000000000000_forged"),
    "revoked": _revoked,
    "expired": lambda cast: cast.person("boss", lasts=timedelta(seconds=-1)),
    "disabled": _disabled,
    "worker": lambda cast: cast.worker(OWN),
    "other worker": lambda cast: cast.worker(FOREIGN),
}
PEOPLE = ("owner", "boss", "lead", "member", "viewer", "outsider", "reader", "confined")
NUMBERS = itertools.count()


def request(cast: Cast, route: str, who: str, place: str) -> tuple[str, str, dict[str, Any]]:
    """A request to a route about the project `place`, with which nothing is wrong but perhaps who sends it."""
    method, _, path = route.partition(" ")
    number = next(NUMBERS)
    for project in (OWN, FOREIGN):
        cast.world.services.people.set_member(project, "guest", Role.VIEWER, STAGE)
    holder: dict[str, Any] = {
        "user": {"owner": None, "reader": "lead", "confined": "boss"}.get(who, who)
    }
    if who == "confined":
        holder["project"] = OWN
    whose = holder if place == OWN and who in PEOPLE else {"user": "guest"}
    steps = {
        "job_id": cast.job(place),
        "project": place,
        "user": "guest",
        "token_id": cast.token(**whose)[1].id,
        "name": "errors",
        "secret": "guessed",
    }
    if "{channel}" in path:
        steps |= channel(cast, place, number)
    path = path.format_map(defaultdict(lambda: "1", steps))
    bodies: dict[str, Any] = {
        "POST /v1/jobs": {"task": JOB_FILE, "project": place},
        "POST /v1/render": {"task": JOB_FILE},
        "POST /v1/jobs/{job_id}/cancel": {},
        "POST /v1/jobs/{job_id}/preempt": {},
        "POST /v1/jobs/{job_id}/muster": {"incarnation": "a"},
        "POST /v1/jobs/{job_id}/reports": {"attempt": 1, "reports": []},
        "POST /v1/users": {"name": f"user-{number}"},
        "PATCH /v1/users/{user}": {"is_disabled": False},
        "POST /v1/projects": {"name": f"project-{number}"},
        "PATCH /v1/projects/{project}": {"is_archived": False},
        "PUT /v1/projects/{project}/members/{user}": {"role": "viewer"},
        "POST /v1/projects/{project}/channels": {
            "name": f"c{number}",
            "url": "https://example.com/",
        },
        "PUT /v1/budgets/project/{project}": {"monthly_usd": 500},
        "PUT /v1/budgets/user/{user}": {"monthly_usd": 500},
        "POST /v1/tokens": {"name": "new", "project": None if place == OWN else FOREIGN},
    }
    return method, path, bodies.get(route, {})


def channel(cast: Cast, project: str, number: int) -> dict[str, str]:
    """A channel of a project and a message of it, by their places in a path."""
    services, name = cast.world.services, f"ops-{number}"
    url = "https://example.com/"
    place, manner = services.messenger.place(url), Manner()
    for old in services.channels.of(project):  # A project has only so many.
        services.channels.remove(project, old.name, STAGE)
    made, _ = services.channels.add(project, name, url, place=place, manner=manner, doer=STAGE)
    return {"channel": name, "delivery_id": services.outbox.test(made, "a test").id}


def due(route: str, who: str, place: str) -> set[int]:
    """How the request is to be answered; nothing stands for any answer but a refusal."""
    match ROUTES[route]:
        case Door.OPEN:
            return set()
        case Door.ADDRESS:
            return {404}
        case Door.WORKER:
            return set() if who == {OWN: "worker", FOREIGN: "other worker"}[place] else {401}
        case action:
            return due_to_a_person(route, action, who, place)


def due_to_a_person(route: str, action: Action, who: str, place: str) -> set[int]:
    need = NEEDS[action]
    names_it = "{" in route or route in IN_BODY
    if who not in PEOPLE:
        return {403} if "worker" in who else {401}
    if who == "reader" and need.scope is not Scope.READ:
        # What they may not even know of is not there, whatever their token may do.
        hidden = place == FOREIGN and ("{job_id}" in route or "{project}" in route)
        return {404} if hidden else {403}
    if need.role and not names_it:
        return set()  # It shows everybody what is theirs.
    sees = who in EVERYWHERE or (place == OWN and who != "outsider")
    if (need.role or "{project}" in route) and names_it and not sees:
        return {404}
    if "token" in route and names_it and place == FOREIGN and who not in EVERYWHERE:
        return {404}
    return set() if who in MAY[action].split() else {403}


@ON_SQLITE
def test_every_route_answers_everybody_as_their_role_says(cast: Cast) -> None:
    cast.world.services.stopping.set()  # Streams say what there is, and end.
    paths = cast.world.app.openapi()["paths"]
    routes = [f"{method.upper()} {path}" for path, methods in paths.items() for method in methods]
    wrong = []

    for who, opener in OPENERS.items():
        caller = opener(cast)
        for route, place in itertools.product([*routes, *_unlisted()], (OWN, FOREIGN)):
            method, path, body = request(cast, route, who, place)
            answer = caller.request(
                method, path, json=body if method not in {"GET", "DELETE"} else None
            )
            refused = answer.status_code in {401, 403, 404} and not _is_empty(answer.text)
            got = {answer.status_code} if refused else set()
            if got != due(route, who, place) or answer.status_code >= 500:
                wrong.append((who, route, place, answer.status_code, due(route, who, place)))

    assert not wrong, "\n".join(map(str, wrong))


def _is_empty(answer: str) -> bool:
    """Whether a 404 is that of somebody who may see that there is nothing."""
    nothing = (
        "has no such log",
        "has told no manifest",
        "there is no session here",
        "there is no budget of",
    )
    return any(words in answer for words in nothing)


def _unlisted() -> list[str]:
    """Routes that SkyPilot alone calls."""
    return [route for route, what in ROUTES.items() if what is Door.ADDRESS]


def test_the_table_of_this_test_has_every_action() -> None:
    assert set(MAY) == set(Action)


def test_a_route_that_nobody_declared_is_not_built() -> None:
    app = FastAPI()
    app.add_api_route("/v1/forgotten", lambda: None)

    with pytest.raises(AssertionError, match="GET /v1/forgotten"):
        access.check(app.routes)


def test_a_route_that_is_gone_is_not_left_in_the_table() -> None:
    with pytest.raises(AssertionError, match="no such routes any more"):
        access.check([])


def test_what_is_about_a_job_or_a_project_asks_for_a_role_there() -> None:
    """A bill that were declared like the prices would be shown to everybody who may come in."""
    loose = {
        route
        for route, what in ROUTES.items()
        if what in {Action.LOOK_AROUND, Action.SEE_TOKENS, Action.MANAGE_TOKENS}
        and ("{job_id}" in route or "{project}" in route)
    }

    assert not loose


def test_what_changes_something_needs_more_than_to_read() -> None:
    """A wrong row of the table would let a token that may only look do something."""
    harmless = {"POST /v1/render", "POST /v1/session", "DELETE /v1/session"}

    changing = {
        route: what
        for route, what in ROUTES.items()
        if not route.startswith("GET ") and isinstance(what, Action) and route not in harmless
    }

    assert {NEEDS[action].scope for action in changing.values()} == {Scope.WRITE, Scope.ADMIN}


def test_six_routes_at_most_are_for_workers() -> None:
    assert sum(what is Door.WORKER for what in ROUTES.values()) <= 6


@ON_SQLITE
@pytest.mark.parametrize("who", [name for name in PEOPLE if name not in EVERYWHERE])
def test_no_list_tells_of_a_project_that_is_not_theirs(cast: Cast, who: str) -> None:
    caller = OPENERS[who](cast)
    cast.world.http.put(f"/v1/budgets/project/{FOREIGN}", json={"monthly_usd": 500})
    cast.world.take_node(cast.foreign, notice_s=None)
    cast.world.pass_time(2)

    for path in LISTS:
        answer = caller.get(path)
        assert answer.status_code == 200
        for word in ("job-of-foreign", cast.foreign, '"foreign"'):
            assert word not in answer.text, path
        # Somebody who may see it is told more, so that this test can fail.
        assert cast.person("boss").get(path).text != answer.text, path


@ON_SQLITE
def test_a_job_that_one_must_not_know_of_is_like_one_that_there_is_not(cast: Cast) -> None:
    caller = cast.person("member")

    foreign = caller.get(f"/v1/jobs/{cast.foreign}")
    nothing = caller.get("/v1/jobs/j000000000000")

    assert foreign.status_code == nothing.status_code == 404
    assert (
        foreign.json()["detail"].replace(cast.foreign, "j000000000000") == nothing.json()["detail"]
    )
    assert foreign.json()["type"] == nothing.json()["type"]


@ON_SQLITE
@pytest.mark.parametrize("cursor", ["own", "foreign"])
def test_a_cursor_leads_into_no_other_project(cast: Cast, cursor: str) -> None:
    answer = cast.person("viewer").get("/v1/jobs", params={"cursor": cast.job(cursor)})

    assert "job-of-foreign" not in answer.text

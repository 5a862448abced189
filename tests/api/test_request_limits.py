"""Requests refused before a route runs: unauthenticated, unknown query keys, large bodies."""

from __future__ import annotations

import itertools
import os
import re
import time
from dataclasses import replace

import pytest
from api import hostile_requests
from holdfast.api.problems import MAX_ISSUES
from holdfast.api.routing import MOST_VALUES
from holdfast.domain.jobfile.resources import NOT_TEXT
from holdfast.log_context import current_context
from holdfast.rate_limit import RateLimiter
from support.principals import PATIENT
from support.repetitions import repeat_count
from support.simulated_service import JOB_FILE, SimulatedService, client

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

BODIES = int(os.environ.get("HOSTILE_BODIES", str(repeat_count(30, 1000))))
"""The number of drawn bodies."""
MARGIN = 5
JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("POST /v1/jobs", b"{"),
        ("POST /v1/jobs", b"[" * 100_000),
        ("PATCH /v1/users/ada", b"\xff"),
        ("POST /v1/jobs/j1/reports", b"{"),
        ("GET /v1/jobs?nothing=1", b""),
    ],
)
def test_unknown_caller_is_refused_before_body_is_read(
    world: SimulatedService, route: str, body: bytes
) -> None:
    method, path = route.split()

    answer = client(world.app, "192.0.2.7").request(method, path, content=body, headers=JSON)

    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("path", "pointer", "message"),
    [
        ("/v1/jobs?tagg=x", "#/tagg", "unknown key; did you mean 'tag'?"),
        ("/v1/jobs?limit=1&statu=training", "#/statu", "unknown key; did you mean 'status'?"),
        ("/v1/whoami?verbose=1", "#/verbose", "unknown key"),
        ("/v1/what-if/cadence?cost=1", "#/cost", "unknown key; did you mean 'cost_s'?"),
        (f"/v1/jobs?{'x' * 5000}=1", f"#/{'x' * 5000}", "unknown key; known keys are cursor"),
    ],
)
def test_unknown_query_key_is_refused_with_a_suggestion(
    world: SimulatedService, path: str, pointer: str, message: str
) -> None:
    answer = world.http.get(path)

    assert answer.status_code == 422
    (flaw,) = [flaw for flaw in answer.json()["errors"] if flaw["pointer"] == pointer]
    assert flaw["message"].startswith(message)


def test_pages_accept_any_query_keys(world: SimulatedService) -> None:
    assert world.http.get("/healthz?probe=1").status_code == 200
    assert world.http.get("/docs/errors?from=mail").status_code == 200


def test_hostile_bodies_cost_little_cpu_time_and_memory(world: SimulatedService) -> None:
    """The goals are 100 ms and 50 MB; `pytest -s` prints the worst values.

    The time bound is higher because other programs slow the service down.
    """
    job = world.submit()["id"]
    worker, patient = world.worker_token(job), RateLimiter(time.monotonic, PATIENT)
    world.app.state.services = replace(world.services, rate_limiter=patient, trust_loopback=True)
    drawn = hostile_requests.bodies(5, hostile_requests.routes(world.app.openapi()))
    hostile_requests.cost(world, next(drawn), job, {})  # The first request initializes caches.

    costs = [
        hostile_requests.cost(world, body, job, worker if body.is_of_worker else {})
        for body in itertools.islice(drawn, BODIES)
    ]

    slowest = max(costs, key=lambda cost: cost.cpu_s)
    biggest = max(costs, key=lambda cost: cost.peak_bytes)
    print(f"\n{slowest.cpu_s * 1000:.0f} ms: {slowest.summary}")
    print(f"{biggest.peak_bytes / 2**20:.0f} MB: {biggest.summary}")
    assert slowest.cpu_s < 0.1 * MARGIN, slowest.summary
    assert biggest.peak_bytes < 50 * 1024 * 1024, biggest.summary
    assert {cost.summary for cost in costs if cost.status >= 500} == set()


@pytest.mark.parametrize("value", [r'"\ud800"', r'{"\ud800": "v"}', r'{"A": "\ud800"}'])
def test_half_of_a_surrogate_pair_is_refused_in_every_field(
    world: SimulatedService, value: str
) -> None:
    job = world.submit()["id"]
    worker, patient = world.worker_token(job), RateLimiter(time.monotonic, PATIENT)
    world.app.state.services = replace(world.services, rate_limiter=patient, trust_loopback=True)
    fields = hostile_requests.routes(world.app.openapi())

    costs = [
        hostile_requests.cost(world, body, job, worker if body.is_of_worker else {})
        for body in hostile_requests.with_value(fields, value)
    ]

    assert {cost.summary for cost in costs if cost.status >= 500} == set()


def test_half_of_a_surrogate_pair_is_named_by_its_field(world: SimulatedService) -> None:
    body = rb'{"task": "run: x\n", "project": "\ud800", "env": {"A": "\ud800"}}'

    answer = world.http.post("/v1/jobs", content=body, headers=JSON)

    assert answer.status_code == 422
    assert answer.json()["errors"] == [
        {"pointer": "#/project", "message": NOT_TEXT},
        {"pointer": "#/env/A", "message": NOT_TEXT},
    ]


def test_body_errors_beyond_a_limit_are_only_counted(world: SimulatedService) -> None:
    answer = world.http.post("/v1/jobs", json={f"k{n}": 1 for n in range(2 * MAX_ISSUES)})

    assert answer.status_code == 422
    assert len(answer.json()["errors"]) == MAX_ISSUES
    assert answer.json()["detail"].endswith(f"; and {MAX_ISSUES + 1} more mistakes")


def test_commas_in_strings_do_not_count_as_values(world: SimulatedService) -> None:
    script = "run: |\n  echo " + 'a,\\\\"b:' * MOST_VALUES

    answer = world.http.post("/v1/render", json={"task": script})

    assert answer.status_code == 200


def test_clone_cannot_exceed_the_variable_limit(world: SimulatedService) -> None:
    job = world.submit(JOB_FILE)["id"]

    answer = world.http.post(
        f"/v1/jobs/{job}/clone", json={"env": {f"A{n}": "1" for n in range(1001)}}
    )

    assert answer.status_code == 422
    assert "#/env: would be 1001 variables" in answer.json()["detail"]


@pytest.mark.parametrize("given", ["0af7651916cd43dd8448eb211c80319c", "proxy-1.2_x"])
def test_request_id_of_the_client_is_kept(world: SimulatedService, given: str) -> None:
    answer = world.http.get("/v1/jobs/j000000000000", headers={"X-Request-ID": given})

    assert answer.headers["x-request-id"] == answer.json()["request_id"] == given


@pytest.mark.parametrize("given", ["", "short", "x" * 33, "two words", 'a"quote-in-it'])
def test_invalid_request_id_is_replaced(world: SimulatedService, given: str) -> None:
    answer = world.http.get("/healthz", headers={"X-Request-ID": given})

    assert re.fullmatch("[0-9a-f]{16}", answer.headers["x-request-id"])


def test_routes_log_with_their_request_and_job(world: SimulatedService) -> None:
    job, seen = world.submit()["id"], list[dict[str, str]]()
    world.app.state.services = replace(
        world.services, nudge=lambda: seen.append({**current_context()})
    )

    world.http.post(f"/v1/jobs/{job}/cancel", headers={"X-Request-ID": "request-1"})

    assert seen == [{"request": "request-1", "job": job}]

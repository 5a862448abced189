"""Errors are returned as problem details with one clear sentence."""

from __future__ import annotations

import errno
from dataclasses import replace

import pytest
from holdfast.api.app import create_app
from sqlalchemy import event
from support.simulated_service import JOB_FILE, SimulatedService, client


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("GET", "/v1/jobs/nosuch", None, 404, "there is no job nosuch"),
        ("GET", "/nothing", None, 404, "there is no resource at /nothing"),
        ("DELETE", "/v1/jobs", None, 405, "DELETE is not allowed"),
        ("POST", "/v1/jobs", {"tsak": "x"}, 422, "#/tsak"),
        ("POST", "/v1/jobs", {}, 422, "#/task"),
        ("GET", "/v1/jobs?limit=0", None, 422, "limit"),
        ("GET", "/v1/jobs?cursor=zzz", None, 400, "start without a cursor"),
        ("GET", "/v1/jobs/nosuch/events/stream", None, 404, "there is no job"),
        ("GET", "/v1/jobs?find=a%00b", None, 400, "find: contains a NUL character"),
        ("GET", "/v1/jobs?limit=1&owner=%00", None, 400, "owner: contains a NUL character"),
        ("GET", "/v1/costs?tag%00=a", None, 400, "the query: contains a NUL character"),
        (
            "GET",
            "/v1/jobs/a%00b",
            None,
            404,
            "there is no resource at this address: the path contains a NUL character",
        ),
    ],
)
def test_bad_requests_are_answered_with_problem_details(
    world: SimulatedService, method: str, path: str, body: object, status: int, words: str
) -> None:
    answer = world.http.request(method, path, json=body)

    problem = answer.json()
    assert answer.status_code == problem["status"] == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert words in problem["detail"]
    assert problem["request_id"] == answer.headers["x-request-id"]
    page, _, heading = problem["type"].partition("#")
    assert f"{heading}" in world.http.get(page).text.lower()


def test_a_body_that_is_too_large_is_not_read(world: SimulatedService) -> None:
    answer = world.http.post("/v1/jobs", json={"task": "x" * 2_000_000})

    assert answer.status_code == 413
    assert answer.json()["title"] == "The body is too large."


def test_non_json_body_is_refused(world: SimulatedService) -> None:
    answer = world.http.post("/v1/jobs", content=b"{", headers={"Content-Type": "application/json"})

    assert answer.status_code == 422


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_full_disk_returns_503_and_loses_no_data(world: SimulatedService) -> None:
    kept = world.submit()["id"]
    engine = world.services.engine

    def no_room(connection: object, _branch: object = None) -> None:
        pages = connection.exec_driver_sql("PRAGMA page_count").scalar()
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages}")

    event.listen(engine, "begin", no_room)
    answers = [
        world.http.post(
            "/v1/jobs", json={"task": f"run: echo {'x' * 100_000}\nresources: {{infra: local}}"}
        )
        for _ in range(3)
    ]
    event.remove(engine, "begin", no_room)

    assert {answer.status_code for answer in answers} == {503}
    assert "full" in answers[0].json()["detail"]
    assert answers[0].headers["retry-after"]
    assert [job["id"] for job in world.http.get("/v1/jobs").json()["jobs"]] == [kept]


def test_healthy_service_is_ready_and_alive(world: SimulatedService) -> None:
    assert world.http.get("/readyz").json()["status"] == "ready"
    assert world.http.get("/healthz").json()["status"] == "ok"


def test_a_service_whose_reconciler_has_stopped_is_not_ready(world: SimulatedService) -> None:
    stopped = replace(world.services, is_reconciling=lambda: False)

    answer = client(create_app(stopped)).get("/readyz")

    assert answer.status_code == 503
    assert "restart the service" in answer.json()["detail"]


def test_bug_is_logged_with_its_route_and_without_the_secret(
    world: SimulatedService, caplog: pytest.LogCaptureFixture
) -> None:
    def nudge() -> None:
        raise ZeroDivisionError

    http = client(create_app(replace(world.services, nudge=nudge)))
    secret = world.services.tokens.for_nudge("job-1")

    answer = http.post(f"/v1/jobs/job-1/nudge/{secret}")

    assert answer.status_code == 500
    assert "bug in POST /v1/jobs/{job_id}/nudge/{secret}, request " in caplog.text
    assert answer.json()["request_id"] in caplog.text
    assert secret not in caplog.text


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_a_service_without_room_on_its_disk_is_not_ready(world: SimulatedService) -> None:
    full = replace(world.services, disk_error=lambda: "the disk of /var is full: 0 bytes are left")

    answer = client(create_app(full)).get("/readyz")

    assert answer.status_code == 503
    assert answer.json()["detail"] == "the disk of /var is full: 0 bytes are left"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_exhausted_descriptors_are_a_503_and_no_bug(
    world: SimulatedService, caplog: pytest.LogCaptureFixture
) -> None:
    def nudge() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    http = client(create_app(replace(world.services, nudge=nudge)))

    answer = http.post("/v1/jobs", json={"task": JOB_FILE})

    assert answer.status_code == 503
    assert "file descriptors" in answer.json()["detail"]
    assert "bug" not in caplog.text

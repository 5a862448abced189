"""Streams over a real connection: each event once, in order, from the last position."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from holdfast.client import Client, StreamMessage
from holdfast.errors import StoreUnavailable
from holdfast.rate_limit import RateLimiter, Streams
from holdfast.store.journal import RecordedEvent
from holdfast.store.queries import Queries
from support.principals import OWN, PATIENT, STAGE, create_principals
from support.simulated_service import SimulatedService, served


@pytest.fixture
def url(world: SimulatedService) -> Iterator[str]:
    with served(world) as url:
        yield url


def test_a_stream_of_an_ended_job_is_its_log_and_ends(world: SimulatedService, url: str) -> None:
    job = world.submit()["id"]
    world.until(job, "succeeded")

    with Client(url) as client:
        streamed, listed = list(client.jobs.follow_events(job)), client.jobs.events(job)

    assert streamed == listed


def test_stream_resumes_after_the_last_received_event(world: SimulatedService, url: str) -> None:
    job = world.submit()["id"]
    world.until(job, "succeeded")

    with Client(url) as client:
        everything = list(client.jobs.follow_events(job))
        place = str(everything[3].cursor)
        rest = client._http.get(f"/v1/jobs/{job}/events/stream", headers={"Last-Event-ID": place})

    ids = [int(line[4:]) for line in rest.text.splitlines() if line.startswith("id: ")]
    assert ids == [event.cursor for event in everything[4:]]


def test_stream_sends_new_events_to_an_open_connection(world: SimulatedService, url: str) -> None:
    job = world.submit()["id"]
    found: list[str] = []

    def listen() -> None:
        with Client(url) as client:
            found.extend(event.kind for event in client.jobs.follow_events(job))

    listener = threading.Thread(target=listen)
    listener.start()
    world.until(job, "succeeded")
    listener.join(timeout=120)

    assert found == [event["kind"] for event in world.http.get(f"/v1/jobs/{job}/events").json()]
    assert found[0] == "Submitted"
    assert found[-1] == "Finished"


def test_stream_of_all_jobs_is_ordered_by_cursor(world: SimulatedService, url: str) -> None:
    jobs = {world.submit()["id"] for _ in range(3)}

    with Client(url) as client:
        messages: list[StreamMessage] = []
        for message in client._follow("/v1/stream", {}):
            messages.append(message)
            if len(messages) == 3:
                break

    assert {message.data["job_id"] for message in messages} == jobs
    assert [int(message.id) for message in messages] == sorted(int(m.id) for m in messages)


@pytest.mark.parametrize("place", ["abc", "-1", "9" * 30])
def test_invalid_stream_position_is_refused(world: SimulatedService, place: str) -> None:
    job = world.submit()["id"]

    answer = world.http.get(f"/v1/jobs/{job}/events/stream", headers={"Last-Event-ID": place})

    assert answer.status_code == 400
    assert "is not the id of an event" in answer.json()["detail"]


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("loss", ["token", "user", "role"])
def test_stream_ends_once_its_permission_is_revoked(world: SimulatedService, loss: str) -> None:
    """A disabled user must not continue reading through an open connection."""
    principals = create_principals(world)
    text, token = principals.token("viewer")
    services, header = world.services, {"Authorization": f"Bearer {text}"}

    with (
        served(world) as url,
        httpx2.Client(base_url=url, headers=header, timeout=120) as http,
        http.stream("GET", f"/v1/jobs/{principals.own}/events/stream") as answer,
    ):
        lines = answer.iter_lines()
        found = [next(lines)]
        match loss:
            case "token":
                services.access_tokens.revoke(token.id, world.clock.now(), STAGE)
            case "user":
                services.users.change_user("viewer", is_admin=None, is_disabled=True, actor=STAGE)
            case "role":
                services.users.set_member(OWN, "viewer", None, STAGE)
        deadline_s = time.monotonic() + 120
        for line in lines:
            found.append(line)
            assert time.monotonic() < deadline_s, "the stream continues"  # Keep-alive: every 15 s.

    assert any(line.startswith("id: ") for line in found)
    assert "event: end" not in found


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_stream_of_all_jobs_omits_projects_of_others(
    world: SimulatedService,
) -> None:
    principals = create_principals(world)
    header = {"Authorization": f"Bearer {principals.token('viewer')[0]}"}
    found: list[str] = []

    with (
        served(world) as url,
        httpx2.Client(base_url=url, headers=header, timeout=120) as http,
        http.stream("GET", "/v1/stream") as answer,
    ):
        mine = world.services.journal.events(principals.own)
        for line in answer.iter_lines():
            found.append(line)
            if line == f"id: {mine[-1].cursor}":
                break

    assert principals.own in "\n".join(found)
    assert principals.foreign not in "\n".join(found)


def test_stream_may_start_at_the_current_position(world: SimulatedService, url: str) -> None:
    world.until(world.submit()["id"], "training")

    with (
        httpx2.Client(base_url=url, timeout=120) as http,
        http.stream("GET", "/v1/stream", params={"after": "now"}) as answer,
    ):
        later = world.submit()["id"]
        first = next(line for line in answer.iter_lines() if line.startswith("id: "))

    assert first == f"id: {world.services.journal.events(later)[0].cursor}"


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_client_disconnect_is_not_logged_as_an_error(
    world: SimulatedService, caplog: pytest.LogCaptureFixture
) -> None:
    principals = create_principals(world)
    header = {"Authorization": f"Bearer {principals.token('viewer')[0]}"}

    with served(world) as url, httpx2.Client(base_url=url, headers=header, timeout=120) as http:
        for _ in range(5):
            with http.stream("GET", "/v1/stream") as answer:
                next(answer.iter_lines())
        while world.services.rate_limiter.streams.count:
            http.get("/healthz")

    assert [record.getMessage() for record in caplog.records if record.levelno >= 30] == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_stream_ends_cleanly_without_the_database(
    world: SimulatedService, caplog: pytest.LogCaptureFixture
) -> None:
    class UnavailableQueries(Queries):
        def stream(self, **_: Any) -> list[RecordedEvent]:
            raise StoreUnavailable("unable to open database file")

    caplog.set_level(logging.INFO, "holdfast")
    world.app.state.services = replace(
        world.services, queries=UnavailableQueries(world.services.engine)
    )

    with served(world) as url:
        answer = httpx2.get(f"{url}/v1/stream", timeout=120)

    assert (answer.status_code, answer.text) == (200, "")
    assert "a live stream ended: unable to open database file" in caplog.text
    assert [record.getMessage() for record in caplog.records if record.levelno >= 30] == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
def test_open_streams_are_bounded_per_user_and_in_total(world: SimulatedService) -> None:
    principals = create_principals(world)
    streams = Streams(max_open=3, max_per_user=2)
    traffic = RateLimiter(time.monotonic, PATIENT, streams)
    world.app.state.services = replace(world.services, rate_limiter=traffic)
    viewer = {"Authorization": f"Bearer {principals.token('viewer')[0]}"}
    boss = {"Authorization": f"Bearer {principals.token('boss')[0]}"}

    def opened(stack: ExitStack, http: httpx2.Client, header: dict[str, str]) -> httpx2.Response:
        answer = stack.enter_context(http.stream("GET", "/v1/stream", headers=header))
        if answer.status_code != 200:
            answer.read()
        return answer

    with served(world) as url, httpx2.Client(base_url=url, timeout=120) as http:
        with ExitStack() as stack:
            answers = [
                opened(stack, http, header) for header in (viewer, viewer, viewer, boss, boss)
            ]
        while streams.count:
            http.get("/healthz")
        with ExitStack() as stack:
            again = opened(stack, http, viewer)

    assert [answer.status_code for answer in answers] == [200, 200, 429, 200, 503]
    assert "you have 2 live streams open" in answers[2].json()["detail"]
    assert "3 live streams are open" in answers[4].json()["detail"]
    assert again.status_code == 200

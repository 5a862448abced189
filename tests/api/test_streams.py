"""Streams over a real connection: everything once, in order, from where the client was."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from holdfast.client import Client, Message
from world import World, served


@pytest.fixture
def url(world: World) -> Iterator[str]:
    with served(world) as url:
        yield url


def test_a_stream_of_an_ended_job_is_its_log_and_ends(world: World, url: str) -> None:
    job = world.submit()["id"]
    world.until(job, "succeeded")

    with Client(url) as client:
        streamed, listed = list(client.follow_events(job)), client.events(job)

    assert streamed == listed


def test_a_stream_is_taken_up_after_the_last_event_that_came(world: World, url: str) -> None:
    job = world.submit()["id"]
    world.until(job, "succeeded")

    with Client(url) as client:
        everything = list(client.follow_events(job))
        place = str(everything[3].cursor)
        rest = client._http.get(f"/v1/jobs/{job}/events/stream", headers={"Last-Event-ID": place})

    ids = [int(line[4:]) for line in rest.text.splitlines() if line.startswith("id: ")]
    assert ids == [event.cursor for event in everything[4:]]


def test_news_comes_while_the_client_listens(world: World, url: str) -> None:
    job = world.submit()["id"]
    heard: list[str] = []

    def listen() -> None:
        with Client(url) as client:
            heard.extend(event.kind for event in client.follow_events(job))

    listener = threading.Thread(target=listen)
    listener.start()
    world.until(job, "succeeded")
    listener.join(timeout=10)

    assert heard == [event["kind"] for event in world.http.get(f"/v1/jobs/{job}/events").json()]
    assert heard[0] == "Submitted"
    assert heard[-1] == "Finished"


def test_the_stream_of_all_jobs_tells_of_all_in_order_of_cursor(world: World, url: str) -> None:
    jobs = {world.submit()["id"] for _ in range(3)}

    with Client(url) as client:
        messages: list[Message] = []
        for message in client._follow("/v1/stream", {}):
            messages.append(message)
            if len(messages) == 3:
                break

    assert {message.data["job_id"] for message in messages} == jobs
    assert [int(message.id) for message in messages] == sorted(int(m.id) for m in messages)


@pytest.mark.parametrize("place", ["abc", "-1", "9" * 30])
def test_a_place_that_is_none_is_refused(world: World, place: str) -> None:
    job = world.submit()["id"]

    answer = world.http.get(f"/v1/jobs/{job}/events/stream", headers={"Last-Event-ID": place})

    assert answer.status_code == 400
    assert "is not the id of an event" in answer.json()["detail"]

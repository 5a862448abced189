"""The client: broken streams resume, and foreign responses are recognized."""

from __future__ import annotations

import httpx2
import pytest
from holdfast.client import Client, Refused, ServiceUnreachable


def _client(handler: object) -> Client:
    transport = httpx2.MockTransport(handler)
    return Client("http://service", transport=transport, retry_pauses_s=())


def _stream(*messages: tuple[str, str]) -> httpx2.Response:
    text = "".join(
        f'event: log\ndata: {{"attempt":1,"text":"{text}"}}\nid: {place}\n\n'
        for place, text in messages
    )
    return httpx2.Response(200, text=": sign of life\n\n" + text)


def test_broken_stream_resumes_after_the_last_message() -> None:
    positions: list[str | None] = []

    def service(request: httpx2.Request) -> httpx2.Response:
        positions.append(request.headers.get("last-event-id"))
        if len(positions) == 1:
            return _stream(("1:5", "one"), ("1:9", "two"))
        rest = _stream(("1:14", "three")).text
        return httpx2.Response(200, text=rest + "event: end\ndata: {}\n\n")

    with _client(service) as client:
        found = [chunk.text for chunk in client.jobs.follow_log("j1", {})]

    assert found == ["one", "two", "three"]
    assert positions == [None, "1:9"]


def test_problem_is_raised_with_its_detail_and_exit_code() -> None:
    problem = {
        "type": "/docs/errors#not-found",
        "title": "No.",
        "status": 404,
        "detail": "there is no job j1",
    }

    with (
        _client(lambda _: httpx2.Response(404, json=problem)) as client,
        pytest.raises(Refused) as refused,
    ):
        client.jobs.get("j1")

    assert refused.value.exit_code == 4
    assert str(refused.value) == "there is no job j1"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (httpx2.Response(200, text="<html>"), r"http://service is not a Holdfast service \(/v1/jobs/j1\); check HOLDFAST_URL"),
        (httpx2.Response(404, text="<html>"), r"is not a Holdfast service \(/v1/jobs/j1 responded 404 Not Found\)"),
        (httpx2.Response(502, text="<html>"), r"a proxy at http://service responded 502 Bad Gateway to /v1/jobs/j1"),
    ],
)  # fmt: skip
def test_foreign_web_server_is_not_taken_for_the_service(
    answer: httpx2.Response, message: str
) -> None:
    with _client(lambda _: answer) as client, pytest.raises(ServiceUnreachable, match=message):
        client.jobs.get("j1")


@pytest.mark.parametrize("url", ["127.0.0.1:8642", "localhost", "ftp://service"])
def test_address_without_scheme_is_refused_with_the_setting(url: str) -> None:
    with pytest.raises(ServiceUnreachable, match="HOLDFAST_URL must begin with http://"):
        Client(url)


def test_invalid_service_address_names_its_variable() -> None:
    with pytest.raises(ServiceUnreachable, match="HOLDFAST_URL"):
        Client("http://a:b:c")

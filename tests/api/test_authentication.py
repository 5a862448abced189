"""Authentication of requests: this machine needs no token, all others do.

Workers have a token for their own job.
"""

from __future__ import annotations

import socket

import pytest
from holdfast.store.identity.access_tokens import NewToken
from support.simulated_service import SimulatedService, client, served


def test_loopback_request_needs_no_token(world: SimulatedService) -> None:
    assert world.http.get("/v1/jobs").status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "10.0.0.1"},
        {"Forwarded": "for=10.0.0.1"},
        {"Host": "evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "evil.example]"},
        {"Host": "127.0.0.1:@evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": ""},
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9999"},
        {"Origin": "https://127.0.0.1:8642"},
        {"Via": "1.1 cache"},
        *(
            {name: "x"}
            for name in (
                *("X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Server", "X-Forwarded"),
                *("X-Forwarded-Port", "X-Real-IP", "X-Client-IP", "X-Original-Host"),
                *("CF-Connecting-IP", "CF-Ray", "True-Client-IP", "Fastly-Client-IP", "CDN-Loop"),
                *("X-Envoy-External-Address", "X-Amzn-Trace-Id", "Proxy-Connection"),
            )
        ),
    ],
)
def test_proxied_and_cross_site_requests_need_a_token(
    world: SimulatedService, headers: dict[str, str]
) -> None:
    answer = world.http.get("/v1/jobs", headers=headers)

    assert answer.status_code == 401
    assert "HOLDFAST_TOKEN" in answer.json()["detail"]


@pytest.mark.parametrize("action", ["pause", "cancel", "clone"])
def test_cross_site_page_in_an_old_browser_is_refused(world: SimulatedService, action: str) -> None:
    """An old browser sends Origin with a POST, but no Sec-Fetch-Site."""
    job = world.submit()["id"]

    answer = world.http.post(f"/v1/jobs/{job}/{action}", headers={"Origin": "http://evil.example"})

    assert answer.status_code == 401
    assert "comes from a page of another origin" in answer.json()["detail"]
    assert world.job(job)["state"] == "queued"


def test_same_origin_page_acts_as_the_owner(world: SimulatedService) -> None:
    for host in ("127.0.0.1:8642", "localhost:8642", "[::1]:8642", "LOCALHOST"):
        own = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
        assert world.http.get("/v1/jobs", headers=own).status_code == 200, host


def test_http_1_0_request_counts_as_proxied(world: SimulatedService) -> None:
    with served(world) as url, socket.create_connection(("127.0.0.1", int(url[17:]))) as connection:
        connection.sendall(f"GET /v1/jobs HTTP/1.0\r\nHost: {url[7:]}\r\n\r\n".encode())
        answer = b"".join(iter(lambda: connection.recv(65536), b""))

    assert answer.startswith(b"HTTP/1.1 401")
    assert b"came through a proxy (it is HTTP/1.0)" in answer


def test_another_machine_needs_a_token(world: SimulatedService) -> None:
    token, _ = world.services.access_tokens.create(NewToken(name="someone"), world.clock.now())

    stranger = client(world.app, "192.0.2.7").get("/v1/jobs")
    allowed = client(world.app, "192.0.2.7", Authorization=f"Bearer {token}").get("/v1/jobs")

    assert stranger.status_code == 401
    assert stranger.headers["www-authenticate"] == "Bearer"
    assert allowed.status_code == 200


@pytest.mark.parametrize(
    "token", ["Bearer hf_abc_def", "Bearer x", "Basic abc", "Bearer ", "hf_a_b"]
)
def test_wrong_token_is_refused_on_loopback(world: SimulatedService, token: str) -> None:
    answer = world.http.get("/v1/jobs", headers={"Authorization": token})

    assert answer.status_code == 401
    assert answer.headers["content-type"] == "application/problem+json"


def test_worker_token_only_reports_for_its_own_job(
    world: SimulatedService,
) -> None:
    mine, other = world.submit()["id"], world.submit()["id"]
    token = {"Authorization": f"Bearer {world.services.tokens.for_worker(mine)}"}
    empty = {"attempt": 1, "reports": []}

    own = world.http.post(f"/v1/jobs/{mine}/reports", json=empty, headers=token)
    foreign = world.http.post(f"/v1/jobs/{other}/reports", json=empty, headers=token)
    look = world.http.get(f"/v1/jobs/{mine}", headers=token)

    assert (own.status_code, own.json()) == (
        200,
        {"next": 1, "leave_within_s": None, "stop": None, "drills": [], "remaining": None},
    )
    assert foreign.status_code == 401
    assert look.status_code == 403


def test_user_token_cannot_send_worker_reports(world: SimulatedService) -> None:
    job = world.submit()["id"]
    token, _ = world.services.access_tokens.create(NewToken(name="someone"), world.clock.now())

    answer = world.http.post(
        f"/v1/jobs/{job}/reports",
        json={"attempt": 1, "reports": []},
        headers={"Authorization": f"Bearer {token}"},
    )

    assert answer.status_code == 401


def test_every_route_requires_authentication(world: SimulatedService) -> None:
    stranger = client(world.app, "192.0.2.7")
    open_to_all = {"/healthz", "/readyz", "/openapi.json", "/docs/{name}"}

    for path, methods in stranger.get("/openapi.json").json()["paths"].items():
        for method in methods:
            if path not in open_to_all and not path.startswith("/v1/sign-in"):
                answer = stranger.request(method, path.replace("{job_id}", "j0"), json={})
                assert answer.status_code == 401, (method, path)

"""Browser sessions: a cookie instead of a token, valid until logout or expiry.

Only pages of the service may use it.
"""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from holdfast.store.tables.identity import sessions as table
from sqlalchemy import select
from support.principals import OWN, STAGE, Principals, create_principals
from support.simulated_service import SimulatedService

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

HERE = "http://127.0.0.1:8642"
PAGE = {"Origin": HERE, "Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def principals(world: SimulatedService) -> Principals:
    return create_principals(world)


def browser(principals: Principals, base_url: str = HERE) -> TestClient:
    """A browser on another machine, such as behind a tunnel."""
    return TestClient(
        principals.world.app,
        base_url=base_url,
        client=("192.0.2.9", 40000),
        raise_server_exceptions=False,
    )


def log_in(
    principals: Principals, base_url: str = HERE, user: str = "member"
) -> tuple[TestClient, Any, str]:
    """A browser with a session, the login response, and the id of the session's token."""
    text, token = principals.token(user)
    page = browser(principals, base_url)
    answer = page.post("/v1/session", headers={"Authorization": f"Bearer {text}"})
    return page, answer, token.id


def cancel(principals: Principals, page: TestClient, **headers: str) -> int:
    status: int = page.post(f"/v1/jobs/{principals.own}/cancel", headers=headers).status_code
    return status


def test_session_cookie_authenticates_like_its_token(principals: Principals) -> None:
    page, answer, token_id = log_in(principals)

    assert answer.status_code == 201
    assert answer.json()["user"] == "member"
    assert page.get("/v1/whoami").json()["token_id"] == token_id
    assert page.get("/v1/session").json() == answer.json()
    assert page.get("/v1/jobs").status_code == 200


def test_https_cookie_has_the_host_prefix(principals: Principals) -> None:
    _, plain, _ = log_in(principals)
    _, secure, _ = log_in(principals, "https://holdfast.example")

    result, hosts = plain.headers["set-cookie"].lower(), secure.headers["set-cookie"].lower()
    assert result.startswith("holdfast=")
    assert "secure" not in result
    assert hosts.startswith("__host-holdfast=")
    assert "secure" in hosts
    for cookie in (result, hosts):
        assert "httponly" in cookie
        assert "samesite=lax" in cookie
        assert "path=/" in cookie
        assert "domain" not in cookie


def test_forwarded_https_determines_cookie_and_origin(principals: Principals) -> None:
    proxied = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "198.51.100.1"}
    text, _ = principals.token("member")
    page = browser(principals, "http://holdfast.example")

    answer = page.post("/v1/session", headers={**proxied, "Authorization": f"Bearer {text}"})
    cookie = answer.headers["set-cookie"].partition(";")[0]
    headers = {
        **proxied,
        "Cookie": cookie,
        "Origin": "https://holdfast.example",
        "X-CSRF-Token": answer.json()["csrf"],
    }

    assert cookie.startswith("__Host-")
    assert cancel(principals, page, **headers) == 202
    assert cancel(principals, page, **{**headers, "Origin": "http://holdfast.example"}) == 403


def test_plain_cookie_is_ignored_over_https(principals: Principals) -> None:
    """Another host of the same domain can set such a cookie, and so inject its own session."""
    plain, _, _ = log_in(principals)
    page = browser(principals, "https://holdfast.example")

    answer = page.get("/v1/jobs", headers={"Cookie": f"holdfast={plain.cookies['holdfast']}"})

    assert answer.status_code == 401


def test_session_without_tls_requires_loopback(principals: Principals) -> None:
    _, answer, _ = log_in(principals, "http://holdfast.example")

    assert answer.status_code == 409
    assert "https" in answer.json()["detail"]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({}, 202),
        ({"X-CSRF-Token": ""}, 403),
        ({"X-CSRF-Token": "guessed"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "none"}, 403),
        ({"Origin": ""}, 403),
    ],
)
def test_only_same_origin_pages_may_change_data(
    principals: Principals, change: dict[str, str], status: int
) -> None:
    page, answer, _ = log_in(principals)
    headers = {**PAGE, "X-CSRF-Token": answer.json()["csrf"], **change}

    assert cancel(principals, page, **headers) == status


def test_change_without_an_origin_header_is_refused(
    principals: Principals,
) -> None:
    page, answer, _ = log_in(principals)
    csrf = answer.json()["csrf"]

    assert cancel(principals, page, **{"X-CSRF-Token": csrf}) == 403
    assert cancel(principals, page, **{"X-CSRF-Token": csrf, "Origin": HERE}) == 202


def test_csrf_token_is_bound_to_its_session(principals: Principals) -> None:
    page, _, _ = log_in(principals)
    _, other, _ = log_in(principals)

    assert cancel(principals, page, **PAGE, **{"X-CSRF-Token": other.json()["csrf"]}) == 403


def test_logout_ends_the_session_permanently(principals: Principals) -> None:
    page, answer, _ = log_in(principals)
    cookie = page.cookies["holdfast"]

    out = page.delete("/v1/session", headers={**PAGE, "X-CSRF-Token": answer.json()["csrf"]})
    page.cookies.set("holdfast", cookie)

    assert out.status_code == 204
    assert page.get("/v1/jobs").status_code == 401
    actions = [entry.audit_action.action for entry in principals.world.services.audit.page(limit=2)]
    assert actions == ["session.end", "session.begin"]


def test_login_replaces_a_planted_session(principals: Principals) -> None:
    """A session id planted in the browser before the login is invalid afterwards."""
    page, _, _ = log_in(principals)
    old = page.cookies["holdfast"]
    text, _ = principals.token("member")

    page.post("/v1/session", headers={"Authorization": f"Bearer {text}"})
    new = page.cookies["holdfast"]
    page.cookies.set("holdfast", old, domain="127.0.0.1", path="/")
    stale = browser(principals)
    stale.cookies.set("holdfast", old)

    assert old != new
    assert stale.get("/v1/jobs").status_code == 401


def test_session_ends_after_eight_idle_hours(principals: Principals) -> None:
    page, _, _ = log_in(principals)
    statuses = []

    for hours in (7.9, 7.9, 8):
        principals.world.clock.advance(hours * 3600)
        statuses.append(page.get("/v1/jobs").status_code)

    assert statuses == [200, 200, 401]


def test_session_ends_with_its_token_or_user(principals: Principals) -> None:
    services = principals.world.services
    page, _, token_id = log_in(principals)
    other, _, _ = log_in(principals, user="lead")

    services.access_tokens.revoke(token_id, principals.world.clock.now(), STAGE)
    services.users.change_user("lead", is_admin=None, is_disabled=True, actor=STAGE)

    assert page.get("/v1/jobs").status_code == 401
    assert other.get("/v1/jobs").status_code == 401


def test_removed_role_applies_to_open_sessions(principals: Principals) -> None:
    page, _, _ = log_in(principals)
    before = page.get(f"/v1/jobs/{principals.own}").status_code

    principals.world.services.users.set_member(OWN, "member", None, STAGE)

    assert (before, page.get(f"/v1/jobs/{principals.own}").status_code) == (200, 404)


def test_session_cookie_is_not_stored_in_the_database(principals: Principals) -> None:
    page, _, _ = log_in(principals)

    with principals.world.services.engine.connect() as connection:
        rows = str(connection.execute(select(table)).all())

    assert page.cookies["holdfast"] not in rows


def test_loopback_needs_no_session(principals: Principals) -> None:
    assert principals.world.http.post("/v1/session").status_code == 409


@pytest.mark.parametrize(
    "path", ["/healthz", "/v1/jobs", "/nowhere", "/docs/errors", "/openapi.json"]
)
def test_every_response_has_security_headers(principals: Principals, path: str) -> None:
    for answer in (browser(principals).get(path), principals.world.http.get(path)):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-opener-policy"] == "same-origin"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-request-id"]
        assert "access-control-allow-origin" not in answer.headers

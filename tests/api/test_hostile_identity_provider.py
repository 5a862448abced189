"""An identity provider that is broken or hostile signs nobody in, and reaches nothing through the service."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi.testclient import TestClient
from holdfast.domain.access.audit import Actor
from holdfast.errors import IdentityProviderFailed
from holdfast.single_sign_on.connection import MAX_BYTES, ProviderConnection
from holdfast.single_sign_on.flows import MAX_SIGN_INS
from joserfc import jwt
from joserfc.jwk import OctKey
from support.hostile_provider import CLIENT_SECRET, HostileProvider, hostile_provider, new_key
from support.openid_provider import SignInService, failure_of, oidc_settings, use_provider
from support.simulated_service import SimulatedService

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def provider() -> Iterator[HostileProvider]:
    with hostile_provider() as running:
        yield running


@pytest.fixture
def service(world: SimulatedService, provider: HostileProvider) -> SignInService:
    return use_provider(world, oidc_settings(provider.issuer))


def start(service: SignInService, provider: HostileProvider) -> tuple[TestClient, dict[str, str]]:
    """A browser that started a sign-in, and the parameters that the provider received."""
    browser = service.browser()
    answer = browser.get("/sign-in")
    query = parse_qs(urlsplit(answer.headers["location"]).query)
    sent = {name: values[0] for name, values in query.items()}
    provider.nonce = sent.get("nonce")
    return browser, sent


def sign_in(service: SignInService, provider: HostileProvider) -> TestClient:
    """A browser that returned from the provider."""
    browser, sent = start(service, provider)
    browser.get("/sign-in/callback", params={"code": "code", "state": sent["state"]})
    return browser


def unsigned(claims: dict[str, Any]) -> str:
    parts = ({"alg": "none", "typ": "JWT"}, claims)
    words = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts
    ]
    return f"{'.'.join(words)}."


def with_client_secret(claims: dict[str, Any]) -> str:
    key = OctKey.import_key(CLIENT_SECRET)
    return jwt.encode({"alg": "HS256"}, claims, key, algorithms=["HS256"])


def test_valid_responses_sign_in(service: SignInService, provider: HostileProvider) -> None:
    browser, sent = start(service, provider)
    browser.get(
        "/sign-in/callback", params={"code": "code", "state": sent["state"], "iss": provider.issuer}
    )

    assert browser.get("/v1/whoami").json()["user"] == "ada"
    assert sent["code_challenge_method"] == "S256"
    assert sent["scope"] == "openid profile email offline_access"
    form = provider.forms[0]
    assert form["code_verifier"]
    assert form["redirect_uri"] == "http://127.0.0.1:8642/sign-in/callback"
    basic = base64.b64encode(f"holdfast:{CLIENT_SECRET}".encode()).decode()
    assert form["authorization"] == f"Basic {basic}"
    assert "client_secret" not in form


WRONG_CLAIMS: list[tuple[dict[str, Any], str]] = [
    ({"iss": "https://evil.example"}, "iss"),
    ({"aud": "another-client"}, "aud"),
    ({"aud": ["holdfast", "another-client"]}, "azp"),
    ({"azp": "another-client"}, "azp"),
    ({"nonce": "of another sign-in"}, "nonce"),
    ({"nonce": None}, "nonce"),
    ({"exp": 1}, "expired"),
    ({"exp": None}, "exp"),
    ({"exp": "soon"}, "exp"),
    ({"iat": 1}, "too old"),
    ({"iat": 99999999999}, "in the future"),
    ({"nbf": 99999999999}, "not yet valid"),
    ({"sub": None}, "sub"),
    ({"sub": ""}, "subject"),
    ({"sub": 7}, "sub"),
    ({"sub": "s" * 256}, "subject"),
    ({"at_hash": "of-another-token"}, "at_hash"),
    ({"groups": {"nlp-team": True}}, "not a list"),
    ({"groups": [7]}, "not a list"),
    ({"groups": None, "_claim_names": {"groups": "src1"}}, "too many groups"),
]


def test_wrong_claims_are_refused(service: SignInService, provider: HostileProvider) -> None:
    for claims, sentence in WRONG_CLAIMS:
        provider.claims = claims

        browser = sign_in(service, provider)

        assert sentence in failure_of(browser), claims
        assert browser.get("/v1/whoami").status_code == 401, claims
    assert service.world.services.users.users() == []


@pytest.mark.parametrize("sign", [unsigned, with_client_secret, lambda _: "not.a.token", lambda _: "", lambda _: "\ud83d"])  # fmt: skip
def test_wrong_signatures_are_refused(
    service: SignInService, provider: HostileProvider, sign: Any
) -> None:
    provider.sign = sign

    browser = sign_in(service, provider)

    assert "signature" in failure_of(browser)
    assert browser.get("/v1/whoami").status_code == 401
    assert provider.requests.count("/jwks") == 2, "keys are requested again only once"


def test_changed_keys_are_requested_once(service: SignInService, provider: HostileProvider) -> None:
    sign_in(service, provider)
    provider.key = new_key("second")

    browser = sign_in(service, provider)
    sign_in(service, provider)

    assert browser.get("/v1/whoami").status_code == 200
    assert provider.requests.count("/jwks") == 2
    assert provider.requests.count("/.well-known/openid-configuration") == 1


def test_symmetric_and_broken_keys_are_ignored(
    service: SignInService, provider: HostileProvider
) -> None:
    secret = base64.urlsafe_b64encode(CLIENT_SECRET.encode()).decode().rstrip("=")
    provider.keys = [
        {"kty": "oct", "k": secret, "kid": "first"},
        {"kty": "RSA", "n": "?", "e": 7},
        {"kty": "future"},
        {"kty": "RSA", "use": "enc"},
        provider.key.as_dict(private=False),
    ]

    assert sign_in(service, provider).get("/v1/whoami").status_code == 200
    provider.keys = provider.keys[:4]
    provider.sign = with_client_secret
    assert "publishes no key" in failure_of(sign_in(service, provider))


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        ({"issuer": "https://evil.example"}, "HOLDFAST_OIDC_ISSUER"),
        ({"issuer": None}, "HOLDFAST_OIDC_ISSUER"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "authorization_endpoint"),
        ({"authorization_endpoint": "http://user@evil.example"}, "authorization_endpoint"),
        ({"authorization_endpoint": None}, "authorization_endpoint"),
        ({"authorization_endpoint": ["x"]}, "authorization_endpoint"),
        ({"authorization_endpoint": "http://a\r\nX: y"}, "authorization_endpoint"),
    ],
)
def test_wrong_description_starts_no_sign_in(
    service: SignInService, provider: HostileProvider, metadata: dict[str, Any], sentence: str
) -> None:
    provider.metadata = metadata

    browser = service.browser()
    answer = browser.get("/sign-in")

    assert answer.headers["location"] == "/"
    assert sentence in failure_of(browser)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://127.0.0.1:9/token", "not public"),
        ("http://10.1.2.3/token", "not public"),
        ("http://169.254.169.254/latest", "cloud credentials"),
        ("http://[::ffff:169.254.169.254]/latest", "cloud credentials"),
        ("file:///etc/passwd", "token_endpoint"),
    ],
)
def test_provider_reaches_no_other_private_host(
    service: SignInService, provider: HostileProvider, url: str, why: str
) -> None:
    provider.metadata = {"token_endpoint": url}

    browser = sign_in(service, provider)

    assert why in failure_of(browser)
    assert browser.get("/v1/whoami").status_code == 401


def test_own_host_may_be_private_but_no_metadata(service: SignInService) -> None:
    del service
    connection = ProviderConnection("https://login.example", resolve=lambda *_: ["169.254.169.254"])

    with pytest.raises(IdentityProviderFailed, match="cloud credentials"):
        connection.get("https://login.example/.well-known/openid-configuration")


def test_issuer_with_tls_names_no_address_without(service: SignInService) -> None:
    del service
    connection = ProviderConnection("https://login.example")

    with pytest.raises(IdentityProviderFailed, match="without TLS"):
        connection.check_url("token_endpoint", "http://login.example/token")


@pytest.mark.parametrize(
    "body", [b"x" * (MAX_BYTES + 1), b"[]", b"null", b"<html>", b"[" * 100_000, b"\xff", b""]
)
@pytest.mark.parametrize(
    "path",
    [
        "/token",
        pytest.param("/jwks", marks=pytest.mark.full),
        pytest.param("/.well-known/openid-configuration", marks=pytest.mark.full),
    ],
)
def test_malformed_responses_are_a_sentence(
    service: SignInService, provider: HostileProvider, path: str, body: bytes
) -> None:
    provider.raw = {path: body}
    browser, sent = service.browser(), {"state": "unknown-state"}
    if path != "/.well-known/openid-configuration":
        browser, sent = start(service, provider)
        browser.get("/sign-in/callback", params={"code": "code", "state": sent["state"]})
    else:
        browser.get("/sign-in")

    assert "127.0.0.1" in failure_of(browser)
    assert browser.get("/v1/whoami").status_code == 401


@pytest.mark.parametrize(
    ("fields", "sentence"),
    [
        ({"device_code": None}, "device_code"),
        ({"user_code": "A\x1b[2J"}, "user_code"),
        ({"user_code": "A" * 65}, "user_code"),
        ({"verification_uri": "javascript:alert(1)"}, "verification address"),
        ({"verification_uri_complete": "http://x/\x1b[2J"}, "verification address"),
    ],
)
def test_device_codes_that_harm_a_terminal_are_refused(
    service: SignInService, provider: HostileProvider, fields: dict[str, Any], sentence: str
) -> None:
    valid = {"device_code": "d", "user_code": "AB", "verification_uri": f"{provider.issuer}/device"}
    provider.raw = {"/device_authorization": json.dumps({**valid, **fields}).encode()}

    answer = service.browser().post("/v1/sign-in/device")

    assert answer.status_code == 503
    assert sentence in answer.json()["detail"]


def test_device_times_are_bounded(service: SignInService, provider: HostileProvider) -> None:
    code = {"device_code": "d", "user_code": "AB", "verification_uri": f"{provider.issuer}/device"}
    code |= {"expires_in": 10**12, "interval": -1}
    provider.raw = {"/device_authorization": json.dumps(code).encode()}

    answer = service.browser().post("/v1/sign-in/device").json()

    assert (answer["expires_in_s"], answer["interval_s"]) == (600, 5)


def test_pending_device_slows_down(service: SignInService, provider: HostileProvider) -> None:
    handle = service.single_sign_on.seal("device", {"device_code": "d"}, lasts=timedelta(minutes=1))
    provider.status, provider.token = 400, {"error": "slow_down"}

    answer = service.browser().post("/v1/sign-in/device/token", json={"handle": handle})

    assert answer.json() == {"token": None, "slow_down": True}


def test_provider_without_device_codes_says_so(
    service: SignInService, provider: HostileProvider
) -> None:
    provider.metadata = {"device_authorization_endpoint": None}

    answer = service.browser().post("/v1/sign-in/device")

    assert "offers no sign-in for the command line" in answer.json()["detail"]


def test_groups_come_from_user_info(service: SignInService, provider: HostileProvider) -> None:
    provider.claims = {"groups": None}
    provider.user_info = {"sub": "ada", "groups": "nlp-team"}

    assert sign_in(service, provider).get("/v1/whoami").json()["roles"] == {"nlp": "member"}
    provider.user_info = {"sub": "boss", "groups": ["platform"]}
    assert "another account" in failure_of(sign_in(service, provider))


@pytest.mark.parametrize(
    ("claims", "user"),
    [
        ({"preferred_username": "Ada.L"}, "ada.l"),
        ({"preferred_username": "owner", "email": "o@example.com"}, "o@example.com"),
        ({"preferred_username": "Ada Lovelace", "email": "ada@example.com"}, "ada@example.com"),
        ({"preferred_username": None, "email": "x@y.z", "email_verified": False}, "ada"),
        ({"preferred_username": "../etc", "sub": "A1"}, "a1"),
    ],
)
def test_user_is_named_after_claims(
    service: SignInService, provider: HostileProvider, claims: dict[str, Any], user: str
) -> None:
    provider.claims = claims

    assert sign_in(service, provider).get("/v1/whoami").json()["user"] == user


def test_account_without_any_name_is_explained(
    service: SignInService, provider: HostileProvider
) -> None:
    provider.claims = {"preferred_username": None, "sub": "auth0|1"}

    assert "holdfast users link USER auth0|1" in failure_of(sign_in(service, provider))


@pytest.mark.parametrize(
    ("status", "token", "claims"),
    [
        (400, {"error": "invalid_client"}, {}),
        (500, {}, {}),
        (200, {}, {"sub": "boss", "nonce": None}),
        (200, {}, {"aud": "another-client", "nonce": None}),
        (400, {"error": ["invalid_grant"]}, {}),
    ],
)
def test_broken_check_revokes_nothing(
    service: SignInService,
    provider: HostileProvider,
    status: int,
    token: dict[str, Any],
    claims: dict[str, Any],
) -> None:
    browser = sign_in(service, provider)
    provider.status, provider.token, provider.claims = status, token, claims
    service.clock.advance(minutes=21)

    assert service.check() == 0
    assert browser.get("/v1/whoami").status_code == 200


def test_new_refresh_token_is_kept_despite_a_failure(
    service: SignInService, provider: HostileProvider
) -> None:
    browser = sign_in(service, provider)
    provider.nonce, provider.claims, provider.token = (
        None,
        {"iss": "x"},
        {"refresh_token": "second"},
    )
    service.clock.advance(minutes=21)
    service.check()
    provider.claims, provider.token = {}, {}
    service.clock.advance(minutes=4)

    assert service.check() == 1
    assert provider.forms[-1]["refresh_token"] == "second"
    assert browser.get("/v1/whoami").status_code == 200


def test_refused_check_leaves_a_newer_sign_in(
    service: SignInService, provider: HostileProvider
) -> None:
    """The sign-out of one browser at the provider ends its refresh token, and not those of others."""
    first = sign_in(service, provider)
    second = sign_in(service, provider)
    sign_ins, issuer = service.single_sign_on.sign_ins, provider.issuer
    service.clock.advance(minutes=21)
    check = sign_ins.claim_due(issuer)
    assert check is not None
    assert sign_ins.claim_due(issuer) is None, "another replica leaves the user alone"

    sign_ins.refuse(check, "signed out")

    provider.nonce = None
    assert service.check() == 1
    assert [http.get("/v1/whoami").status_code for http in (first, second)] == [200, 200]


def test_check_that_ends_after_a_withdrawal_confirms_nothing(
    service: SignInService, provider: HostileProvider
) -> None:
    browser = sign_in(service, provider)
    sign_ins = service.single_sign_on.sign_ins
    service.clock.advance(minutes=21)
    late = sign_ins.claim_due(provider.issuer)
    assert late is not None
    sign_ins.refuse(late, "disabled")

    sign_ins.confirm(late, frozenset({"platform"}))

    assert browser.get("/v1/whoami").status_code == 401
    assert not service.world.services.users.users()[0].is_admin


def test_sign_in_without_a_refresh_token_lasts_an_hour(
    service: SignInService, provider: HostileProvider
) -> None:
    provider.token = {"refresh_token": None}
    browser = sign_in(service, provider)

    service.clock.advance(minutes=59)
    assert browser.get("/v1/whoami").status_code == 200
    service.clock.advance(minutes=2)

    assert browser.get("/v1/whoami").status_code == 401
    assert service.check() == 0


def test_sign_ins_at_once_are_limited(service: SignInService, provider: HostileProvider) -> None:
    """Otherwise a provider that does not respond would occupy all threads of the API."""
    with ExitStack() as turns:
        for _ in range(MAX_SIGN_INS):
            turns.enter_context(service.single_sign_on._turn())
        refused = service.browser().post("/v1/sign-in/device")

    assert refused.status_code == 503
    assert "try again" in refused.json()["detail"]
    assert provider.requests == []


def test_failed_description_is_not_requested_by_everyone(
    service: SignInService, provider: HostileProvider
) -> None:
    provider.metadata = {"issuer": "https://evil.example"}
    browser = service.browser()

    for _ in range(5):
        browser.get("/sign-in")

    assert len(provider.requests) == 1
    assert "HOLDFAST_OIDC_ISSUER" in failure_of(browser)


def test_role_in_an_archived_project_stays(
    service: SignInService, provider: HostileProvider
) -> None:
    provider.claims = {"groups": ["staff"]}
    boss = Actor(name="boss")
    service.world.services.users.add_project("old", boss)
    browser = sign_in(service, provider)
    service.world.services.users.archive_project("old", is_archived=True, actor=boss)
    provider.nonce = None
    service.clock.advance(minutes=21)

    assert service.check() == 1
    assert browser.get("/v1/whoami").json()["roles"]["old"] == "viewer"


def test_values_of_one_purpose_open_no_other(
    service: SignInService, provider: HostileProvider
) -> None:
    browser, _ = start(service, provider)
    sealed = next(value for name, value in browser.cookies.items() if "sign-in" in name)

    answer = browser.post("/v1/sign-in/device/token", json={"handle": sealed})

    assert answer.status_code == 403
    assert provider.forms == []

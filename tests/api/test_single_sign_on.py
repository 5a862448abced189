"""Sign-in through a certified OpenID Connect provider, and what its users lose with their account."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from holdfast.domain.access.audit import Actor
from holdfast.store.identity.access_tokens import NewToken
from support.openid_provider import (
    HERE,
    OpenIdServer,
    ProviderNotInstalled,
    SignInService,
    enter_code,
    failure_of,
    oidc_settings,
    openid_server,
    sign_in,
    use_provider,
    visit_provider,
)
from support.requirements import skip_or_fail
from support.simulated_service import SimulatedService

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

BOSS = Actor(name="boss")
PAGE = {"Origin": HERE, "Sec-Fetch-Site": "same-origin"}


@pytest.fixture(scope="module")
def server() -> Iterator[OpenIdServer]:
    try:
        with openid_server() as running:
            yield running
    except ProviderNotInstalled as reason:
        skip_or_fail(str(reason))


@pytest.fixture
def service(world: SimulatedService, server: OpenIdServer) -> SignInService:
    return use_provider(world, oidc_settings(server.issuer))


def device_token(service: SignInService, subject: str) -> str:
    """The token of a command line that signed in."""
    http = service.browser()
    started = http.post("/v1/sign-in/device").json()
    enter_code(started["verification_uri_complete"])
    polled = http.post("/v1/sign-in/device/token", json={"handle": started["handle"]})
    assert polled.status_code == 200, polled.text
    token = polled.json()["token"]
    assert token["kept"]["user"] == subject
    text: str = token["token"]
    return text


def refusal_of(service: SignInService) -> str:
    """Why a sign-in was refused, as the newest entry of the audit log says."""
    [entry] = service.world.services.audit.page(limit=1)
    assert (entry.audit_action.action, entry.audit_action.target) == (
        "login.refused",
        "single sign-on",
    )
    assert entry.audit_action.after
    return str(entry.audit_action.after["why"])


def test_first_sign_in_creates_the_user(service: SignInService, server: OpenIdServer) -> None:
    server.set_account("ada", "nlp-team", "others")
    browser = service.browser()

    options = browser.get("/v1/sign-in").json()
    _, answer = sign_in(browser, "/jobs/job-1?tab=log")

    assert options == {"provider": "127.0.0.1", "failure": None}
    assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/job-1?tab=log")
    assert answer.headers["referrer-policy"] == "no-referrer"
    who = browser.get("/v1/whoami").json()
    assert (who["user"], who["is_admin"], who["roles"]) == ("ada", False, {"nlp": "member"})
    assert browser.get("/v1/session").json()["csrf"]
    assert {"user.add", "project.add", "member.set", "login.sso"} <= set(service.audit())
    assert service.with_token("").get("/v1/whoami").status_code == 401, "loopback is not trusted"


def test_session_of_a_sign_in_is_like_others(service: SignInService, server: OpenIdServer) -> None:
    server.set_account("eve", "staff")
    browser = service.browser()
    sign_in(browser)

    assert browser.delete("/v1/session", headers=PAGE).status_code == 403
    csrf = browser.get("/v1/session").json()["csrf"]
    gone = browser.delete("/v1/session", headers={**PAGE, "X-CSRF-Token": csrf})

    assert gone.status_code == 204
    assert browser.get("/v1/whoami").status_code == 401


@pytest.mark.parametrize(
    ("groups", "is_admin", "roles"),
    [
        (["platform", "nlp-team"], True, {}),
        (["nlp-team", "nlp-leads"], False, {"default": None, "nlp": "admin"}),
        (["staff"], False, {"default": "viewer", "nlp": "viewer"}),
        (["staff", "nlp-team"], False, {"default": "viewer", "nlp": "member"}),
    ],
)
def test_groups_give_roles(
    service: SignInService,
    server: OpenIdServer,
    groups: list[str],
    is_admin: bool,
    roles: dict[str, str | None],
) -> None:
    server.set_account("kim", *groups)
    browser = service.browser()

    sign_in(browser)

    who = browser.get("/v1/whoami").json()
    assert who["is_admin"] is is_admin
    assert who["roles"] == {project: role for project, role in roles.items() if role}


@pytest.mark.parametrize("groups", [(), ("unknown", "others")])
def test_account_without_a_role_gets_no_user(
    service: SignInService, server: OpenIdServer, groups: tuple[str, ...]
) -> None:
    server.set_account("mallory", *groups)
    browser = service.browser()

    _, answer = sign_in(browser)

    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "group" in failure_of(browser)
    assert browser.get("/v1/whoami").status_code == 401
    assert service.world.services.users.users() == []
    assert "group" in refusal_of(service)


@pytest.mark.parametrize(
    "elsewhere",
    ["https://evil.example/", "//evil.example", "/\\evil.example", "/jobs/a/../..//evil", "/?\r\nX: y", "jobs", "/v1/jobs"],
)  # fmt: skip
def test_sign_in_leads_back_to_own_pages_only(
    service: SignInService, server: OpenIdServer, elsewhere: str
) -> None:
    server.set_account("ada", "nlp-team")

    _, answer = sign_in(service.browser(), elsewhere)

    assert answer.headers["location"] == "/"


def test_code_of_a_sign_in_works_once(service: SignInService, server: OpenIdServer) -> None:
    server.set_account("ada", "nlp-team")
    browser = service.browser()
    started = browser.get("/sign-in")
    callback = visit_provider(started.headers["location"])
    cookies = {name: value for name, value in browser.cookies.items() if "sign-in" in name}
    browser.get(callback)

    thief = service.browser()
    thief.cookies.update(cookies)
    again, without = thief.get(callback), browser.get(callback)

    assert again.headers["location"] == without.headers["location"] == "/"
    assert "invalid_grant" in failure_of(thief)
    assert thief.get("/v1/whoami").status_code == 401
    assert "did not start" in failure_of(browser)
    assert browser.get("/v1/whoami").status_code == 200, "the first session continues"


def test_browser_that_did_not_start_gets_no_session(
    service: SignInService, server: OpenIdServer
) -> None:
    """An attacker who lets a victim open the callback of his own account would see what the victim does."""
    server.set_account("mallory", "nlp-team")
    callback = visit_provider(service.browser().get("/sign-in").headers["location"])
    victim = service.browser()
    victim.get("/sign-in")

    answer = victim.get(callback)

    assert "did not start" in failure_of(victim)
    assert victim.get("/v1/whoami").status_code == 401
    assert answer.status_code == 303


def test_two_tabs_sign_in_at_once(service: SignInService, server: OpenIdServer) -> None:
    server.set_account("ada", "nlp-team")
    browser = service.browser()
    first, second = (browser.get("/sign-in").headers["location"] for _ in range(2))

    one = browser.get(visit_provider(first))
    other = browser.get(visit_provider(second))

    assert one.status_code == other.status_code == 303
    assert browser.get("/v1/sign-in").json()["failure"] is None
    assert browser.get("/v1/whoami").json()["user"] == "ada"


def test_many_started_sign_ins_keep_few_cookies(
    service: SignInService, server: OpenIdServer
) -> None:
    browser = service.browser()

    for _ in range(20):
        browser.get("/sign-in")

    assert len(browser.cookies) <= 5


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"state": "wrong-state-of-another"}, "did not start"),
        ({"iss": "https://evil.example"}, "another identity provider"),
        ({"code": ""}, "sent no code"),
        ({"code": "guessed"}, "refused the sign-in (invalid_grant"),
        ({"error": "access_denied", "error_description": "no\x1b[31m"}, "(access_denied: no[31m)"),
    ],
)
def test_changed_callback_is_refused(
    service: SignInService, server: OpenIdServer, change: dict[str, str], sentence: str
) -> None:
    server.set_account("ada", "nlp-team")
    browser = service.browser()
    callback = visit_provider(browser.get("/sign-in").headers["location"])
    query = {name: values[0] for name, values in parse_qs(urlsplit(callback).query).items()}

    answer = browser.get(f"/sign-in/callback?{urlencode({**query, **change})}")

    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert sentence in failure_of(browser)
    assert browser.get("/v1/whoami").status_code == 401


def test_person_who_cancels_reads_why(service: SignInService, server: OpenIdServer) -> None:
    server.seat(None)
    browser = service.browser()

    sign_in(browser)

    assert "access_denied: the person left" in failure_of(browser)


def test_sign_in_needs_tls_beyond_this_machine(
    service: SignInService, server: OpenIdServer
) -> None:
    browser = service.browser()

    browser.get("/sign-in", headers={"Host": "holdfast.example"})

    assert "https" in failure_of(browser)


def test_device_signs_in_with_a_code(service: SignInService, server: OpenIdServer) -> None:
    server.set_account("ada", "nlp-team")
    http = service.browser()
    started = http.post("/v1/sign-in/device").json()
    poll = {"handle": started["handle"]}

    early = http.post("/v1/sign-in/device/token", json=poll)
    enter_code(started["verification_uri_complete"])
    done = http.post("/v1/sign-in/device/token", json=poll)
    again = http.post("/v1/sign-in/device/token", json=poll)

    assert early.json() == {"token": None, "slow_down": False}
    who = service.with_token(done.json()["token"]["token"]).get("/v1/whoami").json()
    assert (who["user"], who["roles"]) == ("ada", {"nlp": "member"})
    assert again.status_code == 403, "a code gives one token"
    assert "invalid_grant" in again.json()["detail"]


def test_handle_of_a_device_cannot_be_made_up(service: SignInService, server: OpenIdServer) -> None:
    http = service.browser()
    started = http.post("/v1/sign-in/device").json()
    service.clock.advance(seconds=started["expires_in_s"] + 1)

    late = http.post("/v1/sign-in/device/token", json={"handle": started["handle"]})
    forged = http.post("/v1/sign-in/device/token", json={"handle": "made-up"})

    assert late.status_code == forged.status_code == 403
    assert "expired" in late.json()["detail"]


def test_device_denied_at_the_provider_is_refused(
    service: SignInService, server: OpenIdServer
) -> None:
    server.set_account("mallory", "unknown")
    http = service.browser()
    started = http.post("/v1/sign-in/device").json()
    enter_code(started["verification_uri_complete"])

    answer = http.post("/v1/sign-in/device/token", json={"handle": started["handle"]})

    assert answer.status_code == 403
    assert "none of your groups gives a role (unknown)" in answer.json()["detail"]
    assert refusal_of(service) == answer.json()["detail"]


def test_disabled_account_loses_all_tokens(service: SignInService, server: OpenIdServer) -> None:
    server.set_account("leo", "nlp-team")
    text = device_token(service, "leo")
    user = service.with_token(text)
    made = user.post("/v1/tokens", json={"name": "nightly"}).json()["token"]
    of_admin, _ = service.world.services.access_tokens.create(
        NewToken(name="by an admin", user="leo"), service.clock.now()
    )
    owners, _ = service.world.services.access_tokens.create(
        NewToken(name="first"), service.clock.now()
    )
    server.set_account("leo", "nlp-team", disabled=True)

    early = service.check()
    before = [service.with_token(each).get("/v1/whoami").status_code for each in (text, made)]
    service.clock.advance(minutes=25)
    checked = service.check()

    assert (early, before) == (0, [200, 200])
    assert checked == 1
    for each in (text, made, of_admin):
        assert service.with_token(each).get("/v1/whoami").status_code == 401
    assert service.with_token(owners).get("/v1/whoami").status_code == 200
    assert "login.withdraw" in service.audit()
    late, _ = service.world.services.access_tokens.create(
        NewToken(name="after that", user="leo"), service.clock.now()
    )
    refused = service.with_token(late).get("/v1/whoami")
    assert "has not confirmed the user leo" in refused.json()["detail"]
    server.set_account("leo", "nlp-team")
    assert service.with_token(device_token(service, "leo")).get("/v1/jobs").status_code == 200


def test_rotating_refresh_tokens_are_kept(service: SignInService, server: OpenIdServer) -> None:
    server.set_account("ada", "nlp-team")
    user = service.with_token(device_token(service, "ada"))

    for _ in range(2):
        service.clock.advance(minutes=21)
        assert service.check() == 1
        assert service.check() == 0

    assert user.get("/v1/whoami").status_code == 200


def test_roles_follow_groups(service: SignInService, server: OpenIdServer) -> None:
    server.set_account("ada", "platform")
    user = service.with_token(device_token(service, "ada"))
    assert user.get("/v1/whoami").json()["is_admin"]
    users = service.world.services.users
    users.add_project("vision", BOSS)
    server.set_account("ada", "nlp-leads")

    service.clock.advance(minutes=25)
    service.check()
    demoted = user.get("/v1/whoami").json()
    server.set_account("ada", "staff")
    service.clock.advance(minutes=25)
    service.check()

    assert (demoted["is_admin"], demoted["roles"]) == (False, {"nlp": "admin"})
    roles = user.get("/v1/whoami").json()["roles"]
    assert roles == {"default": "viewer", "nlp": "viewer", "vision": "viewer"}


def test_user_without_groups_loses_all_tokens(service: SignInService, server: OpenIdServer) -> None:
    server.set_account("ada", "nlp-team")
    text = device_token(service, "ada")
    server.set_account("ada", "others")

    service.clock.advance(minutes=25)
    service.check()

    assert service.with_token(text).get("/v1/whoami").status_code == 401
    assert service.world.services.users.members("nlp") == []


def test_sign_in_without_groups_ends_earlier_ones(
    service: SignInService, server: OpenIdServer
) -> None:
    server.set_account("ada", "nlp-team")
    text = device_token(service, "ada")
    server.set_account("ada")

    sign_in(service.browser())

    assert service.with_token(text).get("/v1/whoami").status_code == 401


def test_role_given_by_hand_stays(service: SignInService, server: OpenIdServer) -> None:
    server.set_account("ada", "nlp-team")
    user = service.with_token(device_token(service, "ada"))
    users = service.world.services.users
    users.add_project("vision", BOSS)
    answer = service.with_token(
        service.world.services.access_tokens.create(NewToken(name="o"), service.clock.now())[0]
    ).put("/v1/projects/vision/members/ada", json={"role": "viewer"})

    service.clock.advance(minutes=25)
    service.check()

    assert answer.status_code == 200
    assert user.get("/v1/whoami").json()["roles"] == {"nlp": "member", "vision": "viewer"}


def test_name_of_another_user_is_not_given_away(
    service: SignInService, server: OpenIdServer
) -> None:
    """A mail address can be given to a new account; the subject cannot."""
    service.world.services.users.add_user("bob", is_admin=True, actor=BOSS)
    server.set_account("subject-2", "nlp-team", preferred_username="bob")
    browser = service.browser()

    sign_in(browser)
    refused = failure_of(browser)
    owner = service.with_token(
        service.world.services.access_tokens.create(NewToken(name="o"), service.clock.now())[0]
    )
    linked = owner.patch("/v1/users/bob", json={"subject": "subject-2"})
    sign_in(browser)
    other = owner.patch("/v1/users/bob", json={"subject": "subject-3"})
    server.set_account("subject-3", "nlp-team", preferred_username="bob")

    assert "holdfast users link bob subject-2" in refused
    assert linked.status_code == other.status_code == 200
    assert browser.get("/v1/whoami").status_code == 401, "the account before lost its sessions"
    sign_in(browser)
    assert browser.get("/v1/whoami").json()["user"] == "bob"


def test_disabled_user_cannot_sign_in(service: SignInService, server: OpenIdServer) -> None:
    server.set_account("zoe", "nlp-team")
    device_token(service, "zoe")
    service.world.services.users.change_user("zoe", is_admin=None, is_disabled=True, actor=BOSS)
    browser = service.browser()

    sign_in(browser)

    assert failure_of(browser) == "the user zoe is disabled; an admin can enable it"
    assert refusal_of(service) == "the user zoe is disabled; an admin can enable it"


def test_sign_in_is_limited_per_address(service: SignInService, server: OpenIdServer) -> None:
    http = service.browser()
    service.world.services.rate_limiter.now_s = lambda: (
        0.0
    )  # No time passes, however long it takes.
    answers = [http.post("/v1/sign-in/device/token", json={"handle": "x"}) for _ in range(125)]

    assert [answer.status_code for answer in answers] == [403] * 120 + [429] * 5
    assert "Retry-After" in answers[-1].headers


def test_tokens_outlive_an_outage_for_the_grace_period(world: SimulatedService) -> None:
    try:
        with openid_server() as server:
            service = use_provider(world, oidc_settings(server.issuer, oidc_grace_hours=2))
            server.set_account("ada", "nlp-team")
            text = device_token(service, "ada")
            server.stop()
            user = service.with_token(text)

            service.clock.advance(minutes=100)
            results = service.check()
            started = user.post("/v1/sign-in/device")

            assert results == 0
            assert user.get("/v1/whoami").status_code == 200
            assert started.status_code == 503
            assert "cannot be reached" in started.json()["detail"]
            service.clock.advance(minutes=21)
            refused = user.get("/v1/whoami")
            assert refused.status_code == 401
            assert "has not confirmed the user ada" in refused.json()["detail"]
            assert "login.withdraw" not in service.audit(), "they work again after the outage"
    except ProviderNotInstalled as reason:
        skip_or_fail(str(reason))


def test_service_without_a_provider_says_so(world: SimulatedService) -> None:
    options = world.http.get("/v1/sign-in")
    device = world.http.post("/v1/sign-in/device")
    page = world.http.get("/sign-in", follow_redirects=False)
    link = world.http.patch("/v1/users/ada", json={"subject": "s"})

    assert options.json() == {"provider": None, "failure": None}
    assert device.status_code == 404
    assert "HOLDFAST_OIDC_ISSUER" in device.json()["detail"]
    assert page.headers["location"] == "/"
    assert link.status_code == 409

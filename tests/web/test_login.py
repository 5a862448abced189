"""Login: a token becomes a session that may change data from its own page, until logout."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect
from support.hostile_provider import hostile_provider
from support.openid_provider import oidc_settings, use_provider
from support.principals import OWN, Principals, create_principals
from support.simulated_service import SimulatedService
from web.axe import violations
from web.network_proxy import NetworkProxy

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def principals(world: SimulatedService) -> Principals:
    """Users; every request requires a token, including those from this machine."""
    principals = create_principals(world)
    world.services = replace(world.services, trust_loopback=False)
    world.app.state.services = world.services
    return principals


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Access token").fill(token)
    page.get_by_role("button", name="Log in").click()


def test_sign_in_leads_through_the_provider_and_back(
    world: SimulatedService, url: str, page: Page
) -> None:
    """The provider is another origin, and the sign-in leads back to the page on which it started."""
    with hostile_provider() as provider:
        use_provider(world, oidc_settings(provider.issuer))
        provider.sends_back = True
        page.goto(f"{url}/prices")

        provider.claims = {"groups": ["unknown"]}
        page.get_by_role("link", name="Sign in with 127.0.0.1").click()
        expect(page.get_by_role("alert")).to_contain_text("none of your groups gives a role")
        assert not violations(page)
        provider.claims = {}
        page.goto(f"{url}/prices")
        page.get_by_role("link", name="Sign in with 127.0.0.1").click()

        expect(page.get_by_role("button", name="Log out")).to_be_visible()
        expect(page).to_have_url(f"{url}/prices")


@pytest.mark.full
def test_invalid_token_is_refused_with_a_message(
    principals: Principals, url: str, page: Page
) -> None:
    page.goto(url)

    log_in(page, "hf_000000000000_guessed")

    expect(page.get_by_role("alert")).to_contain_text("this access token is not accepted")


def test_login_shows_own_jobs_and_allows_actions_of_the_role(
    principals: Principals, url: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{principals.own}")
    log_in(page, principals.token("member")[0])
    expect(page.get_by_role("heading", level=1, name=f"job-of-{OWN}")).to_be_visible()
    page.reload()

    page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_role("button", name="Cancel job").click()
    expect(dialog).to_be_hidden()

    state = principals.world.services.journal.read(principals.own).status
    assert state in {"stopping", "cancelled"}
    page.goto(f"{url}/jobs/{principals.foreign}")
    expect(page.get_by_role("heading", name="Job not found")).to_be_visible()


@pytest.mark.full
def test_viewer_sees_that_the_role_is_read_only(
    principals: Principals, url: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{principals.own}")
    log_in(page, principals.token("viewer")[0])
    actions = page.get_by_role("group", name="Actions")

    actions.get_by_role("button", name="Cancel").hover()

    expect(actions.get_by_role("tooltip").filter(visible=True)).to_contain_text(
        "allows only reading"
    )


@pytest.mark.full
def test_logout_removes_all_data_from_the_page(
    principals: Principals, url: str, page: Page
) -> None:
    page.goto(url)
    log_in(page, principals.token("member")[0])
    expect(page.get_by_role("link", name=f"job-of-{OWN}")).to_be_visible()

    page.get_by_role("button", name="Log out").click()

    expect(page.get_by_label("Access token")).to_be_visible()
    expect(page.get_by_role("link", name=f"job-of-{OWN}")).to_have_count(0)
    assert page.evaluate("localStorage.length") == 0


@pytest.mark.full
def test_logout_discards_an_unsubmitted_job_file(
    principals: Principals, url: str, page: Page
) -> None:
    page.goto(f"{url}/submit")
    log_in(page, principals.token("member")[0])
    file = page.get_by_role("textbox", name="Job file")
    file.fill("name: secret\nrun: 'true'\n")
    assert page.evaluate("sessionStorage.length") == 1

    page.get_by_role("button", name="Log out").click()

    expect(page.get_by_label("Access token")).to_be_visible()
    assert page.evaluate("sessionStorage.length") == 0
    log_in(page, principals.token("viewer")[0])
    expect(file).to_have_value(re.compile("^name: hello"))


@pytest.mark.full
def test_failed_logout_is_reported(
    principals: Principals, url: str, proxy: NetworkProxy, page: Page
) -> None:
    page.goto(url)
    log_in(page, principals.token("member")[0])
    logout = page.get_by_role("button", name="Log out")
    expect(logout).to_be_visible()

    with proxy.cut("^DELETE /v1/session$"):
        logout.click()
        expect(page.get_by_role("alert")).to_contain_text("You may still be logged in")

    logout.click()
    expect(page.get_by_label("Access token")).to_be_visible()

"""Logging in: a token becomes a session, which may change things from its own page, and ends."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect
from support.principals import OWN, Principals, create_principals
from support.simulated_service import SimulatedService
from web.network_proxy import NetworkProxy

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def principals(world: SimulatedService) -> Principals:
    """Users; from here on every request needs a token, also from this machine."""
    principals = create_principals(world)
    world.services = replace(world.services, trust_loopback=False)
    world.app.state.services = world.services
    return principals


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Access token").fill(token)
    page.get_by_role("button", name="Log in").click()


def test_a_wrong_token_is_refused_in_words(principals: Principals, url: str, page: Page) -> None:
    page.goto(url)

    log_in(page, "hf_000000000000_guessed")

    expect(page.get_by_role("alert")).to_contain_text("this access token is not accepted")


def test_whoever_logs_in_sees_what_is_theirs_and_may_do_what_their_role_says(
    principals: Principals, url: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{principals.own}")
    log_in(page, principals.token("member")[0])
    expect(page.get_by_role("heading", level=1, name=f"job-of-{OWN}")).to_be_visible()
    page.reload()

    page.get_by_role("button", name="Cancel").click()
    question = page.get_by_role("dialog")
    question.get_by_role("button", name="Cancel job").click()
    expect(question).to_be_hidden()

    state = principals.world.services.journal.read(principals.own).status
    assert state in {"stopping", "cancelled"}
    page.goto(f"{url}/jobs/{principals.foreign}")
    expect(page.get_by_role("heading", name="Job not found")).to_be_visible()


@pytest.mark.full
def test_a_viewer_is_told_that_they_may_only_look(
    principals: Principals, url: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{principals.own}")
    log_in(page, principals.token("viewer")[0])
    actions = page.get_by_role("group", name="Actions")

    actions.get_by_role("button", name="Cancel").hover()

    expect(actions.get_by_role("tooltip").filter(visible=True)).to_contain_text(
        "allows only reading"
    )


def test_after_a_logout_nothing_is_shown_any_more(
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
def test_a_job_file_that_was_not_submitted_is_not_left_to_whoever_comes_next(
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
def test_a_logout_that_did_not_arrive_is_told(
    principals: Principals, url: str, road: NetworkProxy, page: Page
) -> None:
    page.goto(url)
    log_in(page, principals.token("member")[0])
    leave = page.get_by_role("button", name="Log out")
    expect(leave).to_be_visible()

    with road.cut("^DELETE /v1/session$"):
        leave.click()
        expect(page.get_by_role("alert")).to_contain_text("You may still be logged in")

    leave.click()
    expect(page.get_by_label("Access token")).to_be_visible()

"""The team page: roles, budgets and notification channels."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect
from support.principals import OWN, Principals, create_principals
from support.simulated_service import SimulatedService
from web.expected_numbers import dollars

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def principals(world: SimulatedService) -> Principals:
    """Users in all roles; requests from this machine are the owner's."""
    return create_principals(world)


def open_as(principals: Principals, page: Page, url: str, user: str, tab: str) -> None:
    """Log in as a user, and open a tab of the team page."""
    principals.world.app.state.services = replace(principals.world.services, trust_loopback=False)
    page.goto(f"{url}/team?tab={tab}")
    page.get_by_label("Access token").fill(principals.token(user)[0])
    page.get_by_role("button", name="Log in").click()
    expect(page.get_by_role("heading", level=1, name="Team")).to_be_visible()


@pytest.mark.full
def test_budget_is_set_spent_and_removed(
    principals: Principals, world: SimulatedService, url: str, page: Page
) -> None:
    world.until(principals.own, "succeeded")
    page.goto(f"{url}/team")
    expect(page.get_by_text("No budgets: spending is not limited.")).to_be_visible()
    page.get_by_role("button", name="New project budget").click()
    dialog = page.get_by_role("dialog", name="New project budget")
    dialog.get_by_label("Project").select_option(OWN)
    dialog.get_by_label("Monthly budget (USD)").fill("a lot")
    dialog.get_by_role("button", name="New project budget").click()
    expect(dialog.get_by_role("alert")).to_contain_text("monthly_usd")

    dialog.get_by_label("Monthly budget (USD)").fill("40")
    dialog.get_by_role("button", name="New project budget").click()

    expect(dialog).to_be_hidden()
    row = page.get_by_role("region", name="Budgets").get_by_role("row", name=OWN)
    (budget,) = world.http.get("/v1/budgets").json()
    assert budget["spent_micros"] > 0
    spent = row.get_by_role("cell").nth(1)
    expect(spent).to_contain_text(f"~{dollars(budget['spent_micros'])}")
    expect(row.get_by_role("cell").nth(2)).to_have_text(re.compile(r"^\$40\.00"))
    spent.get_by_role("button").focus()
    tooltip = page.get_by_role("tooltip").filter(visible=True)
    expect(tooltip).to_contain_text(f"${budget['spent_micros'] / 1e6:.6f}")
    expect(tooltip).to_contain_text("includes simulated prices, which are not billed")
    row.get_by_role("button", name="Remove").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(page.get_by_text("No budgets: spending is not limited.")).to_be_visible()


def test_new_member_gets_a_token_that_is_shown_once(
    principals: Principals, url: str, page: Page
) -> None:
    page.goto(f"{url}/team?tab=users")
    page.get_by_role("button", name="New user").click()
    page.get_by_role("dialog").get_by_label("Name").fill("nora")
    page.get_by_role("dialog").get_by_role("button", name="New user").click()
    expect(page.get_by_role("region", name="Users").get_by_role("row", name="nora")).to_be_visible()

    page.get_by_role("tab", name="Projects").click()
    page.get_by_role("button", name=OWN, exact=True).click()
    page.get_by_role("button", name="Add member").click()
    page.get_by_role("dialog").get_by_label("User").fill("nora")
    page.get_by_role("dialog").get_by_role("button", name="Add member").click()
    members = page.get_by_role("region", name=f"Members of {OWN}")
    expect(members.get_by_role("row", name="nora")).to_contain_text("member")
    page.get_by_role("tab", name="Tokens").click()
    page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog", name="New token")
    dialog.get_by_label("Name").fill("her laptop")
    dialog.get_by_label("User").fill("nora")
    dialog.get_by_role("button", name="New token").click()

    shown = page.get_by_role("alert").filter(has_text="shown only once")
    token = shown.get_by_role("code").inner_text()
    user = principals.with_token(token).get("/v1/whoami").json()
    assert (user["user"], user["scopes"]) == ("nora", ["read", "write"])
    shown.get_by_role("button", name="Done").click()
    expect(page.get_by_text(token)).to_have_count(0)
    page.get_by_label("tokens of all users").check()
    row = page.get_by_role("region", name="Tokens").get_by_role("row", name="her laptop")
    row.get_by_role("button", name="Revoke").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(row).to_contain_text("revoked")
    assert principals.with_token(token).get("/v1/whoami").status_code == 401


@pytest.mark.full
def test_message_to_a_channel_is_shown_as_delivered(
    principals: Principals, url: str, page: Page
) -> None:
    page.goto(f"{url}/team?tab=notifications&project={OWN}")
    page.get_by_role("button", name="New channel").click()
    dialog = page.get_by_role("dialog", name=f"New channel of {OWN}")
    dialog.get_by_label("Name").fill("ops")
    dialog.get_by_label("URL").fill("http://127.0.0.1:9/hook")
    dialog.get_by_role("button", name="New channel").click()

    expect(
        page.get_by_role("alert").filter(has_text="Signing secret of the webhooks of ops")
    ).to_be_visible()
    row = page.get_by_role("region", name=f"Channels of {OWN}").get_by_role("row", name="ops")
    row.get_by_role("button", name="Test").click()
    page.get_by_role("dialog").get_by_role("button", name="Test").click()

    messages = page.get_by_role("region", name="Deliveries to ops")
    expect(messages.get_by_role("row").nth(1)).to_contain_text("waiting")


@pytest.mark.full
def test_audit_log_is_verified_and_filtered_by_target(
    principals: Principals, world: SimulatedService, url: str, page: Page
) -> None:
    page.goto(f"{url}/team?tab=audit")
    rows = world.http.get("/v1/audit/verdict").json()["rows"]

    expect(page.get_by_role("status").filter(has_text="Verified")).to_contain_text(
        f"all {rows} entries"
    )
    target = world.http.get("/v1/audit").json()["rows"][0]["target"]
    body = world.http.get("/v1/audit", params={"target": target}).json()["rows"]
    assert 0 < len(body) < rows, "the target of some actions, not of all"
    page.get_by_label("Target").fill(target)
    page.get_by_label("Target").press("Enter")

    log = page.get_by_role("region", name="Audit log").get_by_role("row")
    expect(log).to_have_count(len(body) + 1)
    for number, entry in enumerate(body, start=1):
        cells = log.nth(number).get_by_role("cell")
        expect(cells.nth(0)).to_have_text(str(entry["seq"]))
        expect(cells.nth(4)).to_have_text(entry["action"])
        expect(cells.nth(5)).to_have_text(target)
    page.get_by_label("Target").fill("project/nobody")
    page.get_by_label("Target").press("Enter")
    expect(page.get_by_text("No entries match")).to_be_visible()


@pytest.mark.full
def test_missing_permissions_show_the_reason_of_the_service(
    principals: Principals, url: str, page: Page
) -> None:
    no = principals.person("member").get("/v1/users").json()["detail"]
    open_as(principals, page, url, "member", "users")

    expect(page.get_by_role("tabpanel")).to_contain_text(no)
    page.get_by_role("tab", name="Projects").click()
    page.get_by_role("button", name="Add member").focus()
    expect(page.get_by_role("tooltip").filter(visible=True)).to_contain_text(
        f"this requires the role admin in project {OWN}; your role is member"
    )
    page.get_by_role("tab", name="Audit").click()
    expect(page.get_by_role("tabpanel")).to_contain_text("requires a service admin")


@pytest.mark.full
def test_project_admin_manages_only_that_project(
    principals: Principals, url: str, page: Page
) -> None:
    open_as(principals, page, url, "lead", "projects")

    row = page.get_by_role("region", name=f"Members of {OWN}").get_by_role("row", name="viewer")
    row.get_by_role("button", name="Role").click()
    dialog = page.get_by_role("dialog", name=f"Role of viewer in {OWN}")
    dialog.get_by_label("Role").select_option("member")
    dialog.get_by_role("button", name="Role").click()

    expect(row.get_by_role("cell").nth(1)).to_have_text("member")
    members = principals.person("boss").get(f"/v1/projects/{OWN}/members").json()
    assert {member["user"]: member["role"] for member in members}["viewer"] == "member"
    page.get_by_role("button", name="New project").focus()
    expect(page.get_by_role("tooltip").filter(visible=True)).to_contain_text(
        "requires a service admin"
    )

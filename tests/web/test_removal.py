"""Removal of ended jobs on their pages."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from playwright.sync_api import Page, expect
from support.principals import OWN, Principals, create_principals
from support.simulated_service import SimulatedService
from web.network_proxy import NetworkProxy
from web.test_login import log_in

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


@pytest.fixture
def ended(world: SimulatedService) -> str:
    job: str = world.submit()["id"]
    world.http.post(f"/v1/jobs/{job}/cancel")
    world.until(job, "cancelled")
    return job


@pytest.mark.full
def test_live_job_has_no_remove_button(url: str, preempted_job: str, page: Page) -> None:
    page.goto(f"{url}/jobs/{preempted_job}")
    actions = page.get_by_role("group", name="Actions")

    expect(actions.get_by_role("button", name="Cancel")).to_be_visible()

    expect(actions.get_by_text("Remove", exact=True)).to_have_count(0)


@pytest.mark.parametrize("with_checkpoints", [False, pytest.param(True, marks=pytest.mark.full)])
def test_ended_job_is_removed_after_confirmation(
    with_checkpoints: bool, world: SimulatedService, url: str, ended: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{ended}")
    page.get_by_role("button", name="Remove").click()
    dialog = page.get_by_role("dialog", name="Remove tiny permanently?")
    expect(dialog).to_contain_text("This cannot be undone")
    expect(dialog).to_contain_text("Its cost stays in totals")
    expect(dialog).to_contain_text("Its checkpoints stay in the store unless you select")
    box = dialog.get_by_label("Delete its checkpoints")
    expect(box).not_to_be_checked()
    box.set_checked(with_checkpoints)

    dialog.get_by_role("button", name="Remove").click()

    done = page.get_by_role("status").filter(has_text=f"Job tiny ({ended}) was removed")
    response = "are being deleted" if with_checkpoints else f"stay in s3://bucket/prefix/{ended}"
    expect(done).to_contain_text(response)
    expect(page).to_have_url(f"{url}/")
    assert world.http.get(f"/v1/jobs/{ended}").status_code == 404
    again = world.http.delete(f"/v1/jobs/{ended}").json()
    assert again["removes_checkpoints"] is with_checkpoints


@pytest.mark.full
def test_cancelled_removal_keeps_the_job(
    world: SimulatedService, url: str, ended: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{ended}")
    page.get_by_role("button", name="Remove").click()

    page.get_by_role("dialog").get_by_role("button", name="Back").click()

    expect(page.get_by_role("dialog")).to_have_count(0)
    assert world.job(ended)["state"] == "cancelled"


@pytest.mark.full
def test_removal_fails_at_once_while_the_service_is_silent(
    world: SimulatedService, url: str, ended: str, proxy: NetworkProxy, page: Page
) -> None:
    page.goto(f"{url}/jobs/{ended}")
    page.get_by_role("button", name="Remove").click()
    dialog = page.get_by_role("dialog")

    with proxy.cut(""):
        dialog.get_by_role("button", name="Remove").click()
        expect(dialog.get_by_role("alert")).to_contain_text("Nothing was sent")

    assert world.job(ended)["state"] == "cancelled"


@pytest.mark.parametrize(
    ("user", "is_permitted"),
    [("member", False), pytest.param("viewer", False, marks=pytest.mark.full), ("lead", True)],
)
def test_remove_button_requires_the_permission(
    user: str, is_permitted: bool, world: SimulatedService, url: str, page: Page
) -> None:
    principals: Principals = create_principals(world)
    world.http.post(f"/v1/jobs/{principals.own}/cancel")
    world.until(principals.own, "cancelled")
    world.services = replace(world.services, trust_loopback=False)
    world.app.state.services = world.services
    page.goto(f"{url}/jobs/{principals.own}")
    log_in(page, principals.token(user)[0])
    actions = page.get_by_role("group", name="Actions")

    expect(page.get_by_role("heading", level=1, name=re.compile(OWN))).to_be_visible()

    expect(actions.get_by_role("button", name="Remove")).to_have_count(int(is_permitted))

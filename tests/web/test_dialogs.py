"""Dialogs: an action is sent once, with the displayed values and without earlier input."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Locator, Page, Response, expect
from support.simulated_service import SimulatedService
from web.network_proxy import NetworkProxy

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

FILE = "name: risky\nresources: {infra: local}\nrun: 'true'\n"


def limits_of_tiny(page: Page) -> Locator:
    """Open the dialog of the job's limits."""
    page.get_by_role("group", name="Actions").get_by_role("button", name="Limits").click()
    return page.get_by_role("dialog", name="Limits of tiny")


@contextmanager
def unresponsive_service(kind: str, proxy: NetworkProxy, page: Page) -> Iterator[None]:
    """Let the service not respond to the page during the block."""
    if kind == "no network":
        page.context.set_offline(True)
        yield
        page.context.set_offline(False)
    elif kind == "refuses connections":
        with proxy.cut(""):
            yield
    else:
        with proxy.holding("") as held:
            yield
            held.drop()


@pytest.mark.parametrize(
    "kind",
    [
        "no network",
        *(pytest.param(kind, marks=pytest.mark.full) for kind in ("refuses connections", "hangs")),
    ],
)
def test_action_fails_at_once_while_the_service_is_silent(
    kind: str,
    world: SimulatedService,
    url: str,
    preempted_job: str,
    proxy: NetworkProxy,
    page: Page,
) -> None:
    page.goto(f"{url}/jobs/{preempted_job}")
    page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog", name="Cancel tiny?")
    alert = dialog.get_by_role("alert")

    with unresponsive_service(kind, proxy, page):
        dialog.get_by_role("button", name="Cancel job").click()
        expect(alert).to_contain_text("Nothing was sent")
        expect(alert).to_contain_text("Try again once reconnected")
        expect(alert).not_to_contain_text("retries automatically")

    assert world.job(preempted_job)["state"] == "training"
    dialog.get_by_role("button", name="Cancel job").click()
    expect(dialog).to_be_hidden()
    assert world.job(preempted_job)["state"] == "stopping"


@pytest.mark.full
def test_page_stays_when_a_part_of_it_cannot_be_loaded(
    url: str, preempted_job: str, proxy: NetworkProxy, page: Page
) -> None:
    with proxy.cut("/assets/metric-chart"):
        page.goto(f"{url}/jobs/{preempted_job}")
        expect(page.get_by_text("This part of the page could not be loaded.").first).to_be_visible()
    expect(page.get_by_role("heading", level=1, name="tiny")).to_be_visible()

    page.get_by_role("button", name="Reload the page").first.click()

    expect(page.get_by_text("This part of the page could not be loaded.")).to_be_hidden()


@pytest.mark.full
def test_submit_fails_at_once_while_the_service_is_silent(
    world: SimulatedService, url: str, proxy: NetworkProxy, page: Page
) -> None:
    page.goto(f"{url}/submit")
    expect(page.get_by_text("Valid. Launcher:")).to_be_visible()
    submit = page.get_by_role("button", name="Submit", exact=True)

    with unresponsive_service("hangs", proxy, page):
        submit.click()
        expect(page.get_by_role("alert")).to_contain_text("Nothing was sent")

    assert world.http.get("/v1/jobs").json()["jobs"] == []
    submit.click()
    expect(page.get_by_role("heading", level=1, name="hello")).to_be_visible()


@pytest.mark.full
def test_action_hanging_after_send_is_reported_as_unknown(
    url: str, preempted_job: str, proxy: NetworkProxy, page: Page
) -> None:
    page.goto(f"{url}/jobs/{preempted_job}")
    page.get_by_role("button", name="Pause").click()
    dialog = page.get_by_role("dialog", name="Pause tiny?")

    with proxy.holding("/pause$"):
        dialog.get_by_role("button", name="Pause").click()
        alert = dialog.get_by_role("alert")
        expect(alert).to_contain_text("Result unknown")
        expect(alert).to_contain_text("check whether the action took effect and repeat it if not")


@pytest.mark.full
def test_clone_with_a_lost_response_is_created_once(
    world: SimulatedService, url: str, preempted_job: str, proxy: NetworkProxy, page: Page
) -> None:
    page.goto(f"{url}/jobs/{preempted_job}")
    page.get_by_role("button", name="Clone").click()
    dialog = page.get_by_role("dialog", name="Clone tiny?")
    with proxy.losing_responses("/clone$"):
        dialog.get_by_role("button", name="Clone").click()
        expect(dialog.get_by_role("alert")).to_contain_text("Result unknown")
    assert len(world.http.get("/v1/jobs").json()["jobs"]) == 2

    dialog.get_by_role("button", name="Clone").click()

    expect(page).not_to_have_url(re.compile(preempted_job))
    assert len(world.http.get("/v1/jobs").json()["jobs"]) == 2


@pytest.mark.full
def test_cloning_twice_makes_two_clones(
    world: SimulatedService, url: str, preempted_job: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{preempted_job}")

    for _ in range(2):
        page.get_by_role("button", name="Clone").click()
        page.get_by_role("dialog").get_by_role("button", name="Clone").click()
        expect(page).not_to_have_url(re.compile(preempted_job))
        page.go_back()
        expect(page).to_have_url(re.compile(preempted_job))

    assert len(world.http.get("/v1/jobs").json()["jobs"]) == 3


@pytest.mark.full
def test_discarded_dialog_input_is_not_submitted_later(
    world: SimulatedService, url: str, preempted_job: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{preempted_job}")
    dialog = limits_of_tiny(page)
    dialog.get_by_label("Maximum cost (USD)", exact=True).fill("25")
    dialog.get_by_role("button", name="Back").click()

    limits_of_tiny(page)
    expect(dialog.get_by_label("Maximum cost (USD)", exact=True)).to_have_value("")
    dialog.get_by_label("Deadline").fill("48h")
    dialog.get_by_role("button", name="Limits").click()

    expect(dialog).to_be_hidden()
    limits = world.job(preempted_job)["limits"]
    assert (limits["deadline"], limits["max_cost_usd"]) == ("48h", None)


@pytest.mark.full
def test_limit_changed_by_another_user_is_shown_first(
    world: SimulatedService, url: str, preempted_job: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{preempted_job}")
    dialog = limits_of_tiny(page)
    max_cost = dialog.get_by_label("Maximum cost (USD)", exact=True)
    world.http.patch(f"/v1/jobs/{preempted_job}/limits", json={"max_cost_usd": "40"})

    dialog.get_by_label("Deadline").fill("48h")
    dialog.get_by_role("button", name="Limits").click()

    expect(dialog.get_by_role("alert")).to_contain_text("Another user changed them")
    assert world.job(preempted_job)["limits"]["deadline"] is None
    dialog.get_by_role("button", name="Back").click()
    limits_of_tiny(page)
    expect(max_cost).to_have_value(world.job(preempted_job)["limits"]["max_cost_usd"])
    max_cost.fill("50")
    dialog.get_by_role("button", name="Limits").click()
    expect(dialog).to_be_hidden()
    assert world.job(preempted_job)["limits"]["max_cost_usd"].startswith("50")


@pytest.mark.full
def test_concurrent_job_events_do_not_block_a_limit_change(
    world: SimulatedService, url: str, proxy: NetworkProxy, page: Page
) -> None:
    job = world.submit()["id"]
    world.until(job, "training")
    page.goto(f"{url}/jobs/{job}")
    answers: list[int] = []

    def advance_job() -> None:
        if not answers:
            world.take_node(job, notice_s=None, then_s=3)

    def note(response: Response) -> None:
        if response.request.method == "PATCH":
            answers.append(response.status)

    page.on("response", note)
    dialog = limits_of_tiny(page)
    world.pass_time(3)

    dialog.get_by_label("Maximum cost (USD)", exact=True).fill("25")
    with proxy.after("^PATCH .*/limits$", advance_job):
        dialog.get_by_role("button", name="Limits").click()
        expect(dialog).to_be_hidden()

    assert answers == [412, 200]
    assert world.job(job)["limits"]["max_cost_usd"].startswith("25")


@pytest.mark.full
def test_copied_commands_match_the_submitted_request(url: str, page: Page) -> None:
    page.goto(f"{url}/submit")
    page.get_by_role("textbox", name="Job file").fill(FILE)
    page.get_by_label("Base directory for relative paths").fill("/srv/o'clock")
    page.get_by_label("Run on spot without checkpoints").check()

    page.get_by_role("button", name="Copy as command").click()
    command = page.get_by_role("dialog", name="Copy as command").get_by_role("region").inner_text()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Copy as curl").click()
    request = page.get_by_role("dialog", name="Copy as curl").get_by_role("region").inner_text()
    page.keyboard.press("Escape")

    with page.expect_request(lambda asked: asked.url == f"{url}/v1/jobs") as submitted:
        page.get_by_role("button", name="Submit", exact=True).click()
    sent = submitted.value.post_data_json
    assert (sent["force"], sent["base_dir"]) == (True, "/srv/o'clock")
    arguments = shlex.split(request.replace("\\\n", " "))
    assert json.loads(arguments[arguments.index("-d") + 1]) == sent
    last = shlex.split(command.strip().splitlines()[-1].strip("()"))
    assert last == [
        *("cd", "/srv/o'clock", "&&"),
        *("holdfast", "submit", "$OLDPWD/job.yaml", "--force"),
    ]

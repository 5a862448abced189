"""Dialogs: what is asked in them is done once, as it was seen, and nothing that was typed for something else."""

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
    """The dialog in which they are changed, opened."""
    page.get_by_role("group", name="Actions").get_by_role("button", name="Limits").click()
    return page.get_by_role("dialog", name="Limits of tiny")


@contextmanager
def silence(kind: str, road: NetworkProxy, page: Page) -> Iterator[None]:
    """A time in which the service does not answer the page."""
    if kind == "no network":
        page.context.set_offline(True)
        yield
        page.context.set_offline(False)
    elif kind == "refuses connections":
        with road.cut(""):
            yield
    else:
        with road.holding("") as held:
            yield
            held.cut_off()


@pytest.mark.parametrize(
    "kind",
    [
        "no network",
        *(pytest.param(kind, marks=pytest.mark.full) for kind in ("refuses connections", "hangs")),
    ],
)
def test_action_fails_at_once_while_the_service_is_silent(
    kind: str, world: SimulatedService, url: str, eventful: str, road: NetworkProxy, page: Page
) -> None:
    page.goto(f"{url}/jobs/{eventful}")
    page.get_by_role("button", name="Cancel").click()
    question = page.get_by_role("dialog", name="Cancel tiny?")
    alert = question.get_by_role("alert")

    with silence(kind, road, page):
        question.get_by_role("button", name="Cancel job").click()
        expect(alert).to_contain_text("Nothing was sent")
        expect(alert).to_contain_text("Try again once reconnected")
        expect(alert).not_to_contain_text("retries automatically")

    assert world.job(eventful)["state"] == "training"
    question.get_by_role("button", name="Cancel job").click()
    expect(question).to_be_hidden()
    assert world.job(eventful)["state"] == "stopping"


@pytest.mark.full
def test_page_stays_when_a_part_of_it_cannot_be_loaded(
    url: str, eventful: str, road: NetworkProxy, page: Page
) -> None:
    with road.cut("/assets/metric-chart"):
        page.goto(f"{url}/jobs/{eventful}")
        expect(page.get_by_text("This part of the page could not be loaded.").first).to_be_visible()
    expect(page.get_by_role("heading", level=1, name="tiny")).to_be_visible()

    page.get_by_role("button", name="Reload the page").first.click()

    expect(page.get_by_text("This part of the page could not be loaded.")).to_be_hidden()


@pytest.mark.full
def test_submit_fails_at_once_while_the_service_is_silent(
    world: SimulatedService, url: str, road: NetworkProxy, page: Page
) -> None:
    page.goto(f"{url}/submit")
    expect(page.get_by_text("Valid. Launcher:")).to_be_visible()
    submit = page.get_by_role("button", name="Submit", exact=True)

    with silence("hangs", road, page):
        submit.click()
        expect(page.get_by_role("alert")).to_contain_text("Nothing was sent")

    assert world.http.get("/v1/jobs").json()["jobs"] == []
    submit.click()
    expect(page.get_by_role("heading", level=1, name="hello")).to_be_visible()


@pytest.mark.full
def test_action_hanging_after_send_is_reported_as_unknown(
    url: str, eventful: str, road: NetworkProxy, page: Page
) -> None:
    page.goto(f"{url}/jobs/{eventful}")
    page.get_by_role("button", name="Pause").click()
    question = page.get_by_role("dialog", name="Pause tiny?")

    with road.holding("/pause$"):
        question.get_by_role("button", name="Pause").click()
        alert = question.get_by_role("alert")
        expect(alert).to_contain_text("Result unknown")
        expect(alert).to_contain_text("check whether the action took effect and repeat it if not")


def test_a_clone_whose_answer_was_lost_is_not_made_twice(
    world: SimulatedService, url: str, eventful: str, road: NetworkProxy, page: Page
) -> None:
    page.goto(f"{url}/jobs/{eventful}")
    page.get_by_role("button", name="Clone").click()
    question = page.get_by_role("dialog", name="Clone tiny?")
    with road.losing_answers("/clone$"):
        question.get_by_role("button", name="Clone").click()
        expect(question.get_by_role("alert")).to_contain_text("Result unknown")
    assert len(world.http.get("/v1/jobs").json()["jobs"]) == 2

    question.get_by_role("button", name="Clone").click()

    expect(page).not_to_have_url(re.compile(eventful))
    assert len(world.http.get("/v1/jobs").json()["jobs"]) == 2


@pytest.mark.full
def test_cloning_twice_makes_two_clones(
    world: SimulatedService, url: str, eventful: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{eventful}")

    for _ in range(2):
        page.get_by_role("button", name="Clone").click()
        page.get_by_role("dialog").get_by_role("button", name="Clone").click()
        expect(page).not_to_have_url(re.compile(eventful))
        page.go_back()
        expect(page).to_have_url(re.compile(eventful))

    assert len(world.http.get("/v1/jobs").json()["jobs"]) == 3


@pytest.mark.full
def test_discarded_dialog_input_is_not_submitted_later(
    world: SimulatedService, url: str, eventful: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{eventful}")
    question = limits_of_tiny(page)
    question.get_by_label("Maximum cost (USD)", exact=True).fill("25")
    question.get_by_role("button", name="Back").click()

    limits_of_tiny(page)
    expect(question.get_by_label("Maximum cost (USD)", exact=True)).to_have_value("")
    question.get_by_label("Deadline").fill("48h")
    question.get_by_role("button", name="Limits").click()

    expect(question).to_be_hidden()
    limits = world.job(eventful)["limits"]
    assert (limits["deadline"], limits["max_cost_usd"]) == ("48h", None)


def test_limit_changed_by_another_user_is_shown_first(
    world: SimulatedService, url: str, eventful: str, page: Page
) -> None:
    page.goto(f"{url}/jobs/{eventful}")
    question = limits_of_tiny(page)
    most = question.get_by_label("Maximum cost (USD)", exact=True)
    world.http.patch(f"/v1/jobs/{eventful}/limits", json={"max_cost_usd": "40"})

    question.get_by_label("Deadline").fill("48h")
    question.get_by_role("button", name="Limits").click()

    expect(question.get_by_role("alert")).to_contain_text("Another user changed them")
    assert world.job(eventful)["limits"]["deadline"] is None
    question.get_by_role("button", name="Back").click()
    limits_of_tiny(page)
    expect(most).to_have_value(world.job(eventful)["limits"]["max_cost_usd"])
    most.fill("50")
    question.get_by_role("button", name="Limits").click()
    expect(question).to_be_hidden()
    assert world.job(eventful)["limits"]["max_cost_usd"].startswith("50")


@pytest.mark.full
def test_concurrent_job_events_do_not_block_a_limit_change(
    world: SimulatedService, url: str, road: NetworkProxy, page: Page
) -> None:
    job = world.submit()["id"]
    world.until(job, "training")
    page.goto(f"{url}/jobs/{job}")
    answers: list[int] = []

    def go_on_between() -> None:
        if not answers:
            world.take_node(job, notice_s=None, then_s=3)

    def note(response: Response) -> None:
        if response.request.method == "PATCH":
            answers.append(response.status)

    page.on("response", note)
    question = limits_of_tiny(page)
    world.pass_time(3)

    question.get_by_label("Maximum cost (USD)", exact=True).fill("25")
    with road.after("^PATCH .*/limits$", go_on_between):
        question.get_by_role("button", name="Limits").click()
        expect(question).to_be_hidden()

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
    words = shlex.split(request.replace("\\\n", " "))
    assert json.loads(words[words.index("-d") + 1]) == sent
    last = shlex.split(command.strip().splitlines()[-1].strip("()"))
    assert last == [
        *("cd", "/srv/o'clock", "&&"),
        *("holdfast", "submit", "$OLDPWD/job.yaml", "--force"),
    ]

"""The submit page: form and file agree, errors are explained, and the preview is submitted."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace

import pytest
from holdfast.domain.jobfile.spec import Engine
from playwright.sync_api import Page, expect
from support.principals import create_principals
from support.simulated_service import SimulatedService

COLUMNS = """task => [...task.querySelectorAll('.line')].filter(line => line.innerText.slice(2).trim()).map(line => {
  const text = line.textContent, first = 2 + text.slice(2).search(/\\S/)
  const words = document.createTreeWalker(line, NodeFilter.SHOW_TEXT)
  let node = words.nextNode(), from = first
  while (from >= node.length) { from -= node.length; node = words.nextNode() }
  const range = document.createRange()
  range.setStart(node, from)
  range.setEnd(node, from + 1)
  const { left, width } = range.getBoundingClientRect()
  return Math.round(left - first * width)
})"""
"""The columns of the first characters with visible indentation; equal for all lines."""

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)


def test_form_and_file_update_each_other(url: str, page: Page) -> None:
    page.goto(f"{url}/submit")
    file = page.get_by_role("textbox", name="Job file")

    page.get_by_label("Name", exact=True).fill("by-form")
    page.get_by_label("Nodes", exact=True).fill("2")
    expect(file).to_have_value(re.compile(r"^name: by-form\n.*\nnum_nodes: 2\n$", re.DOTALL))
    file.fill("name: by-hand # mine\nresources: {infra: local}\nrun: 'true'\n")

    expect(page.get_by_label("Name", exact=True)).to_have_value("by-hand")
    page.get_by_label("Where", exact=True).fill("local")
    expect(file).to_have_value(re.compile("# mine"))
    page.reload()
    expect(file).to_have_value(re.compile("by-hand"))


@pytest.mark.full
def test_rendered_task_updates_with_changes_marked(
    world: SimulatedService, url: str, page: Page
) -> None:
    page.goto(f"{url}/submit")
    task = page.get_by_role("region", name="Rendered task")
    expect(task).to_contain_text("name: hello")

    page.get_by_label("Name", exact=True).fill("other")

    expect(task).to_contain_text("+ name: other")
    changed = [line for line in task.inner_text().splitlines() if line.startswith("+ ")]
    expect(page.get_by_role("status").filter(has_text="changed, marked")).to_contain_text(
        f"{len(changed)} line"
    )
    file = page.get_by_role("textbox", name="Job file").input_value()
    shown = world.http.post("/v1/render", json={"task": file}).json()["task"]
    lines = [line[2:] for line in task.inner_text().splitlines()]
    assert "\n".join(lines).rstrip() == shown.rstrip()


@pytest.mark.full
def test_changed_lines_keep_the_indentation(url: str, page: Page) -> None:
    page.goto(f"{url}/submit")
    task = page.get_by_role("region", name="Rendered task")
    expect(task).to_contain_text("infra: local")

    page.get_by_role("textbox", name="Job file").fill(
        "name: hello\nnum_nodes: 2\nresources: {infra: local, cpus: 4}\nrun: 'true'\n"
    )

    expect(task).to_contain_text("+   cpus: ")
    assert len(set(task.evaluate(COLUMNS))) == 1


@pytest.mark.full
def test_preview_shows_why_submit_refuses(url: str, page: Page) -> None:
    page.goto(f"{url}/submit")

    page.get_by_label("Where", exact=True).fill("aws")

    refused = page.get_by_role("list", name="Reasons for refusal")
    expect(refused).to_contain_text("needs the SkyPilot launcher")
    expect(page.get_by_role("status").filter(has_text="Invalid")).to_have_text("✕ Invalid")


@pytest.mark.full
def test_errors_are_shown_at_their_fields_and_in_a_list(url: str, page: Page) -> None:
    page.goto(f"{url}/submit")
    file = page.get_by_role("textbox", name="Job file")

    file.fill("nmae: x\nresources: {accelerators: A100:8}\nrun: 'true'\nnum_nodes: none\n")

    wrong = page.get_by_role("list", name="Errors")
    expect(wrong.get_by_role("listitem").filter(has_text="did you mean")).to_contain_text("#/nmae")
    expect(page.get_by_label("Nodes", exact=True)).to_have_attribute("aria-invalid", "true")
    file.fill("name: [")
    expect(page.get_by_role("alert").filter(has_text="Invalid YAML")).to_be_visible()
    expect(page.get_by_label("Name", exact=True)).to_be_disabled()


def test_submitted_job_is_shown(world: SimulatedService, url: str, page: Page) -> None:
    page.goto(f"{url}/submit")
    page.get_by_label("Name", exact=True).fill("fresh")

    page.get_by_role("button", name="Submit", exact=True).click()

    expect(page.get_by_role("heading", level=1, name="fresh")).to_be_visible()
    (job,) = world.http.get("/v1/jobs").json()["jobs"]
    expect(page).to_have_url(f"{url}/jobs/{job['id']}")


@pytest.mark.full
def test_spot_job_without_checkpoints_needs_confirmation(
    world: SimulatedService, url: str, page: Page
) -> None:
    far = {**world.services.launchers, Engine.SKYPILOT: world.cloud}
    reach = "https://holdfast.example.com"
    world.app.state.services = replace(world.services, launchers=far, worker_url=reach)
    risky = (
        "name: risky\nresources: {infra: aws, accelerators: A100:8, use_spot: true}\nrun: train\n"
    )
    refused = world.http.post("/v1/jobs", json={"task": risky})
    assert refused.status_code == 422
    page.goto(f"{url}/submit")
    page.get_by_role("textbox", name="Job file").fill(risky)

    page.get_by_role("button", name="Submit", exact=True).click()

    expect(page.get_by_role("alert")).to_contain_text(refused.json()["detail"])
    assert world.http.get("/v1/jobs").json()["jobs"] == []
    page.get_by_label("Run on spot without checkpoints").check()
    page.get_by_role("button", name="Submit", exact=True).click()
    expect(page.get_by_role("heading", level=1, name="risky")).to_be_visible()
    (job,) = world.http.get("/v1/jobs").json()["jobs"]
    assert any(note.startswith("refused without --force") for note in job["notes"])


@pytest.mark.full
def test_expected_cost_follows_from_price_nodes_and_hours(
    world: SimulatedService, url: str, page: Page
) -> None:
    body = world.http.get("/v1/prices", params={"accelerator": "A100:8", "limit": 1000}).json()
    spots = [p["spot_micros_per_hour"] for p in body["prices"] if p["spot_micros_per_hour"]]
    page.goto(f"{url}/submit")

    page.get_by_role("textbox", name="Job file").fill(
        "name: dear\nresources: {accelerators: A100:8, use_spot: true}\nnum_nodes: 2\nrun: 'true'\n"
    )
    page.get_by_label("Hours of useful work").fill("5")

    expected = round(min(spots) * 2 * 5)
    figure = page.get_by_role("button", name=re.compile("^Expected on spot "))
    expect(figure).to_have_text(f"~${expected / 1e6:,.2f}")
    figure.focus()
    expect(page.get_by_role("tooltip").filter(visible=True)).to_contain_text("goodput 1 assumed")
    places = page.get_by_role("region", name="Cheapest placements of A100:8")
    expect(places.get_by_role("row")).to_have_count(4)


@pytest.mark.full
def test_job_is_copied_as_a_command_and_as_a_request(url: str, page: Page) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.goto(f"{url}/submit")
    page.get_by_label("Name", exact=True).fill("o'clock")
    file = page.get_by_role("textbox", name="Job file").input_value()

    page.get_by_role("button", name="Copy as command").click()
    expect(page.get_by_role("dialog", name="Copy as command")).to_contain_text(
        "Copied to the clipboard"
    )
    command = page.evaluate("navigator.clipboard.readText()")
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Copy as curl").click()
    request = page.get_by_role("dialog", name="Copy as curl").get_by_role("region").inner_text()

    assert command == f"cat > job.yaml <<'JOB'\n{file}JOB\nholdfast submit job.yaml\n"
    words = shlex.split(request.replace("\\\n", " "))
    assert words[:4] == ["curl", "-X", "POST", f"{url}/v1/jobs"]
    assert json.loads(words[words.index("-d") + 1]) == {"task": file}


@pytest.mark.full
def test_submission_by_a_viewer_shows_the_refusal(
    world: SimulatedService, url: str, page: Page
) -> None:
    principals = create_principals(world)
    token = principals.token("viewer")[0]
    page.context.set_extra_http_headers({"Authorization": f"Bearer {token}"})
    page.goto(f"{url}/submit")
    file = page.get_by_role("textbox", name="Job file").input_value()
    refused = principals.with_token(token).post("/v1/jobs", json={"task": file})
    before = world.http.get("/v1/jobs").json()["total"]

    page.get_by_role("button", name="Submit", exact=True).click()

    assert refused.status_code == 403
    expect(page.get_by_role("alert")).to_contain_text(refused.json()["detail"])
    assert world.http.get("/v1/jobs").json()["total"] == before

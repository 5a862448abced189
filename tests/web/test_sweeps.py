"""The pages of sweeps: the list, and the comparison of the jobs of one."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Locator, Page, expect
from support.simulated_service import SimulatedService
from support.sweeps import log_metric, loss_of, submit_sweep
from web.axe import violations

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

PARAMS = {"lr": ["1e-4", "1e-3"], "seed": ["1..2"], "batch": ["64"]}
STEPS = 40


def region(page: Page, name: str) -> Locator:
    return page.get_by_role("region", name=name, exact=True)


def names(page: Page) -> list[str]:
    """The jobs of the table in their order."""
    links = region(page, "Jobs by best loss").get_by_role("row").get_by_role("link")
    return links.all_inner_texts()


def test_sweep_compares_its_jobs(world: SimulatedService, url: str, page: Page) -> None:
    made = submit_sweep(world, params=PARAMS, max_cost_usd=25, stop={"metric": "loss"})
    log_metric(world, {"trials": made["trials"][:3]}, steps=STEPS)
    page.goto(f"{url}/sweeps")
    page.get_by_role("link", name="tiny").click()
    table = region(page, "Jobs by best loss")
    expect(table.get_by_role("row", name="best tiny-1")).to_be_visible()

    assert names(page) == ["tiny-1", "tiny-3", "tiny-2", "tiny-4"]
    titles = [text.strip() for text in table.get_by_role("columnheader").all_inner_texts()]
    assert titles == ["", "Job", "State", "lr", "seed", "Step", "Best loss", "Last", "Paid"]
    expect(table.get_by_role("row", name="tiny-1")).to_contain_text(f"{loss_of(1, STEPS):.4g}")
    expect(region(page, "Totals")).to_contain_text("0 % of $25.00")
    expect(
        page.get_by_role("img", name=re.compile("^loss of 3 jobs over 400 steps"))
    ).to_be_visible()
    plot = page.locator(".u-over").bounding_box()
    assert plot
    page.mouse.move(plot["x"] + plot["width"] - 10, plot["y"] + plot["height"] - 10)
    expect(page.get_by_role("figure").get_by_role("status")).to_contain_text("tiny-1: last 0.28")
    expect(region(page, "Comparison").get_by_role("status").last).to_contain_text("tiny-1, lr")
    table.get_by_role("button", name="lr").click()
    table.get_by_role("button", name="lr").click()
    expect(table.get_by_role("row").nth(1)).to_contain_text("1e-3")
    assert names(page)[:2] == ["tiny-3", "tiny-4"]

    page.get_by_label("Better").select_option("high")
    expect(table.get_by_role("row", name="best tiny-2")).to_be_visible()
    page.get_by_label("Metric").select_option("accuracy")
    expect(region(page, "Jobs by best accuracy")).to_be_visible()


def test_jobs_are_compared_and_opened_by_keyboard(
    world: SimulatedService, url: str, page: Page
) -> None:
    made = submit_sweep(world, params=PARAMS, stop={"metric": "loss"})
    log_metric(world, made, steps=STEPS)
    page.goto(f"{url}/sweeps/{made['id']}")
    lines = page.get_by_role("listbox", name=re.compile("^4 jobs over lr, seed, loss"))
    expect(lines.get_by_role("option")).to_have_count(4)
    legend = region(page, "Comparison").get_by_role("listitem")
    expect(legend.filter(has_text="tiny-4")).to_be_visible()

    lines.focus()
    page.keyboard.press("ArrowDown")
    words = region(page, "Comparison").get_by_role("status").last
    expect(words).to_contain_text("tiny-1, lr 1e-4, seed 1, batch 64, loss 0.2852")
    page.keyboard.press("ArrowDown")
    expect(words).to_contain_text("tiny-3, lr 1e-3, seed 1")
    page.keyboard.press("Space")

    expect(lines.get_by_role("option", name="tiny-3")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_role("checkbox", name="Select tiny-3")).to_be_checked()
    expect(legend.filter(has_text="tiny-1")).to_have_count(0)
    expect(page.get_by_role("button", name="Act on 1 selected job")).to_be_visible()
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1, name="tiny-3")).to_be_visible()
    page.get_by_role("link", name=f"sweep {made['id']}").click()
    expect(page.get_by_role("heading", level=1, name="tiny")).to_be_visible()


def test_sweep_is_cancelled_after_a_preview(world: SimulatedService, url: str, page: Page) -> None:
    made = submit_sweep(world, params={"seed": ["1..2"]})
    other = world.submit()["id"]
    page.goto(f"{url}/sweeps/{made['id']}")
    page.get_by_role("button", name="Limits").click()
    limits = page.get_by_role("dialog", name="Limits of tiny")
    limits.get_by_label("Maximum cost of all jobs (USD)").fill("much")
    limits.get_by_role("button", name="Change limits").click()
    expect(limits.get_by_role("alert")).to_contain_text("max_cost_usd")
    limits.get_by_label("Maximum cost of all jobs (USD)").fill("7.5")
    limits.get_by_role("button", name="Change limits").click()
    expect(region(page, "Totals")).to_contain_text("of $7.50")

    page.get_by_role("button", name="Cancel").click()
    dialog = page.get_by_role("dialog", name="Cancel the jobs of this sweep")
    expect(dialog.get_by_role("status")).to_contain_text("2 jobs would change")
    dialog.get_by_role("button", name="Cancel 2 jobs").click()

    done = page.get_by_role("dialog", name="Cancel: results")
    expect(done.get_by_role("status")).to_have_text("2 jobs done, 0 unchanged, 0 refused.")
    for trial in made["trials"]:
        assert world.job(trial["job_id"])["state"] in {"stopping", "cancelled"}
    assert world.job(other)["state"] == "queued"


def test_pages_without_sweeps_say_how_to_start(url: str, page: Page) -> None:
    page.goto(f"{url}/sweeps")
    expect(page.get_by_text("holdfast sweep train.yaml")).to_be_visible()

    page.goto(f"{url}/sweeps/absent")

    expect(page.get_by_role("heading", name="Sweep not found")).to_be_visible()
    expect(page.get_by_text("there is no sweep absent")).to_be_visible()


@pytest.mark.full
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_sweep_pages_are_accessible(
    world: SimulatedService, url: str, page: Page, scheme: str, width: int
) -> None:
    made = submit_sweep(world, params=PARAMS, stop={"metric": "loss"}, max_cost_usd=3)
    log_metric(world, {"trials": made["trials"][:3]})
    page.emulate_media(color_scheme="dark" if scheme == "dark" else "light")
    page.set_viewport_size({"width": width, "height": 900})
    found = []

    for path in ("/sweeps", f"/sweeps/{made['id']}", f"/sweeps/{made['id']}?log=1"):
        page.goto(f"{url}{path}")
        expect(page.get_by_role("heading", level=1)).to_be_visible()
        expect(page.get_by_text("Loading")).to_have_count(0)
        found += [f"{path}: {rule}" for rule in violations(page)]
        assert page.evaluate("document.documentElement.scrollWidth") <= width

    assert not found, "\n".join(found)


@pytest.mark.full
def test_sweep_of_hundreds_of_jobs_is_usable(world: SimulatedService, url: str, page: Page) -> None:
    made = submit_sweep(world, params={"seed": ["1..500"]}, stop={"metric": "loss"})
    log_metric(world, made)
    page.goto(f"{url}/sweeps/{made['id']}")
    lines = page.get_by_role("listbox")
    expect(lines.get_by_role("option")).to_have_count(500)
    expect(page.get_by_role("img", name=re.compile("^loss of 500 jobs"))).to_be_visible()

    lines.focus()
    page.keyboard.press("End")
    page.keyboard.press("Space")

    expect(page.get_by_role("button", name="Act on 1 selected job")).to_be_visible()
    region(page, "Jobs by best loss").get_by_label("Select all").check()
    expect(page.get_by_role("button", name="Act on 500 selected jobs")).to_be_visible()

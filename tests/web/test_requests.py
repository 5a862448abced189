"""Requests of pages: only for complete input, and repeated for changing values."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from holdfast.background.notifier import Notifier
from holdfast.store.notifications.outbox import Outbox
from playwright.sync_api import Page, Request, expect
from support.notifications import RecordingSender
from support.principals import OWN, Principals, create_principals
from support.simulated_service import SimulatedService
from web.expected_numbers import dollars
from web.network_proxy import NetworkProxy

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)

KEY_MS = 50
"""Time between two letters of a fast typist."""


@pytest.fixture
def principals(world: SimulatedService) -> Principals:
    """Users in all roles; requests from this machine are the owner's."""
    return create_principals(world)


@pytest.mark.full
def test_prices_are_requested_after_typing_has_ended(url: str, page: Page) -> None:
    page.clock.install()
    page.goto(f"{url}/submit")
    page.get_by_label("Where", exact=True).fill("")
    expect(page.get_by_text("Enter accelerators to see")).to_be_visible()
    asked: list[str] = []

    def note(request: Request) -> None:
        if "/v1/prices" in request.url:
            asked.append(request.url)

    page.on("request", note)
    page.clock.pause_at(page.evaluate("Date.now()") + 1_000)
    page.get_by_label("Accelerators per node").focus()

    for character in "A100:8":
        page.keyboard.type(character)
        page.clock.run_for(KEY_MS)

    assert asked == []
    page.clock.resume()
    expect(page.get_by_role("region", name="Cheapest placements of A100:8")).to_be_visible()
    assert len(asked) == 1


@pytest.mark.full
def test_valid_token_shows_its_expiry(principals: Principals, url: str, page: Page) -> None:
    made = {"name": "laptop", "scopes": ["read"], "days": 90}
    principals.world.http.post("/v1/tokens", json=made)
    page.clock.set_fixed_time(principals.world.clock.now())

    page.goto(f"{url}/team?tab=tokens")

    row = page.get_by_role("region", name="Tokens").get_by_role("row", name="laptop")
    expect(row).to_contain_text("✓ valid, expires in 90 d")


@pytest.mark.full
def test_recent_event_is_shown_as_now_if_the_clock_is_behind(
    world: SimulatedService, url: str, page: Page
) -> None:
    job = world.submit()["id"]
    page.clock.set_fixed_time(world.clock.now().timestamp() - 20)

    page.goto(f"{url}/jobs/{job}")

    expect(page.get_by_text("submitted now")).to_be_visible()


@pytest.mark.full
def test_delivery_of_a_queued_message_is_shown(
    principals: Principals, url: str, page: Page
) -> None:
    world, channels = principals.world, f"/v1/projects/{OWN}/channels"
    channel = {"name": "ops", "url": "http://127.0.0.1:9/hook", "kinds": []}
    assert principals.world.http.post(channels, json=channel).status_code == 201
    world.http.post(f"{channels}/ops/test")
    page.goto(f"{url}/team?tab=notifications&project={OWN}&channel=ops")
    message = page.get_by_role("region", name="Deliveries to ops").get_by_role("row").nth(1)
    expect(message).to_contain_text("waiting")
    outbox = Outbox(world.services.engine, world.clock)
    channels_of = world.services.channels

    with ThreadPoolExecutor(1) as aside:
        notifier = Notifier(
            outbox=outbox, channels=channels_of, messenger=RecordingSender(), clock=world.clock
        )
        aside.submit(notifier.run_once_and_wait).result()

    expect(message).to_contain_text("✓ sent")


@pytest.mark.full
def test_budget_spending_updates_while_displayed(
    principals: Principals, url: str, page: Page
) -> None:
    world, budget = principals.world, f"/v1/budgets/project/{OWN}"
    world.http.put(budget, json={"monthly_usd": "40", "warn_at": [], "on_reached": "warn"})
    page.clock.install()
    page.goto(f"{url}/team")
    row = page.get_by_role("region", name="Budgets").get_by_role("row", name=OWN)
    expect(row).to_contain_text("$0.00")

    world.until(principals.own, "succeeded")
    page.clock.fast_forward("01:00")

    (body,) = world.http.get("/v1/budgets").json()
    assert body["spent_micros"] > 0
    expect(row).to_contain_text(dollars(body["spent_micros"]))


@pytest.mark.full
def test_unavailable_attempts_are_not_shown_as_none(
    world: SimulatedService, url: str, preempted_job: str, proxy: NetworkProxy, page: Page
) -> None:
    row = page.get_by_role("region", name="Active jobs").get_by_role("row", name="tiny")

    with proxy.holding("/attempts$") as held:
        page.goto(url)
        expect(row).to_contain_text("loading")
        with proxy.cut("/attempts$"):
            held.drop()
            expect(row).to_contain_text("unavailable: The service is unreachable")

    world.take_node(preempted_job, notice_s=None, then_s=3)
    expect(row).not_to_contain_text("unavailable")

"""Budgets: their API, and their effect on jobs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from holdfast.domain.access.audit import Actor
from holdfast.domain.budgets import BudgetScope
from holdfast.domain.events import PriceChanged
from holdfast.errors import NotFound
from support.simulated_service import JOB_FILE, SimulatedService

HOUR = 2 * 1_150_000 * 1.2
"""The hourly cost of a job's two nodes in micro-dollars, rounded down."""


def put(world: SimulatedService, usd: float, scope: str = "project", name: str = "default", **fields: Any) -> dict[str, Any]:  # fmt: skip
    answer = world.http.put(f"/v1/budgets/{scope}/{name}", json={"monthly_usd": usd, **fields})
    assert answer.status_code == 200, answer.text
    budget: dict[str, Any] = answer.json()
    return budget


def budgets(world: SimulatedService) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.http.get("/v1/budgets").json()
    return found


def test_a_budget_is_set_changed_listed_and_removed(world: SimulatedService) -> None:
    first = put(world, 500)
    put(world, 600, warn_at=[90, 10, 90], on_reached="warn")
    put(world, 20, "user", "ada")

    listed = budgets(world)
    gone = world.http.delete("/v1/budgets/user/ada")
    again = world.http.delete("/v1/budgets/user/ada")

    assert (first["monthly_micros"], first["warn_at"], first["spent_micros"]) == (500_000_000, [50, 80, 95], 0)  # fmt: skip
    assert [(b["scope"], b["name"], b["warn_at"], b["on_reached"]) for b in listed] == [
        ("project", "default", [10, 90], "warn"),
        ("user", "ada", [50, 80, 95], "pause"),
    ]
    assert (gone.status_code, again.status_code) == (204, 404)


def test_budget_marks_simulated_spending(world: SimulatedService) -> None:
    put(world, 500)
    put(world, 20, "user", "ada")
    before = budgets(world)
    world.until(world.submit()["id"], "training")
    while_it_runs = budgets(world)
    world.until(world.http.get("/v1/jobs").json()["jobs"][0]["id"], "succeeded")
    after = put(world, 600)
    world.clock.advance(timedelta(days=31).total_seconds())
    next_month = budgets(world)

    assert [b["simulated"] for b in before] == [False, False]
    assert [b["simulated"] for b in while_it_runs] == [True, False]
    assert (after["simulated"], after["is_price_estimate"]) == (True, False)
    assert [b["simulated"] for b in next_month] == [False, False]


def test_budget_marks_spending_at_estimated_prices(world: SimulatedService) -> None:
    job_id = world.submit()["id"]
    world.until(job_id, "training")
    journal, now = world.services.journal, world.clock.now()
    change = PriceChanged(
        at=now,
        attempt=1,
        group=0,
        micros_per_hour=5_000_000,
        on_demand_micros_per_hour=9_000_000,
        price_source="nobody",
        price_as_of=now,
        is_price_estimate=True,
    )
    journal.append(journal.read(job_id), [change])
    world.pass_time(5)

    result = put(world, 500)

    assert result["is_price_estimate"] is True


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({"monthly_usd": 0}, "#/monthly_usd"),
        ({"monthly_usd": "much"}, "#/monthly_usd"),
        ({"monthly_usd": 5, "warn_at": [0]}, "#/warn_at/0"),
        ({"monthly_usd": 5, "on_reached": "explode"}, "#/on_reached"),
    ],
)
def test_invalid_budget_is_refused_with_its_field(
    world: SimulatedService, body: dict[str, Any], place: str
) -> None:
    answer = world.http.put("/v1/budgets/project/default", json=body)

    assert answer.status_code == 422
    assert [flaw["pointer"] for flaw in answer.json()["errors"]] == [place]


def test_spent_budget_pauses_jobs_until_raised(
    world: SimulatedService,
) -> None:
    put(world, 0.2)
    jobs = [world.submit(JOB_FILE.replace("tiny", name))["id"] for name in ("one", "two")]

    first, second = (world.until(job_id, "paused", limit_s=600) for job_id in jobs)
    spent = budgets(world)[0]
    refused = world.http.post(f"/v1/jobs/{jobs[0]}/resume", json={})
    late = world.http.post("/v1/jobs", json={"task": JOB_FILE})
    put(world, 50)
    resumed = world.http.post(f"/v1/jobs/{jobs[0]}/resume", json={})

    assert first["guard"] == second["guard"] == "budget"
    assert first["detail"].startswith("the budget of project default ($0.20 a month) is spent: $")
    assert spent["spent_micros"] == first["paid_micros"] + second["paid_micros"] <= 200_000
    assert refused.status_code == 409
    assert refused.json()["type"] == "/docs/errors#budget-spent"
    assert late.status_code == 409
    assert resumed.status_code == 202
    assert world.until(jobs[0], "succeeded")["step"] == 60


def test_spent_budget_refuses_jobs_until_the_month_ends(
    world: SimulatedService,
) -> None:
    job_id = world.submit()["id"]
    world.until(job_id, "succeeded")
    put(world, 0.000001)

    refused = world.http.post("/v1/jobs", json={"task": JOB_FILE})
    world.clock.advance(timedelta(days=31).total_seconds())
    let_in = world.http.post("/v1/jobs", json={"task": JOB_FILE})

    assert refused.status_code == 409
    assert refused.json()["type"] == "/docs/errors#budget-spent"
    assert "it resets at " in refused.json()["detail"]
    assert let_in.status_code == 201
    assert budgets(world)[0]["spent_micros"] == 0


def test_concurrent_submissions_cannot_exceed_a_budget(world: SimulatedService) -> None:
    world.until(world.submit()["id"], "succeeded")
    put(world, 0.000001)

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: world.http.post("/v1/jobs", json={"task": JOB_FILE}), range(16)))  # fmt: skip

    assert {answer.status_code for answer in answers} == {409}


def test_users_are_warned_once_at_each_threshold(world: SimulatedService, caplog: pytest.LogCaptureFixture) -> None:  # fmt: skip
    put(world, 0.1, on_reached="warn", warn_at=[10, 20, 100])

    world.until(world.submit()["id"], "succeeded")

    found = [record.getMessage() for record in caplog.records if "is spent" in record.getMessage()]
    assert budgets(world)[0]["warned_at"] == [10, 20]
    assert [text.partition(" ")[0] for text in found] == ["10", "20"]


def test_budgets_of_others_do_not_affect_a_job(world: SimulatedService) -> None:
    world.http.post("/v1/projects", json={"name": "vision"})
    put(world, 0.000001, "project", "vision")
    put(world, 0.000001, "user", "ada")

    assert world.until(world.submit()["id"], "succeeded")["guard"] is None


def test_removing_an_absent_budget_is_refused(world: SimulatedService) -> None:
    with pytest.raises(NotFound, match="there is no budget of user bob"):
        world.services.journal.budgets.remove(
            BudgetScope.USER, "bob", Actor(name="owner").audit_action("rm", "bob")
        )


def test_unknown_project_has_no_budget(world: SimulatedService) -> None:
    answer = world.http.put("/v1/budgets/project/visoin", json={"monthly_usd": 5})

    assert answer.status_code == 404
    assert answer.json()["detail"] == "there is no project visoin"


def test_budget_changes_are_in_the_audit_log(world: SimulatedService) -> None:
    put(world, 500)
    world.http.delete("/v1/budgets/project/default")

    rows = world.http.get("/v1/audit?target=project/default").json()["rows"]

    assert [(row["action"], row["actor"]) for row in rows] == [
        ("budget.remove", "owner"),
        ("budget.set", "owner"),
    ]
    assert rows[1]["after"] == {"monthly_micros": 500_000_000, "on_reached": "pause"}

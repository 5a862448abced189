"""The forecast of a resume on other nodes: that of plans, for the work that is left."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast.cli.app import app
from support.simulated_service import JOB_FILE, SimulatedService, served
from typer.testing import CliRunner

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""Nothing here depends on the database."""

END = "2026-01-02T06:00:00Z"
LIMITED = f'{JOB_FILE}  limits: {{deadline: "{END}", max_cost_usd: 500}}\n'
PLANNED = f"{LIMITED}  plan: {{work: 20h}}\n"


def paused(world: SimulatedService, file: str, *, trains_s: float = 25) -> str:
    job: str = world.submit(file)["id"]
    if trains_s:
        world.until(job, "training")
        world.pass_time(trains_s)
    world.http.post(f"/v1/jobs/{job}/pause", json={})
    world.until(job, "paused")
    return job


def preview(world: SimulatedService, job: str, **asked: Any) -> dict[str, Any]:
    answer = world.http.post(f"/v1/jobs/{job}/resume/preview", json=asked)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def forecast(world: SimulatedService, job: str, **asked: Any) -> dict[str, Any]:
    found = preview(world, job, **asked)
    assert found["forecast_note"] == ""
    shown: dict[str, Any] = found["forecast"]
    return shown


def test_job_without_progress_has_the_forecast_of_its_file(world: SimulatedService) -> None:
    job = paused(world, PLANNED, trains_s=0)

    shown = forecast(world, job, nodes=3)

    file = PLANNED.replace("num_nodes: 2", "num_nodes: 3")
    as_new = world.http.post("/v1/plans", json={"task": file}).json()
    assert [each["name"] for each in shown["alternatives"]] == ["ours", "spot", "on_demand"]
    for mine, other in zip(shown["alternatives"], as_new["alternatives"], strict=True):
        assert mine["cost_micros"] == pytest.approx(other["cost_micros"], rel=0.02)
        assert mine["late"] == pytest.approx(other["late"], abs=0.05)
    assert (shown["deadline_at"], shown["budget_micros"]) == (END, 500_000_000)
    assert shown["sentence"].startswith("about $")
    assert "late" in shown["sentence"]
    assert "over budget" in shown["sentence"]
    assert any("the work of the plan, 20.0 h, is taken" in note for note in shown["notes"])


def test_forecast_rests_on_the_plan_of_the_resumed_job(world: SimulatedService) -> None:
    job = paused(world, PLANNED)

    same, shown = forecast(world, job), forecast(world, job, nodes=3)
    world.http.post(f"/v1/jobs/{job}/resume", json={"nodes": 3})

    plan = world.http.get(f"/v1/jobs/{job}/plan").json()
    for word in ("work_s", "remaining_s", "deadline_at", "budget_micros"):
        assert shown[word] == plan[word], word
    assert 0 < shown["remaining_s"] < shown["work_s"] == 72_000
    # Without other nodes, the plan keeps what was measured: a minute.
    assert same["work_s"] < 100
    paid = world.job(job)["paid_micros"]
    assert all(each["cost_micros"]["p10"] >= paid for each in shown["alternatives"])


def test_limits_of_the_request_are_forecast(world: SimulatedService) -> None:
    job = paused(world, PLANNED)

    shown = forecast(world, job, nodes=3, limits={"deadline": "8h", "max_cost_usd": 20})

    assert (shown["deadline_at"], shown["budget_micros"]) == ("2026-01-01T08:00:00Z", 20_000_000)
    assert {each["late"] for each in shown["alternatives"]} == {1.0}
    [issue] = [each for each in shown["issues"] if "deadline" in each.split(":")[0]]
    assert "of work" in issue
    assert world.job(job)["limits"]["deadline"] == END


def test_steps_of_a_job_without_a_plan_are_its_work(world: SimulatedService) -> None:
    job = paused(world, LIMITED)

    two, three = forecast(world, job), forecast(world, job, nodes=3)

    [ours] = three["alternatives"]
    assert (ours["name"], three["issues"]) == ("ours", [])
    assert two["work_s"] == three["work_s"]
    assert 55 < three["work_s"] < 70
    assert 0 < three["remaining_s"] < three["work_s"]
    assert ours["cost_micros"]["p50"] > two["alternatives"][0]["cost_micros"]["p50"]
    assert any("as long as on the present nodes" in note for note in three["notes"])
    assert not any("present nodes" in note for note in two["notes"])


def test_on_demand_nodes_without_a_plan_are_never_lost(world: SimulatedService) -> None:
    job = paused(world, LIMITED)
    cloud = {"infra": "aws/us-east-1", "gpus": "A100:8"}

    [firm] = forecast(world, job, **cloud, spot=False)["alternatives"]
    [spot] = forecast(world, job, **cloud, spot=True)["alternatives"]

    assert (firm["preemptions"], spot["cost_micros"]["p50"] < firm["cost_micros"]["p50"]) == (
        0,
        True,
    )
    assert firm["cost_micros"]["p10"] == firm["cost_micros"]["p90"]


def test_job_of_unknown_work_has_no_forecast(world: SimulatedService) -> None:
    job = paused(world, LIMITED, trains_s=0)

    found = preview(world, job, nodes=3)

    assert found["forecast"] is None
    assert found["forecast_note"].startswith("no forecast: how long the job trains is not known")
    assert (found["changes"], found["refused"]) == (["nodes 3 instead of 2"], [])


def test_ended_or_late_job_has_no_forecast(world: SimulatedService) -> None:
    early = world.submit(PLANNED)["id"]
    world.http.post(f"/v1/jobs/{early}/cancel", json={})
    world.until(early, "cancelled")
    late = paused(world, PLANNED)
    world.clock.advance(40 * 3600)

    notes = [preview(world, job, nodes=3)["forecast_note"] for job in (early, late)]

    assert notes == ["no forecast: the job has ended", "no forecast: the deadline has passed"]


def test_nodes_of_unknown_price_have_no_forecast(world: SimulatedService) -> None:
    job = paused(world, LIMITED)

    found = preview(world, job, infra="aws/us-east-1")

    assert found["forecast"] is None
    assert "the price of these nodes is not known" in found["forecast_note"]


@pytest.mark.parametrize(
    ("file", "words"),
    [
        (PLANNED, ("Forecast: about $", "note: the work of the plan, 20.0 h")),
        (LIMITED, ("No forecast: how long the job trains is not known",)),
    ],
)
def test_command_prints_the_forecast_of_a_resume(
    world: SimulatedService, monkeypatch: pytest.MonkeyPatch, file: str, words: tuple[str, ...]
) -> None:
    job = paused(world, file, trains_s=0)

    with served(world) as url:
        monkeypatch.setenv("HOLDFAST_URL", url)
        done = CliRunner().invoke(app, ["resume", job, "--nodes", "3", "--dry-run"])

    assert done.exit_code == 0, done.output
    text = " ".join(done.output.split())
    assert [word for word in words if word not in text] == []

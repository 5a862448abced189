"""Plans in the API and on the command line: forecasts, refusals, and the plan of a job."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from holdfast.cli.app import app
from holdfast.domain.events import CapacityType, MoveRequested, Planned, PlanReason
from holdfast.domain.jobs.plan_status import Pace
from holdfast.submission.plan_check import measured_work_s
from support.simulated_service import SimulatedService, served
from typer.testing import CliRunner

pytestmark = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
"""Nothing here depends on the database."""

PLAIN = """
name: tiny
resources: {infra: local}
run: holdfast-worker run train.py
holdfast:
  checkpoint: {store: "s3://bucket/prefix", every: 10 steps}
"""
PLANNED = f"{PLAIN}  limits: {{deadline: 30h, max_cost_usd: 500}}\n  plan: {{work: 20h}}\n"
DEADLINE, BUDGET = "#/holdfast/limits/deadline", "#/holdfast/limits/max_cost_usd"


def preview(world: SimulatedService, file: str = PLANNED, **values: Any) -> dict[str, Any]:
    answer = world.http.post("/v1/plans", json={"task": file, **values})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refused(world: SimulatedService, file: str, **values: Any) -> dict[str, Any]:
    """The pointers and messages of a refused submission, with its type."""
    answer = world.http.post("/v1/jobs", json={"task": file, **values})
    assert answer.status_code == 422, answer.text
    problem = answer.json()
    return {error["pointer"]: error["message"] for error in problem["errors"]} | {
        "type": problem["type"].rpartition("#")[2]
    }


def plan_of(world: SimulatedService, job_id: str, **params: int) -> dict[str, Any]:
    answer = world.http.get(f"/v1/jobs/{job_id}/plan", params=params)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def test_forecast_compares_three_ways(world: SimulatedService) -> None:
    found = preview(world)

    ours, spot, on_demand = found["alternatives"]
    assert [each["name"] for each in (ours, spot, on_demand)] == ["ours", "spot", "on_demand"]
    assert (
        ours["cost_micros"]["p50"]
        < on_demand["cost_micros"]["p50"]
        == pytest.approx(3_670_000 * (20 + 10 / 3600), rel=1e-3)
    )
    assert (found["objective"], found["policy"], found["refusals"]) == ("cheapest", "holdfast", [])
    assert found["work_s"], found["changeover_s"] == (72_000, 610)
    assert [place["name"] for place in found["places"]] == [f"local/local-{zone}" for zone in "abc"]
    assert found["sentence"].startswith("about $23 (")
    assert found["sentence"].endswith("; on-demand only: $73")
    assert any("no launch has been measured" in note for note in found["notes"])
    assert not world.services.queries.jobs(limit=1).jobs, "nothing is stored"


def test_request_overrides_limits_and_plan(world: SimulatedService) -> None:
    with_policy = PLANNED.replace("{work: 20h}", "{work: 20h, policy: greedy}")

    found = preview(
        world, with_policy, deadline="50h", max_cost_usd=9, objective="fastest", work="2h"
    )

    assert (found["objective"], found["policy"], found["work_s"]) == ("fastest", "fastest", 7200)
    assert (found["budget_micros"], found["deadline_at"]) == (9_000_000, "2026-01-03T02:00:00Z")


def test_file_without_plan_is_planned_with_given_work(world: SimulatedService) -> None:
    found = preview(world, PLAIN, deadline="30h", work="20h")
    unknown = world.http.post("/v1/plans", json={"task": PLAIN, "deadline": "30h"})
    endless = world.http.post("/v1/plans", json={"task": PLAIN, "work": "20h"})

    assert found["alternatives"]
    assert (unknown.status_code, unknown.json()["errors"][0]["pointer"]) == (
        422,
        "#/holdfast/plan/work",
    )
    assert endless.json()["errors"] == [
        {
            "pointer": "#/holdfast/plan/objective",
            "message": "is cheapest, which needs holdfast.limits.deadline; write one, or objective: fastest",
        }
    ]


def test_deadline_too_early_is_refused_unless_forced(world: SimulatedService) -> None:
    early = PLANNED.replace("30h", "19h")

    listed, found = preview(world, early), refused(world, early)
    forced = world.submit(early, force=True)

    assert found["type"] == "plan-not-kept"
    assert found[DEADLINE].startswith("is 19.0 h away, but 20.0 h of work and 10 s to start need")
    assert listed["refusals"] == [f"{DEADLINE}: {found[DEADLINE]}"]
    assert any(f"refused without --force: {DEADLINE}" in note for note in forced["notes"])


def test_past_deadline_is_refused_with_its_time(world: SimulatedService) -> None:
    past = PLANNED.replace("30h", "2025-12-31T01:00:00+01:00")

    answer = world.http.post("/v1/plans", json={"task": past})

    [error] = answer.json()["errors"]
    assert (answer.status_code, error["pointer"]) == (422, DEADLINE)
    assert error["message"] == "2025-12-31 00:00:00Z is in the past; write a future time"
    assert refused(world, past)[DEADLINE] == error["message"]


def test_budget_too_small_is_refused(world: SimulatedService) -> None:
    found = refused(world, PLANNED.replace("500", "12"))

    assert found["type"] == "plan-not-kept"
    assert found[BUDGET].startswith("is $12.00, but even")
    assert refused(world, PLANNED.replace("500", "0.0015"))[BUDGET].startswith("is $0.0015, but")


def test_render_lists_what_a_submission_refuses(world: SimulatedService) -> None:
    early = PLANNED.replace("30h", "19h")

    answer = world.http.post("/v1/render", json={"task": early}).json()
    forced = world.http.post("/v1/render", json={"task": early, "force": True}).json()

    assert [text.partition(":")[0] for text in answer["refused"]] == [DEADLINE]
    assert forced["refused"] == []


def test_notes_of_a_submission_have_the_forecast(world: SimulatedService) -> None:
    planned = world.submit(PLANNED)
    limited = world.submit(f"{PLAIN}  limits: {{deadline: 30h}}\n")
    plain = world.submit(PLAIN)

    assert any(note.startswith("plan: about $23 (") for note in planned["notes"])
    assert limited["notes"] == [
        "holdfast.limits.deadline only pauses a job that is late; add holdfast.plan to keep it"
    ]
    assert plain["notes"] == []
    assert [job["is_planned"] for job in (planned, limited, plain)] == [True, False, False]


def test_plan_of_a_job_explains_the_choice(world: SimulatedService) -> None:
    job_id = world.submit(PLANNED)["id"]
    before = plan_of(world, job_id)
    world.until(job_id, "training")
    world.pass_time(25)

    found = plan_of(world, job_id)

    assert (before["choices"], before["reason"]) == ([], None)
    assert before["sentence"] == "no plan yet: it is made before the next launch"
    assert found["sentence"].startswith("spot in local-")
    assert found["sentence"].endswith("h of slack")
    assert found["next"].startswith("on-demand nodes at Fri 0")
    assert (found["capacity"], found["deadline_at"]) == ("spot", "2026-01-02T06:00:00Z")
    assert found["first_forecast"]["runs"] == found["forecast"]["runs"]
    assert 0 < found["saved_s"] == found["progress"][-1]["saved_s"] < found["work_s"]
    assert found["work_s"] < 100, "measured steps replace the work of the file"
    begin, full = found["net"]
    assert (begin["needed_s"], full["needed_s"]) == (0, found["work_s"])
    assert [(each["reason"], each["until"]) for each in found["choices"]] == [
        ("wait_for_spot", None)
    ]


def test_ended_job_shows_whether_it_was_in_time(world: SimulatedService) -> None:
    job_id = world.submit(PLANNED)["id"]
    world.until(job_id, "succeeded")

    found = plan_of(world, job_id)

    assert (found["sentence"], found["next"], found["forecast"]) == ("succeeded, in time", "", None)
    assert (found["net_at"], found["remaining_s"]) == (None, 0)
    assert found["first_forecast"]["cost_micros"]["p50"] > found["paid_micros"] > 0


def planned_again(world: SimulatedService, job_id: str, **values: Any) -> None:
    """Record another choice."""
    journal = world.services.journal
    facts = journal.events(job_id)
    newest = next(fact.event for fact in reversed(facts) if isinstance(fact.event, Planned))
    world.clock.advance(1)
    job = journal.read(job_id)
    journal.append(job, [replace(newest, at=world.clock.now(), **values)])


def test_choices_are_paged_and_know_their_moves(world: SimulatedService) -> None:
    job_id = world.submit(PLANNED)["id"]
    world.until(job_id, "training")
    on_demand = {"capacity": CapacityType.ON_DEMAND, "reason": PlanReason.SAFETY_NET}
    planned_again(world, job_id, **on_demand)
    job = world.services.journal.read(job_id)
    world.services.journal.append(job, [MoveRequested(at=world.clock.now(), reason="moving")])

    everything = plan_of(world, job_id)
    newest = plan_of(world, job_id, limit=1)
    rest = plan_of(world, job_id, before=newest["choices_next"])

    assert everything["choices"][0]["moved"]
    assert not everything["choices"][1]["moved"]
    assert everything["sentence"] == "moving: the nodes of the last choice are given back"
    assert everything["choices"][0]["sentence"].startswith("on-demand: ")
    assert newest["choices"] + rest["choices"] == everything["choices"]
    assert everything["choices_next"] is rest["choices_next"] is None


def test_job_without_plan_says_how_to_add_one(world: SimulatedService) -> None:
    job_id = world.submit(PLAIN)["id"]

    answer = world.http.get(f"/v1/jobs/{job_id}/plan")

    assert (answer.status_code, "add plan: to the holdfast block" in answer.json()["detail"]) == (
        404,
        True,
    )


def test_work_of_the_parent_is_used(world: SimulatedService) -> None:
    parent = world.submit(PLANNED)["id"]
    world.until(parent, "training")
    world.pass_time(25)
    world.http.post(f"/v1/jobs/{parent}/cancel")
    world.until(parent, "cancelled")
    child = PLANNED.replace("every:", f"from: {parent}, every:").replace("{work: 20h}", "{}")

    found, job = preview(world, child), world.submit(child)
    copy = world.http.post(f"/v1/jobs/{parent}/retry", json={}).json()

    measured = measured_work_s(world.services.journal.read(parent))
    assert measured
    assert found["work_s"] == pytest.approx(measured, abs=1)
    assert any("of work are left, as its parent has saved the rest" in n for n in found["notes"])
    for each in (job["id"], copy["id"]):
        spec = world.services.journal.submission(each).spec
        assert spec["holdfast"]["plan"]["work"] == f"{found['work_s']:.0f}s"


def test_unknown_work_of_the_parent_is_refused(world: SimulatedService) -> None:
    parent = world.submit(PLAIN)["id"]
    child = PLANNED.replace("every:", f"from: {parent}, every:").replace("{work: 20h}", "{}")

    answer = world.http.post("/v1/plans", json={"task": child})

    [error] = answer.json()["errors"]
    assert error["pointer"] == "#/holdfast/plan/work"
    assert f"job {parent}, whose checkpoints it uses, has neither measured" in error["message"]


def test_work_is_measured_once_steps_are(world: SimulatedService) -> None:
    job = world.services.journal.read(world.submit(PLANNED)["id"])

    assert measured_work_s(job) is None
    assert measured_work_s(replace(job, total_steps=60, pace=Pace(steps=10, ms=20_000))) == 120.0


@pytest.fixture
def run_plan(world: SimulatedService, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Run `holdfast plan`; return its result."""

    def run(*words: str) -> Any:
        with monkeypatch.context() as patch, served(world) as url:
            patch.setenv("HOLDFAST_URL", url)
            patch.chdir(tmp_path)
            result = CliRunner().invoke(app, ["plan", *words])
        world.services.stopping.clear()
        return result

    (tmp_path / "train.yaml").write_text(PLANNED)
    return run


def test_command_prints_the_forecast_of_a_file(run_plan: Any) -> None:
    shown = run_plan("train.yaml", "--deadline", "19h")
    as_json = run_plan("train.yaml", "--max-cost", "40", "--objective", "fastest", "--json")

    lines = shown.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines[1:4]] == [
        "this plan",
        "spot only",
        "on-demand only",
    ]
    assert any(line.startswith("local/local-a") and "$3.67" in line for line in lines)
    assert "; on-demand only: $73; it rests on 0 observations of these places" in shown.stdout
    assert "! #/holdfast/limits/deadline: is 19.0 h away" in shown.stderr
    assert "holdfast submit refuses this without --force" in shown.stderr
    body = json.loads(as_json.stdout)
    assert (body["objective"], body["budget_micros"]) == ("fastest", 40_000_000)


def test_command_prints_the_plan_of_a_job(world: SimulatedService, run_plan: Any) -> None:
    job_id = world.submit(PLANNED)["id"]
    world.until(job_id, "training")
    world.pass_time(25)

    shown, by_name, as_json = run_plan(job_id), run_plan("tiny"), run_plan(job_id, "--json")

    assert shown.stdout == by_name.stdout
    assert shown.stdout.startswith("spot in local-")
    assert "next      on-demand nodes at Fri" in shown.stdout
    assert "forecast  $23" in shown.stdout
    assert "waiting for spot in 3 places" in shown.stdout
    assert json.loads(as_json.stdout)["job_id"] == job_id


def test_command_names_what_is_wrong(world: SimulatedService, run_plan: Any) -> None:
    job_id = world.submit(PLAIN)["id"]

    option, none, missing = (
        run_plan(job_id, "--deadline", "9h"),
        run_plan(job_id),
        run_plan("missing.yaml"),
    )

    assert "is a job, whose plan follows from its file" in str(option.exception)
    assert "has no plan; add plan:" in str(none.exception)
    assert "missing.yaml: No such file" in str(missing.exception)


def test_timeline_tells_the_plan(world: SimulatedService) -> None:
    job_id = world.submit(PLANNED)["id"]
    world.until(job_id, "training")
    planned_again(world, job_id, capacity=CapacityType.ON_DEMAND, reason=PlanReason.SAFETY_NET)
    journal = world.services.journal
    reason = "moving to on-demand nodes at local-a"
    journal.append(journal.read(job_id), [MoveRequested(at=world.clock.now(), reason=reason)])
    moving = world.job(job_id)
    world.until(job_id, "training")

    texts = [each["text"] for each in world.http.get(f"/v1/jobs/{job_id}/story").json()]

    assert moving["state"] == "moving"
    assert f"Move requested: {reason}. Asked the worker to save." in texts
    assert "Launch 1 has ended: the next one may be requested." in texts
    assert any(text.startswith("Attempt 1 ended: nodes released for a move") for text in texts)
    assert any(text.startswith("Plan: on-demand: 20.0 h of work left") for text in texts)
    assert any(
        text.startswith("Plan: waiting for spot in 3 places: on-demand at") for text in texts
    )

"""Sweeps: turns, a shared budget and early stops of their jobs, over the API and the simulated cloud."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from holdfast.background.sweep_stopper import SweepStopper
from holdfast.domain.metric_series import SeriesSegment
from holdfast.store.metrics import MetricSeries
from support.principals import FOREIGN, OWN, create_principals
from support.simulated_service import JOB_FILE, SimulatedService

ON_SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
BUSY = {"provisioning", "starting", "training", "degraded", "recovering", "pausing", "stopping"}
ENDED = {"succeeded", "failed", "cancelled"}


def submit(
    world: SimulatedService, status: int = 201, key: str = "", file: str = JOB_FILE, **fields: Any
) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    answer = world.http.post("/v1/sweeps", json={"task": {"task": file}, **fields}, headers=headers)
    assert answer.status_code == status, answer.text
    return answer.json()


def show(world: SimulatedService, sweep: Any) -> Any:
    return world.http.get(f"/v1/sweeps/{sweep['id']}").json()


def busy(sweep: Any) -> int:
    return sum(count for state, count in sweep["states"].items() if state in BUSY)


def rate_of_a_job(world: SimulatedService) -> int:
    """Micro-dollars per second of the nodes of one job."""
    job = world.submit()["id"]
    world.until(job, "training")
    rate = world.services.journal.read(job).micros_per_hour // 3600
    world.until(job, "succeeded")
    return rate


def run_out(world: SimulatedService, sweep: Any, most: int, limit_s: int = 20_000) -> Any:
    """Advance until no job runs or waits; at no time more than `most` have nodes."""
    for _ in range(0, limit_s, 5):
        world.pass_time(5, tick_s=1)
        now = world.services.journal.sweeps.statuses([sweep["id"]])[sweep["id"]]
        assert sum(count for state, count in now.items() if state in BUSY) <= most
        if all(state in ENDED | {"paused"} for state in now):
            return show(world, sweep)
    pytest.fail(f"the sweep did not end: {now}")


@ON_SQLITE
def test_jobs_of_a_sweep_take_turns_with_their_parameters(world: SimulatedService) -> None:
    made = submit(world, params={"lr": ["1e-4", "3e-4"], "seed": ["1..2"]}, parallel=2)

    done = run_out(world, made, most=2)

    assert (made["job_count"], made["params"]) == (4, {"lr": ["1e-4", "3e-4"], "seed": ["1", "2"]})
    assert [trial["params"] for trial in done["trials"]] == [
        {"lr": lr, "seed": seed} for lr in ("1e-4", "3e-4") for seed in "12"
    ]
    assert done["states"] == {"succeeded": 4}
    job = done["trials"][3]["job_id"]
    spec = world.services.journal.submission(job).spec
    assert {"lr": "3e-4", "seed": "2"}.items() <= spec["envs"].items()
    assert world.job(job)["tags"] == {"team": "nlp", "sweep": made["id"]}
    assert world.job(job)["name"] == "tiny-4"
    assert done["paid_micros"] == sum(trial["paid_micros"] for trial in done["trials"]) > 0


def test_jobs_of_a_sweep_start_in_order(world: SimulatedService) -> None:
    """All of them are submitted at one moment."""
    made = submit(world, params={"seed": ["1..6"]}, parallel=1)

    done = run_out(world, made, most=1)

    starts = []
    for trial in done["trials"]:
        events = world.http.get(f"/v1/jobs/{trial['job_id']}/events").json()
        starts += [event["at"] for event in events if event["kind"] == "LaunchRequested"][:1]
    assert starts == sorted(set(starts))
    assert len(starts) == 6


@ON_SQLITE
def test_jobs_that_wait_for_their_turn_take_no_room_in_quotas(world: SimulatedService) -> None:
    world.http.put("/v1/quotas/service", json={"jobs": 2})
    made = submit(world, params={"seed": ["1..3"]}, parallel=1)
    other = world.submit()["id"]

    world.until(other, "training")

    assert busy(show(world, made)) == 1
    assert world.http.get("/v1/queue").json()["jobs"] == []
    done = run_out(world, made, most=1)
    assert done["states"] == {"succeeded": 3}
    for trial in done["trials"]:
        events = world.http.get(f"/v1/jobs/{trial['job_id']}/events").json()
        assert [event["kind"] for event in events][:3] == [
            "Submitted",
            "Admitted",
            "LaunchRequested",
        ]


@ON_SQLITE
@pytest.mark.parametrize(
    ("jobs", "parallel"), [(6, 2), pytest.param(64, 8, marks=pytest.mark.full)]
)
def test_budget_of_a_sweep_is_kept_to_the_cent(
    world: SimulatedService, jobs: int, parallel: int
) -> None:
    rate = rate_of_a_job(world)
    # Reserved for saving are 120 s of the running jobs and of a new one; each job takes about 70 s.
    budget = (120 * (parallel + 1) + 70 * (jobs // 3)) * rate
    made = submit(
        world,
        params={"seed": [f"1..{jobs}"]},
        parallel=parallel,
        max_cost_usd=f"{budget / 1e6:.2f}",
    )

    ended = run_out(world, made, most=parallel)

    assert 0 < ended["states"]["succeeded"] < jobs
    assert ended["states"]["succeeded"] + ended["states"]["paused"] == jobs
    assert ended["paid_micros"] <= round(float(made["max_cost_usd"]) * 1e6)
    bills = [world.http.get(f"/v1/jobs/{t['job_id']}/bill").json() for t in ended["trials"]]
    assert sum(bill["paid_micros"] for bill in bills) == ended["paid_micros"]
    [waits] = [t for t in ended["trials"] if t["state"] == "paused"][:1]
    assert f"the budget of sweep {made['id']}" in waits["detail"]


@ON_SQLITE
def test_raised_budget_continues_a_sweep(world: SimulatedService) -> None:
    rate = rate_of_a_job(world)
    made = submit(
        world, params={"seed": ["1..3"]}, parallel=1, max_cost_usd=f"{250 * rate / 1e6:.2f}"
    )
    ended = run_out(world, made, most=1)
    ids = [trial["job_id"] for trial in ended["trials"] if trial["state"] == "paused"]
    assert ids
    early = world.http.post(f"/v1/jobs/{ids[0]}/resume", json={})
    assert (early.status_code, f"sweep {made['id']}" in early.json()["detail"]) == (409, True)

    changed = world.http.patch(f"/v1/sweeps/{made['id']}", json={"max_cost_usd": 100}).json()
    act = {"action": "resume", "selection": {"selector": f"sweep={made['id']}"}, "job_ids": ids}
    resumed = world.http.post("/v1/jobs/actions", json=act).json()

    assert (changed["max_cost_usd"], resumed["done"]) == ("100.00", len(ids))
    assert run_out(world, made, most=1)["states"] == {"succeeded": 3}


@ON_SQLITE
def test_repeated_request_returns_the_same_sweep(world: SimulatedService) -> None:
    params = {"seed": ["1..2"]}

    first, again = (submit(world, key="once", params=params) for _ in range(2))
    other = submit(world, 422, key="once", params={"seed": ["1..3"]})

    assert (again["id"], len(again["trials"])) == (first["id"], 2)
    assert other["type"].endswith("idempotency-mismatch")
    assert [one["id"] for one in world.http.get("/v1/sweeps").json()] == [first["id"]]


@ON_SQLITE
@pytest.mark.parametrize(
    ("params", "why"),
    [
        ({}, "params: name at least one"),
        ({"seed": ["1..10000"]}, "a sweep accepts at most 500 (HOLDFAST_SWEEP_JOBS)"),
        ({"a": ["1..100"], "b": ["1..100"]}, "params: these are 10,000 combinations"),
        ({"a": ["3..1"]}, "params: a: the range 3..1 is empty"),
        ({"a": []}, "params: a has an empty value"),
        ({"a": ["1", "1"]}, "params: a has the value 1 twice"),
        ({"a-b": ["1"]}, "params: 'a-b' is not a valid shell variable name"),
        ({"a": ["x" * 201]}, "params: a: a value has 201 characters"),
    ],
)
def test_bad_parameters_are_refused(
    world: SimulatedService, params: dict[str, list[str]], why: str
) -> None:
    assert why in submit(world, 400, params=params)["detail"]
    assert world.http.get("/v1/sweeps").json() == []


@ON_SQLITE
def test_refused_job_leaves_no_sweep(world: SimulatedService) -> None:
    submit(
        world, 422, file="name: a\nrun: b\nresources: {infra: nowhere/x/y/z}", params={"a": ["1"]}
    )
    low = world.http.post(
        "/v1/sweeps", json={"task": {"task": JOB_FILE}, "params": {"a": ["1"]}, "max_cost_usd": -1}
    )

    assert world.http.get("/v1/sweeps").json() == []
    assert low.status_code == 400
    assert low.json()["detail"].startswith("max_cost_usd: ")


@ON_SQLITE
@pytest.mark.parametrize(
    ("who", "place", "shown", "changed", "result"),
    [
        ("member", OWN, 200, 200, "done"),
        ("viewer", OWN, 200, 403, "refused"),
        ("member", FOREIGN, 404, 404, "refused"),
    ],
)
def test_sweeps_and_actions_need_a_role_in_the_project(
    world: SimulatedService, who: str, place: str, shown: int, changed: int, result: str
) -> None:
    principals = create_principals(world)
    task = {"task": JOB_FILE, "project": place}
    body = {"task": task, "params": {"a": ["1"]}}
    made = principals.person("boss").post("/v1/sweeps", json=body).json()
    path, act = (
        f"/v1/sweeps/{made['id']}",
        {"action": "cancel", "job_ids": [made["trials"][0]["job_id"]]},
    )

    with principals.person(who) as caller:
        statuses = caller.get(path).status_code, caller.patch(path, json={}).status_code
        measured = caller.get(f"{path}/metrics").status_code
        listed = [one["id"] for one in caller.get("/v1/sweeps").json()]
        acted = caller.post("/v1/jobs/actions", json=act)
        again = caller.post("/v1/sweeps", json=body).status_code

    assert (*statuses, measured) == (shown, changed, shown)
    assert listed == ([made["id"]] if shown == 200 else [])
    assert acted.json()["jobs"][0]["result"] == result
    assert again == {200: 201}.get(changed, changed)


@ON_SQLITE
def test_jobs_worse_than_the_median_are_cancelled(world: SimulatedService) -> None:
    made = submit(world, params={"seed": ["1..4"]}, parallel=3, stop={"metric": "loss"})
    last = made["trials"][3]["job_id"]
    world.until(last, "training")
    world.pass_time(20)
    parts = world.services
    assert [trial["state"] for trial in show(world, made)["trials"][:3]] == ["succeeded"] * 3
    series = {"same": parts.series, "worse": WorseSeries(parts.engine)}
    stop = {
        name: SweepStopper(
            journal=parts.journal, series=each, leases=parts.leases, clock=parts.clock
        ).stop_all
        for name, each in series.items()
    }

    assert stop["same"]() == 0
    series["worse"].job_id = last  # type: ignore[attr-defined]
    assert (stop["worse"](), stop["worse"]()) == (1, 0)

    detail = world.until(last, "cancelled")["detail"]
    assert detail.startswith("stopped early: its best loss by step")
    early = [trial["is_stopped_early"] for trial in show(world, made)["trials"]]
    assert early == [False, False, False, True]


@ON_SQLITE
def test_metric_of_all_jobs_is_returned_on_common_steps(world: SimulatedService) -> None:
    made = submit(world, params={"seed": ["1..2"]}, stop={"metric": "loss"})
    first, second = (trial["job_id"] for trial in made["trials"])
    path = f"/v1/sweeps/{made['id']}/metrics"
    world.until(first, "training")
    world.pass_time(25)
    world.take_node(first, notice_s=None, then_s=2)
    world.until(first, "succeeded")
    world.until(second, "succeeded")

    found = world.http.get(path, params={"name": "loss", "points": 1000}).json()

    assert "loss" in found["names"]
    assert [curve["job_id"] for curve in found["curves"]] == sorted([first, second])
    for curve in found["curves"]:
        series = world.http.get(f"/v1/jobs/{curve['job_id']}/series?name=loss&points=5000").json()
        kept = {b["last_step"]: b["mean"] for b in series["series"][0]["buckets"] if not b["lost"]}
        drawn = {
            s: v for s, v in zip(found["steps"], curve["values"], strict=True) if v is not None
        }
        assert drawn == pytest.approx(kept)
        assert curve["last"] == pytest.approx(kept[max(kept)])
    best = {trial["job_id"]: trial["best"] for trial in show(world, made)["trials"]}
    assert best == {curve["job_id"]: curve["low"] for curve in found["curves"]}
    few = world.http.get(path, params={"name": "loss", "points": 5}).json()
    assert len(few["steps"]) == 5
    assert world.http.get(path).json() | {"names": []} == {
        "names": [], "name": None, "steps": [], "curves": []
    }  # fmt: skip
    assert world.http.get(path, params={"name": "other"}).json()["curves"] == []
    assert world.job(first)["sweep"] == made["id"]
    assert world.submit()["sweep"] is None


class WorseSeries(MetricSeries):
    """Series in which the values of one job are a thousand times higher."""

    job_id = ""

    def segments(self, job_id: str, *args: Any, **options: Any) -> list[SeriesSegment]:
        factor = 1000 if job_id == self.job_id else 1
        return [
            replace(each, mean=factor * (each.mean or 0), low=factor * (each.low or 0))
            for each in super().segments(job_id, *args, **options)
        ]

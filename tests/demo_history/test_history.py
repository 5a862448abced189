"""The history of a demo: reproducible by its seed, complete, and recorded by the service."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from demo_history.conftest import NOON, SEED
from fastapi.testclient import TestClient
from holdfast.api.app import create_app
from holdfast.demo.history.jobs import demo_jobs
from holdfast.domain.events import Event, encode
from holdfast.server.composition import Application
from holdfast.services import call_directly
from support.simulated_service import client

JOB_ID = re.compile(r"\b[js][0-9a-z]{12}\b")
"""Ids of jobs and sweeps, which contain their creation time."""


def events_by_job(
    demo: Application, start: datetime, until: timedelta
) -> dict[str, list[tuple[object, ...]]]:
    """The recorded events of each job, by its name, with times since the beginning."""
    histories = {}
    for job in demo.services.queries.jobs(limit=200).jobs:
        recorded_events = demo.services.journal.events(job.id)
        histories[job.name] = [
            (
                recorded.event.at - start,
                recorded.recorded_at - start,
                type(recorded.event).__name__,
                normalized_body(recorded.event, start),
            )
            for recorded in recorded_events
            if recorded.recorded_at - start < until
        ]
    return {name: recorded_events for name, recorded_events in histories.items() if recorded_events}


def normalized_body(event: Event, start: datetime) -> str:
    """The body of an event without its dates."""
    body: dict[str, Any] = dict(encode(event))
    moment = body.pop("snapshot_at", None)
    since = datetime.fromisoformat(moment) - start if moment else None
    return JOB_ID.sub("JOB", f"{sorted(body.items())} {since}")


def begin(now: datetime) -> datetime:
    return now.replace(minute=0, second=0, microsecond=0) - timedelta(days=30)


def http(demo: Application) -> TestClient:
    """The owner's connection. Launchers are observed at once, as no reconciler runs."""
    return client(create_app(replace(demo.services, call_launcher=call_directly)))


@pytest.mark.full
def test_seed_reproduces_its_history_at_any_start_time(
    demo: Application, made: Callable[[int, datetime], Application]
) -> None:
    # Not at the end of a month, when budgets start again.
    later = NOON + timedelta(days=3, hours=7, minutes=21)

    again = made(SEED, later)

    most = timedelta(days=23)
    here, there = events_by_job(demo, begin(NOON), most), events_by_job(again, begin(later), most)
    assert here.keys() == there.keys()
    for name, recorded_events in here.items():
        assert recorded_events == there[name], name
    assert sum(map(len, here.values())) > 1000


def test_different_seeds_generate_different_jobs() -> None:
    assert demo_jobs(SEED) != demo_jobs(SEED + 1)
    assert demo_jobs(SEED) == demo_jobs(SEED)


def test_there_are_sixty_jobs_of_many_kinds_over_thirty_days(demo: Application) -> None:
    jobs = http(demo).get("/v1/jobs?limit=200").json()["jobs"]

    assert len(jobs) == len({job["name"] for job in jobs}) == 60
    states = {job["state"] for job in jobs}
    assert {"succeeded", "failed", "cancelled", "paused", "training"} <= states
    assert states & {"provisioning", "starting", "recovering"}
    assert len({job["owner"] for job in jobs}) >= 4
    assert {job["project"] for job in jobs} == {"nlp", "vision", "speech"}
    assert len({job["zone"] for job in jobs} - {None}) == 5
    assert {job["engine"] for job in jobs} == {"skypilot"}
    assert all(job["tags"]["team"] for job in jobs)
    moments = sorted(datetime.fromisoformat(job["submitted_at"]) for job in jobs)
    assert NOON - timedelta(days=31) < moments[0] < NOON - timedelta(days=27)
    assert NOON - timedelta(hours=3) < moments[-1] < NOON
    assert all(datetime.fromisoformat(job["updated_at"]) <= NOON for job in jobs)


def test_history_has_every_loss_cause_and_outcome(demo: Application) -> None:
    jobs = demo.services.queries.jobs(limit=200).jobs
    guards = {job.guard for job in jobs if job.guard}
    causes = http(demo).get("/v1/preemptions?by=cause").json()["total"]["causes"]
    total = http(demo).get("/v1/preemptions").json()["total"]

    assert {"max_cost", "zero_progress"} <= {guard.value for guard in guards}
    assert {"preempted", "node_failed", "user_error", "paused", "launcher_forgot"} <= causes.keys()
    assert 0 < total["notice_used"] < total["noticed"] < total["taken"]
    assert {job.exit_code for job in jobs if job.status == "failed"} == {1}
    assert max(job.preemptions for job in jobs) > 5


def test_there_are_an_ended_sweep_and_a_running_one(demo: Application) -> None:
    connection = http(demo)

    running, ended = (
        connection.get(f"/v1/sweeps/{sweep['id']}").json()
        for sweep in connection.get("/v1/sweeps").json()
    )

    assert (ended["job_count"], ended["states"].keys()) == (12, {"succeeded", "cancelled"})
    stopped = [trial for trial in ended["trials"] if trial["is_stopped_early"]]
    assert stopped
    assert {trial["params"]["LR"] for trial in stopped} == {"3e-4"}
    assert {"training", "queued"} <= running["states"].keys()
    assert running["states"]["queued"] >= 1
    for sweep in (ended, running):
        assert 0 < sweep["paid_micros"] <= 1e6 * float(sweep["max_cost_usd"])
        best = [trial["best"] for trial in sweep["trials"] if trial["best"] is not None]
        assert len(set(best)) == len(best) >= 2


def test_a_job_waits_in_the_queue_for_the_quota_of_its_user(demo: Application) -> None:
    connection = http(demo)

    [waiting] = connection.get("/v1/queue").json()["jobs"]
    quotas = {quota["name"]: quota for quota in connection.get("/v1/quotas").json()}

    assert (waiting["owner"], quotas["emil"]["jobs"]) == ("emil", 1)
    assert {"emil", "nlp", "all"} == quotas.keys()


def test_stored_rows_are_consistent_with_the_event_log(demo: Application) -> None:
    services = demo.services

    jobs = services.queries.jobs(limit=200).jobs

    assert not [job.name for job in jobs if services.journal.is_inconsistent(job.id)]


def test_costs_equal_the_bills_and_are_simulated(demo: Application) -> None:
    connection = http(demo)
    jobs = connection.get("/v1/jobs?limit=200").json()["jobs"]

    costs = connection.get("/v1/costs?by=job&limit=200").json()

    bills = [connection.get(f"/v1/jobs/{job['id']}/bill").json() for job in jobs]
    assert costs["total"]["paid_micros"] == sum(bill["paid_micros"] for bill in bills) > 0
    assert costs["total"]["simulated"]
    assert all(bill["simulated"] for bill in bills if bill["attempts"])


def test_audit_log_names_users_and_their_actions(demo: Application) -> None:
    connection = http(demo)

    done = connection.get("/v1/audit?limit=200").json()

    actions = {row["action"] for row in done["rows"]}
    assert {"job.submit", "job.cancel", "job.pause", "job.resume", "budget.set"} <= actions
    assert {row["actor"] for row in done["rows"]} >= {"owner", "amara", "ben", "chen"}
    assert connection.get("/v1/audit/verdict").json()["sound"]
    assert {budget["name"] for budget in connection.get("/v1/budgets").json()} >= {"nlp", "vision"}


def test_series_checkpoints_and_logs_are_consistent(demo: Application) -> None:
    connection = http(demo)
    jobs = connection.get("/v1/jobs?limit=200&status=succeeded").json()["jobs"]
    job = max(jobs, key=lambda job: int(job["preemptions"]))

    points = connection.get(f"/v1/jobs/{job['id']}/metrics?limit=10000").json()
    kept = connection.get(f"/v1/jobs/{job['id']}/checkpoints?limit=1000").json()["checkpoints"]
    logs = connection.get(f"/v1/jobs/{job['id']}/logs").json()
    text = connection.get(f"/v1/jobs/{job['id']}/logs/text?rank=0").text

    assert len(points) > 100
    assert points[0]["values"]["loss"] > 2 * points[-1]["values"]["loss"]
    assert all(point["values"]["tokens_per_s"] > 0 for point in points)
    assert kept[0]["step"] == job["total_steps"]
    assert {log["attempt"] for log in logs if log["rank"] is None} == set(
        range(1, job["attempt"] + 1)
    )
    last = points[-1]
    assert f"step {last['step']:>7} loss {last['values']['loss']}" in text
    assert f"checkpoint {kept[0]['checkpoint']} is durable" in text


def test_whoami_shows_the_demo_seed(demo: Application) -> None:
    assert http(demo).get("/v1/whoami").json()["demo_seed"] == SEED

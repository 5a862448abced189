"""An hour without responses of the launcher: no state changes, and workers still report.

Cost and time still count: a job beyond its limits is asked to exit through its worker, the only
remaining way.
"""

from __future__ import annotations

from typing import Any

from holdfast.domain.jobs.guards import SAVE_GRACE_S
from support.simulated_service import JOB_FILE, SimulatedService

HOUR_S = 3600


def _event_kinds(world: SimulatedService, job_id: str) -> list[str]:
    return [event["kind"] for event in world.http.get(f"/v1/jobs/{job_id}/events").json()]


def _send_reports(world: SimulatedService, job_id: str) -> Any:
    """Deliver all reports of the workers in the cloud so far over the network."""
    found = list(world.cloud.read_new(job_id, {}))
    reports = [{"n": r.n, "at": r.at, "kind": r.kind, "body": dict(r.body)} for r in found]
    return world.http.post(
        f"/v1/jobs/{job_id}/reports",
        json={"attempt": 1, "reports": reports},
        headers=world.worker_token(job_id),
    )


def test_hour_without_responses_changes_no_state(world: SimulatedService) -> None:
    job_id = world.submit()["id"]
    before = world.until(job_id, "training")
    kinds_before, seen_at = _event_kinds(world, job_id), before["last_seen_at"]

    world.cloud.dark = True
    world.pass_time(HOUR_S, tick_s=60)
    during = world.job(job_id)

    assert _event_kinds(world, job_id) == kinds_before
    assert (during["state"], during["attempt"]) == ("training", 1)
    assert (during["last_seen_at"], during["trouble"]) == (seen_at, "no answer for 30 s")


def test_outage_accepts_reports_and_defers_new_workers(world: SimulatedService) -> None:
    job_id = world.submit()["id"]
    world.until(job_id, "training")
    world.cloud.dark = True
    world.pass_time(HOUR_S, tick_s=60)
    muster = {"incarnation": "aa11"}
    token = world.worker_token(job_id)

    result = _send_reports(world, job_id)
    recorded = [
        world.http.post(f"/v1/jobs/{job_id}/muster", json=muster, headers=token) for _ in range(3)
    ]
    during = world.job(job_id)

    assert result.json()["next"] > 5
    assert [answer.status_code for answer in recorded] == [503] * 3
    assert (during["state"], during["last_checkpoint_step"]) == ("training", 60)


def test_job_end_during_an_outage_is_recorded_afterwards(world: SimulatedService) -> None:
    job_id = world.submit()["id"]
    world.until(job_id, "training")
    world.cloud.dark = True
    world.pass_time(HOUR_S, tick_s=60)

    world.cloud.dark = False
    done = world.until(job_id, "succeeded", limit_s=10)

    assert (done["step"], done["attempt"], done["trouble"]) == (60, 1, None)
    assert done["paid_micros"] < 0.1 * 2 * 1_380_000, "it ended in the first minutes of that hour"


def test_deadline_during_an_outage_reaches_the_worker(world: SimulatedService) -> None:
    job_id = world.submit(f"{JOB_FILE}  limits: {{deadline: 30m}}\n")["id"]
    world.until(job_id, "training")

    world.cloud.dark = True
    world.pass_time(1700, tick_s=10)
    before = _send_reports(world, job_id).json()["leave_within_s"]
    world.pass_time(100, tick_s=10)
    after = _send_reports(world, job_id).json()["leave_within_s"]

    during = world.job(job_id)
    assert before is None
    assert 0 < after <= SAVE_GRACE_S
    assert _event_kinds(world, job_id).count("GuardTripped") == 1
    assert (during["state"], during["trouble"]) == ("pausing", "no answer for 30 s")

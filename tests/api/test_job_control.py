"""Pause, resume and change of limits over the API."""

from __future__ import annotations

from typing import Any

from support.simulated_service import JOB_FILE, SimulatedService

LIMITED = JOB_FILE.replace("tags:", "limits: {max_duration: 20s}\n  tags:")


def test_paused_job_costs_nothing_and_resumes_at_its_step(world: SimulatedService) -> None:
    job = world.submit()
    world.until(job["id"], "training")
    world.pass_time(25)

    answer = post(world, job["id"], "pause", {"reason": "a weekend"})
    waits = world.until(job["id"], "paused")
    world.pass_time(500)
    later = world.job(job["id"])
    resumed = post(world, job["id"], "resume")
    done = world.until(job["id"], "succeeded")

    assert answer["state"] == "pausing"
    assert waits["detail"] == f"a weekend; resume with: holdfast resume {job['id']}"
    assert later["paid_micros"] == waits["paid_micros"] > 0
    assert resumed["state"] == "queued"
    assert (done["attempt"], done["resumes"], done["preemptions"], done["lost_steps"]) == (
        2,
        1,
        0,
        0,
    )
    losses = world.http.get(f"/v1/jobs/{job['id']}/bill").json()["losses"]
    assert [loss["cause"] for loss in losses] == ["paused"]


def test_pause_before_node_allocation_leaves_no_launch(world: SimulatedService) -> None:
    job = world.submit()

    post(world, job["id"], "pause")
    waits = world.until(job["id"], "paused")

    assert (waits["attempt"], waits["zone"], waits["paid_micros"]) == (0, None, 0)
    assert waits["can"]["resume"] == {"allowed": True, "reason": None}
    assert waits["can"]["pause"] == {"allowed": False, "reason": "it is paused"}


def test_raised_limit_resumes_a_job_paused_by_it(world: SimulatedService) -> None:
    job = world.submit(LIMITED)

    waits = world.until(job["id"], "paused")
    low = world.http.post(f"/v1/jobs/{job['id']}/resume", json={})
    resumed = post(world, job["id"], "resume", {"limits": {"max_duration": "2h"}})
    done = world.until(job["id"], "succeeded")

    assert waits["guard"] == "max_duration"
    assert waits["detail"].endswith(f"resume with: holdfast resume {job['id']} --max-duration 1h")
    assert low.status_code == 409
    assert "max_duration must be more than" in low.json()["detail"]
    assert resumed["limits"]["max_duration"] == "2h"
    assert done["guard"] is None


def test_a_cancel_of_a_paused_job_ends_it_at_once(world: SimulatedService) -> None:
    job = world.submit()
    post(world, job["id"], "pause")
    world.until(job["id"], "paused")

    ended = post(world, job["id"], "cancel")
    again = world.http.post(f"/v1/jobs/{job['id']}/resume", json={})

    assert ended["state"] == "cancelled"
    assert (again.status_code, again.json()["type"]) == (409, "/docs/errors#not-possible-now")


def test_limits_can_be_changed_while_a_job_runs(world: SimulatedService) -> None:
    job = world.submit(LIMITED)
    world.until(job["id"], "training")

    changed = patch(world, job["id"], {"max_duration": None, "max_failures": 9})
    done = world.until(job["id"], "succeeded")

    assert changed.status_code == 200
    assert (done["limits"]["max_duration"], done["max_failures"]) == (None, 9)
    events = world.http.get(f"/v1/jobs/{job['id']}/events").json()
    [limits_changed] = [event["body"] for event in events if event["kind"] == "LimitsChanged"]
    assert sorted(limits_changed["changed"]) == ["max_duration", "max_failures"]


def test_lower_limit_applies_at_once(world: SimulatedService) -> None:
    job = world.submit()
    world.until(job["id"], "training")

    patch(world, job["id"], {"max_duration": "1s"})

    assert world.until(job["id"], "paused", limit_s=60)["guard"] == "max_duration"


def test_update_with_a_stale_etag_is_refused(world: SimulatedService) -> None:
    job = world.submit()
    read = world.http.get(f"/v1/jobs/{job['id']}")
    first = patch(world, job["id"], {"max_failures": 5}, read.headers["ETag"])

    second = patch(world, job["id"], {"max_failures": 6}, read.headers["ETag"])
    third = patch(world, job["id"], {"max_failures": 7}, f'"0", {first.headers["ETag"]}')
    any_ = patch(world, job["id"], {"max_failures": 8}, "*")

    assert [a.status_code for a in (first, second, third, any_)] == [200, 412, 200, 200]
    assert second.json()["type"] == "/docs/errors#precondition-failed"
    assert any_.json()["max_failures"] == 8


def test_invalid_limits_are_reported_with_their_pointers(world: SimulatedService) -> None:
    job = world.submit()

    answer = patch(world, job["id"], {"max_cost_usd": "much", "max_failures": 1000})

    assert answer.status_code == 422
    assert {flaw["pointer"] for flaw in answer.json()["errors"]} == {
        "#/max_cost_usd",
        "#/max_failures",
    }
    assert world.job(job["id"])["limits"]["max_cost_usd"] is None


def test_unknown_limit_is_refused(world: SimulatedService) -> None:
    job = world.submit()

    assert patch(world, job["id"], {"max_cost": 5}).status_code == 422


def test_allowed_actions_are_listed_with_reasons(world: SimulatedService) -> None:
    job = world.submit()
    queued = world.job(job["id"])["can"]
    done = world.until(job["id"], "succeeded")["can"]

    assert {word for word, can in queued.items() if can["allowed"]} == {
        "cancel",
        "clone",
        "pause",
        "limits",
    }
    assert queued["resume"]["reason"] == "it is queued; only paused jobs can be resumed"
    others = {"clone", "preempt", "remove", "retry"}
    assert {can["reason"] for word, can in done.items() if word not in others} == {"it has ended"}


def post(world: SimulatedService, job_id: str, command: str, body: dict[str, Any] | None = None) -> dict[str, Any]:  # fmt: skip
    answer = world.http.post(f"/v1/jobs/{job_id}/{command}", json=body or {})
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    return job


def patch(
    world: SimulatedService, job_id: str, limits: dict[str, Any], if_match: str | None = None
) -> Any:
    headers = {"If-Match": if_match} if if_match else {}
    return world.http.patch(f"/v1/jobs/{job_id}/limits", json=limits, headers=headers)

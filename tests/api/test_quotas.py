"""Quotas: their API and commands, and how jobs wait for room in them."""

from __future__ import annotations

from typing import Any

import pytest
from support.simulated_service import JOB_FILE, SimulatedService

PRIORITY_FILE = f"{JOB_FILE}  priority: 7\n"


def put(world: SimulatedService, scope: str = "service", **limits: Any) -> dict[str, Any]:
    answer = world.http.put(f"/v1/quotas/{scope}", json=limits)
    assert answer.status_code == 200, answer.text
    quota: dict[str, Any] = answer.json()
    return quota


def queue(world: SimulatedService) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = world.http.get("/v1/queue").json()["jobs"]
    return found


def test_quota_is_set_listed_and_removed(world: SimulatedService) -> None:
    put(world, nodes=4, hourly_usd=12.5)
    put(world, "user/ada", gpus=8)
    put(world, "project/default", jobs=3)

    listed = world.http.get("/v1/quotas").json()
    gone = [world.http.delete("/v1/quotas/user/ada").status_code for _ in range(2)]

    assert [(q["scope"], q["name"]) for q in listed] == [
        ("service", "all"),
        ("project", "default"),
        ("user", "ada"),
    ]
    assert (listed[0]["nodes"], listed[0]["micros_per_hour"]) == (4, 12_500_000)
    assert gone == [204, 404]


def test_job_waits_until_another_one_has_ended(world: SimulatedService) -> None:
    put(world, nodes=2)
    first = world.submit()["id"]
    world.until(first, "training")
    second = world.submit()["id"]
    [waiting] = queue(world)
    shown, story = world.job(second), world.http.get(f"/v1/jobs/{second}/story").json()
    held = world.http.get("/v1/quotas").json()[0]

    assert (waiting["job_id"], waiting["name"]) == (second, "tiny")
    assert waiting["reason"] == (
        "waits for 2 nodes of the quota of the service, of which 2 nodes of 2 nodes are held"
    )
    assert (shown["state"], shown["detail"]) == ("queued", waiting["reason"])
    assert waiting["reason"] in story[0]["text"]
    assert (held["held_jobs"], held["held_nodes"], held["waiting"]) == (1, 2, 1)

    world.until(second, "succeeded")
    kinds = [item["kind"] for item in world.http.get(f"/v1/jobs/{second}/events").json()]
    assert kinds[:3] == ["Submitted", "Admitted", "LaunchRequested"]
    assert queue(world) == []


def test_queue_counts_what_its_users_hold(world: SimulatedService) -> None:
    put(world, nodes=2)
    first = world.submit()["id"]
    world.until(first, "training")
    for _ in range(2):
        world.submit()

    found = world.http.get("/v1/queue", params={"limit": 1}).json()
    last = queue(world)[1]

    assert (len(found["jobs"]), found["total"]) == (1, 2)
    assert last["reason"] == f"{last['shortage']}; behind {found['jobs'][0]['job_id']}"
    [usage] = found["usage"]
    assert usage.pop("gpu_hours") >= 0
    assert usage == {"owner": "", "held_jobs": 1, "held_nodes": 2, "held_gpus": 0, "waiting": 2}


def test_recovering_job_keeps_its_share(world: SimulatedService) -> None:
    put(world, nodes=2)
    first = world.submit()["id"]
    world.until(first, "training")
    second = world.submit(PRIORITY_FILE)["id"]
    world.drill(first)
    world.until(first, "succeeded")

    admissions = world.http.get(f"/v1/jobs/{first}/events").json()
    assert sum(item["kind"] == "Admitted" for item in admissions) == 1
    assert world.job(second)["attempt"] <= 1


def test_job_above_a_quota_is_refused(world: SimulatedService) -> None:
    put(world, "project/default", nodes=1)

    answer = world.http.post("/v1/jobs", json={"task": JOB_FILE})
    preview = world.http.post("/v1/render", json={"task": JOB_FILE}).json()

    assert answer.status_code == 422
    assert answer.json()["detail"] == (
        "#/resources: the job needs 2 nodes, and the quota of project default allows 1 node at once; ask for less, or "
        "raise it with: holdfast quota set project default --nodes 2"
    )
    assert any("allows 1 node at once" in refusal for refusal in preview["refused"])


def test_job_waits_for_a_lowered_quota_until_it_is_raised(world: SimulatedService) -> None:
    put(world, nodes=2)
    first = world.submit()["id"]
    world.until(first, "training")
    second = world.submit()["id"]
    put(world, nodes=1)
    world.until(first, "succeeded")
    world.pass_time(90, tick_s=10)
    lowered = world.job(second)
    put(world, nodes=2)
    world.until(second, "training")

    assert lowered["state"] == "queued"
    assert lowered["detail"].startswith("it needs 2 nodes, and the quota of the service allows")


def test_priority_decides_who_is_next(world: SimulatedService) -> None:
    put(world, nodes=2)
    first = world.submit()["id"]
    world.until(first, "training")
    second = world.submit()["id"]
    third = world.submit(PRIORITY_FILE)["id"]
    fourth = world.submit(JOB_FILE, priority=9)["id"]
    before = [each["job_id"] for each in queue(world)]
    changed = world.http.patch(f"/v1/jobs/{second}/priority", json={"priority": 50})
    again = world.http.patch(f"/v1/jobs/{second}/priority", json={"priority": 50})

    assert before == [fourth, third, second]
    assert (changed.status_code, changed.json()["priority"]) == (200, 50)
    assert again.status_code == 200
    assert [each["job_id"] for each in queue(world)] == [second, fourth, third]
    events = world.http.get(f"/v1/jobs/{second}/events").json()
    assert [item["kind"] for item in events] == ["Submitted", "PriorityChanged"]


@pytest.mark.parametrize("priority", [101, -101, 1.5, "high", None])
def test_bad_priority_is_refused(world: SimulatedService, priority: object) -> None:
    job = world.submit()["id"]
    text = f"{JOB_FILE}  priority: {priority if priority is not None else 'null'}\n"

    answer = world.http.patch(f"/v1/jobs/{job}/priority", json={"priority": priority})
    file = world.http.post("/v1/jobs", json={"task": text})

    assert (answer.status_code, file.status_code) == (422, 422)
    assert "write a whole number from -100 to 100" in file.json()["detail"]


@pytest.mark.parametrize(
    "body", [{"gpus": -1}, {"jobs": 1.5}, {"hourly_usd": "much"}, {"hourly_usd": 0}, {"pods": 1}]
)
def test_bad_quota_is_refused(world: SimulatedService, body: dict[str, Any]) -> None:
    assert world.http.put("/v1/quotas/service", json=body).status_code == 422
    assert world.http.get("/v1/quotas").json() == []


def test_quota_of_an_unknown_project_is_refused(world: SimulatedService) -> None:
    assert world.http.put("/v1/quotas/project/none", json={"jobs": 1}).status_code == 404


def test_waiting_job_can_be_cancelled(world: SimulatedService) -> None:
    put(world, nodes=2)
    world.until(world.submit()["id"], "training")
    waiting = world.submit()["id"]

    world.http.post(f"/v1/jobs/{waiting}/cancel")
    world.until(waiting, "cancelled")

    assert queue(world) == []


def test_wait_in_the_queue_is_no_wait_for_nodes(world: SimulatedService) -> None:
    put(world, nodes=2)
    first = world.submit()["id"]
    world.until(first, "training")
    second = world.submit(f"{JOB_FILE}  limits: {{max_wait: 60s}}\n")["id"]
    world.pass_time(70, tick_s=10)
    waits = world.job(second)["state"]
    world.until(second, "succeeded")

    assert waits in {"queued", "provisioning"}


def test_jobs_resumed_by_one_action_wait_in_the_queue(world: SimulatedService) -> None:
    put(world, jobs=1)
    sweep = {"task": {"task": JOB_FILE}, "params": {"seed": ["1..2"]}}
    made = world.http.post("/v1/sweeps", json=sweep).json()
    ids = [trial["job_id"] for trial in made["trials"]]
    for action in ("pause", "resume"):
        asked = {"action": action, "selection": {"selector": f"sweep={made['id']}"}, "job_ids": ids}
        assert world.http.post("/v1/jobs/actions", json=asked).json()["refused"] == 0
        if action == "pause":
            for job in ids:
                world.until(job, "paused")

    for job in ids:
        world.until(job, "succeeded")
    assert queue(world) == []


def test_spot_job_makes_room_for_a_higher_priority(world: SimulatedService) -> None:
    put(world, nodes=2)
    put(world, "project/default", may_pause_for_priority=True)
    low = world.submit()["id"]
    world.until(low, "training")
    world.pass_time(25)
    high = world.submit(PRIORITY_FILE)["id"]
    reason = queue(world)[0]["reason"]
    done = world.until(high, "succeeded")
    again = world.until(low, "succeeded")

    kinds = [item["kind"] for item in world.http.get(f"/v1/jobs/{low}/events").json()]
    at = kinds.index("PausedForPriority")
    assert kinds.count("PausedForPriority") == 1
    queued = ["CapacityLost", "Paused", "Requeued", "Admitted", "LaunchRequested"]
    assert [kind for kind in kinds[at:] if kind in queued][:5] == queued
    assert reason.startswith("waits for 2 nodes of the quota of the service")
    assert (again["lost_steps"], again["preemptions"], again["attempt"]) == (0, 0, 2)
    assert done["ended_at"] < again["ended_at"]
    story = [s["text"] for s in world.http.get(f"/v1/jobs/{low}/story").json()]
    assert any(f"paused for job {high}, which has priority 7" in text for text in story)
    assert not world.services.journal.is_inconsistent(low)


def test_no_job_makes_room_without_permission_of_its_project(world: SimulatedService) -> None:
    put(world, nodes=2)
    low = world.submit()["id"]
    world.until(low, "training")
    world.submit(PRIORITY_FILE)
    world.until(low, "succeeded")

    kinds = [item["kind"] for item in world.http.get(f"/v1/jobs/{low}/events").json()]
    assert "PausedForPriority" not in kinds


def test_only_projects_allow_pauses_for_priorities(world: SimulatedService) -> None:
    body = {"nodes": 2, "may_pause_for_priority": True}

    answers = [world.http.put(f"/v1/quotas/{scope}", json=body) for scope in ("service", "user/a")]

    assert [answer.status_code for answer in answers] == [400, 400]
    assert "set it in the quota of the project" in answers[0].json()["detail"]
    assert put(world, "project/default", **body)["may_pause_for_priority"]

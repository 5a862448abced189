"""A paused job continues on other nodes, over the API of a simulated cloud."""

from __future__ import annotations

from typing import Any

from support.simulated_service import JOB_FILE, SimulatedService


def paused(world: SimulatedService, file: str = JOB_FILE) -> str:
    job = world.submit(file)
    world.until(job["id"], "training")
    world.pass_time(25)
    world.http.post(f"/v1/jobs/{job['id']}/pause", json={})
    world.until(job["id"], "paused")
    return str(job["id"])


def resume(world: SimulatedService, job_id: str, **nodes: Any) -> dict[str, Any]:
    answer = world.http.post(f"/v1/jobs/{job_id}/resume", json=nodes)
    assert answer.status_code == 202, answer.text
    job: dict[str, Any] = answer.json()
    return job


def refusal(world: SimulatedService, job_id: str, **nodes: Any) -> dict[str, Any]:
    answer = world.http.post(f"/v1/jobs/{job_id}/resume", json=nodes)
    assert answer.status_code in {400, 409, 422}, answer.text
    problem: dict[str, Any] = answer.json()
    return problem


def kinds(world: SimulatedService, job_id: str) -> list[str]:
    return [event["kind"] for event in world.http.get(f"/v1/jobs/{job_id}/events").json()]


def test_resumed_job_has_the_new_number_of_nodes(world: SimulatedService) -> None:
    job_id = paused(world)

    answer = resume(world, job_id, nodes=3)
    done = world.until(job_id, "succeeded")

    assert (answer["state"], answer["nodes"], done["nodes"]) == ("queued", 3, 3)
    attempts = world.http.get(f"/v1/jobs/{job_id}/attempts").json()
    assert [attempt["nodes"] for attempt in attempts] == [2, 3]
    assert done["lost_steps"] == 0
    recorded = kinds(world, job_id)
    at = recorded.index("Resized")
    assert recorded[at - 1 : at + 3] == ["Paused", "Resized", "ResumeRequested", "LaunchRequested"]
    assert recorded.count("LaunchRequested") == 2
    story = world.http.get(f"/v1/jobs/{job_id}/story").json()
    assert "Resized: nodes 3 instead of 2." in [sentence["text"] for sentence in story]


def test_range_of_nodes_makes_a_job_elastic(world: SimulatedService) -> None:
    job_id = paused(world)

    answer = resume(world, job_id, nodes={"min": 1, "max": 4})

    assert (answer["nodes"], answer["min_nodes"]) == (4, 1)
    assert world.services.journal.read(job_id).min_nodes == 1


def test_preview_shows_old_and_new_nodes_and_changes_nothing(world: SimulatedService) -> None:
    job_id = paused(world)
    before = kinds(world, job_id)

    answer = world.http.post(f"/v1/jobs/{job_id}/resume/preview", json={"nodes": 3})

    shown = answer.json()
    assert shown["changes"] == ["nodes 3 instead of 2"]
    assert (shown["before"]["nodes"], shown["after"]["nodes"]) == (2, 3)
    assert shown["refused"] == []
    assert "step" in shown["checkpoints"]
    assert kinds(world, job_id) == before


def test_running_job_has_to_be_paused_first(world: SimulatedService) -> None:
    job = world.submit()
    world.until(job["id"], "training")

    problem = refusal(world, job["id"], nodes=3)
    preview = world.http.post(f"/v1/jobs/{job['id']}/resume/preview", json={"nodes": 3}).json()

    assert f"pause it first, so that its work is saved: holdfast pause {job['id']}" in str(problem)
    assert problem["detail"] in preview["refused"]
    assert "Resized" not in kinds(world, job["id"])


def test_missing_launcher_is_refused_before_anything_is_recorded(world: SimulatedService) -> None:
    job_id = paused(world)

    problem = refusal(world, job_id, infra="slurm/gpu")

    assert "needs the Slurm launcher, which this service does not have" in str(problem)
    assert world.job(job_id)["state"] == "paused"


def test_malformed_nodes_are_refused_with_their_place(world: SimulatedService) -> None:
    job_id = paused(world)

    none = refusal(world, job_id, nodes=0)
    inverted = refusal(world, job_id, nodes={"min": 4, "max": 2})
    text = refusal(world, job_id, nodes="many")

    assert "#/num_nodes" in str(none)
    assert "has a min of 4, which is above its max of 2; write a lower min" in str(inverted)
    assert "nodes" in str(text)
    assert "Resized" not in kinds(world, job_id)


def test_folder_of_checkpoints_does_not_follow_to_a_cloud(world: SimulatedService) -> None:
    job_id = paused(world, JOB_FILE.replace("s3://bucket/prefix", "file:///data/checkpoints"))

    preview = world.http.post(
        f"/v1/jobs/{job_id}/resume/preview", json={"infra": "aws/us-east-1", "gpus": "A100:8"}
    ).json()

    assert any(
        "file:///data/checkpoints, which does not follow it from local to aws/us-east-1" in text
        for text in preview["refused"]
    )


def test_same_nodes_are_a_plain_resume(world: SimulatedService) -> None:
    job_id = paused(world)

    resume(world, job_id, nodes=2)

    assert "Resized" not in kinds(world, job_id)


def test_quota_below_the_new_nodes_refuses_them(world: SimulatedService) -> None:
    world.http.put("/v1/quotas/service", json={"nodes": 2})
    job_id = paused(world)

    problem = refusal(world, job_id, nodes=3)

    assert "needs 3 nodes, and the quota of the service allows 2 nodes at once" in str(problem)


def test_resized_job_waits_in_the_queue_for_its_new_share(world: SimulatedService) -> None:
    world.http.put("/v1/quotas/service", json={"nodes": 4})
    job_id = paused(world)
    other = world.submit(JOB_FILE.replace("num_nodes: 2", "num_nodes: 3"))
    world.until(other["id"], "training")

    resume(world, job_id, nodes=3)
    world.pass_time(5)
    [waiting] = world.http.get("/v1/queue").json()["jobs"]

    assert (waiting["job_id"], waiting["nodes"], waiting["is_admitted"]) == (job_id, 3, False)
    assert world.until(job_id, "succeeded")["nodes"] == 3


def test_clone_of_a_resized_job_has_its_new_nodes(world: SimulatedService) -> None:
    job_id = paused(world)
    resume(world, job_id, nodes=3)

    copy = world.http.post(f"/v1/jobs/{job_id}/clone", json={}).json()

    assert copy["nodes"] == 3


def test_manifests_keep_the_nodes_of_their_attempts(world: SimulatedService) -> None:
    job_id = paused(world)
    resume(world, job_id, nodes=3)
    world.until(job_id, "succeeded")

    facts = [item.event for item in world.services.journal.events(job_id)]

    assert world.services.journal.submission(job_id).spec["num_nodes"] == 3
    assert facts[0].spec["num_nodes"] == 2  # type: ignore[union-attr]
    assert not world.services.journal.is_inconsistent(job_id)

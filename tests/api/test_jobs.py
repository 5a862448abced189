"""The life cycle of a job over the API."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta

import pytest
from holdfast.api.app import create_app
from holdfast.domain.events import CleanedUp, CleanupFailed, RestoreStarted, SavingFailed
from holdfast.domain.events.values import Interval
from holdfast_worker.protocol.policies import ConsistencyGuarantee, OnFailure
from support import events as support_events
from support.simulated_service import JOB_FILE, SimulatedService, client


def test_a_job_is_submitted_trained_and_billed(world: SimulatedService) -> None:
    job = world.submit()

    assert job["state"] == "queued"
    done = world.until(job["id"], "succeeded")

    assert done["step"] == done["total_steps"] > 0
    assert done["last_checkpoint_step"] == done["step"]
    assert done["tags"] == {"team": "nlp"}
    assert done["can"] == {
        **{
            key: {"allowed": False, "reason": "it has ended"}
            for key in ("cancel", "pause", "resume", "limits")
        },
        "retry": {
            "allowed": False,
            "reason": f"it succeeded; submit a copy with: holdfast clone {done['id']}",
        },
        "preempt": {"allowed": False, "reason": "it has ended"},
        "clone": {"allowed": True, "reason": None},
        "remove": {"allowed": True, "reason": None},
    }
    bill = world.http.get(f"/v1/jobs/{job['id']}/bill").json()
    assert bill["paid_micros"] == done["paid_micros"] == sum(bill["micros"].values()) > 0
    assert bill["provisioned_ms"] == sum(bill["ms"].values()) > 0
    assert bill["on_demand_micros"] == sum(one["on_demand_micros"] for one in bill["attempts"]) > 0
    assert bill["simulated"] is True


def test_jobs_are_found_by_a_part_of_their_name_or_id(world: SimulatedService) -> None:
    made = {
        name: world.submit(JOB_FILE.replace("name: tiny", f"name: {name}"))["id"]
        for name in ("BERT-large", "bert-small", "per_cent")
    }

    def found(find: str) -> list[str]:
        return [job["name"] for job in world.http.get(f"/v1/jobs?find={find}").json()["jobs"]]

    first = world.http.get("/v1/jobs?limit=1&find=bert").json()
    rest = world.http.get("/v1/jobs", params={"find": "bert", "cursor": first["next"]}).json()
    assert (first["total"], rest["total"], rest["next"]) == (2, 2, None)
    assert sorted(found("bert")) == ["BERT-large", "bert-small"]
    assert found(made["per_cent"][2:]) == ["per_cent"]
    assert found("r%25c") == []  # A wildcard character matches only itself.
    assert found("_") == ["per_cent"]


def test_jobs_are_found_by_tag_owner_and_day(world: SimulatedService) -> None:
    def submitted(name: str, tags: str) -> None:
        file = JOB_FILE.replace("name: tiny", f"name: {name}").replace("{team: nlp}", tags)
        world.submit(file)

    def found(query: str) -> list[str]:
        answer = world.http.get(f"/v1/jobs?{query}")
        assert answer.status_code == 200, answer.text
        return sorted(job["name"] for job in answer.json()["jobs"])

    day = world.clock.now().date()
    submitted("a", "{team: nlp, stage: dev}")
    submitted("b", "{team: vision, 'no.de/x y': 'a:b=c'}")
    world.clock.advance(86_400)
    submitted("c", "{team: nlp}")
    submitted("d", "{}")

    assert found("tag=team:nlp") == found("tag=team%3Dnlp") == ["a", "c"]
    assert found("tag=team") == ["a", "b", "c"]
    assert found("tag=team:nlp&tag=stage:dev") == ["a"]
    assert found("tag=no.de/x y:a:b=c") == ["b"]
    assert found("tag=team:nlp' OR 1=1") == found("tag=team:") == []
    assert found(f"until={day}") == ["a", "b"]
    assert found(f"since={day + timedelta(days=1)}") == ["c", "d"]
    assert found(f"since={day}&until={day}&tag=team:nlp") == ["a"]
    assert found("owner=ada") == []
    for bad in ('tag=a"b:c', "tag=:x", "since=yesterday", f"since={day}&until=2020-01-01"):
        answer = world.http.get(f"/v1/jobs?{bad}")
        assert answer.status_code == 400, bad


def test_preemption_is_billed_with_its_lost_steps(world: SimulatedService) -> None:
    job = world.submit()
    world.until(job["id"], "training")
    world.pass_time(15)

    answer = world.http.post(f"/v1/jobs/{job['id']}/preempt", json={"node": 1, "force": True})
    done = world.until(job["id"], "succeeded")

    assert answer.status_code == 202
    assert (done["preemptions"], done["resumes"], done["attempt"]) == (1, 1, 2)
    (loss,) = world.http.get(f"/v1/jobs/{job['id']}/bill").json()["losses"]
    assert loss["cause"] == "preempted"
    assert loss["lost_steps"] == done["lost_steps"]
    first, second = world.http.get(f"/v1/jobs/{job['id']}/attempts").json()
    assert second["first_step"] == first["last_step"] - loss["lost_steps"]


def test_the_same_request_gives_the_same_answer_and_one_job(world: SimulatedService) -> None:
    body = {"task": "run: 'true'\nresources: {infra: local}"}
    key = {"Idempotency-Key": "one"}

    first = world.http.post("/v1/jobs", json=body, headers=key)
    world.pass_time(30)
    again = world.http.post("/v1/jobs", json=body, headers=key)

    assert again.status_code == first.status_code == 201
    assert again.content == first.content
    assert len(world.http.get("/v1/jobs").json()["jobs"]) == 1


def test_repeated_submit_returns_its_job_after_the_deadline(
    world: SimulatedService,
) -> None:
    deadline = (world.clock.now() + timedelta(seconds=20)).isoformat()
    body = {
        "task": f"{{run: 'true', resources: {{infra: local}}, holdfast: {{limits: {{deadline: '{deadline}'}}}}}}"
    }
    key = {"Idempotency-Key": "one"}
    first = world.http.post("/v1/jobs", json=body, headers=key)
    world.pass_time(30)

    again = world.http.post("/v1/jobs", json=body, headers=key)
    fresh = world.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "other"})

    assert (first.status_code, again.status_code, fresh.status_code) == (201, 201, 422)
    assert again.content == first.content


def test_repeated_submit_returns_its_job_without_its_launcher(
    world: SimulatedService,
) -> None:
    body = {"task": "run: 'true'\nresources: {infra: local}"}
    key = {"Idempotency-Key": "one"}
    first = world.http.post("/v1/jobs", json=body, headers=key)
    without = client(create_app(replace(world.services, launchers={})))

    again = without.post("/v1/jobs", json=body, headers=key)

    assert again.status_code == 201
    assert again.json()["id"] == first.json()["id"]


def test_twenty_repeats_at_once_make_one_job(world: SimulatedService) -> None:
    body = {"task": "run: 'true'\nresources: {infra: local}"}

    with ThreadPoolExecutor(8) as pool:
        answers = list(
            pool.map(
                lambda _: world.http.post("/v1/jobs", json=body, headers={"Idempotency-Key": "k"}),
                range(20),
            )
        )

    assert {answer.status_code for answer in answers} == {201}
    assert len({answer.json()["id"] for answer in answers}) == 1


def test_a_key_with_another_body_is_refused(world: SimulatedService) -> None:
    key = {"Idempotency-Key": "one"}
    file = "run: 'true'\nresources: {infra: local}"
    world.http.post("/v1/jobs", json={"task": file}, headers=key)

    answer = world.http.post("/v1/jobs", json={"task": file, "name": "other"}, headers=key)

    assert answer.status_code == 422
    assert answer.json()["type"].endswith("#idempotency-mismatch")
    assert len(world.http.get("/v1/jobs").json()["jobs"]) == 1


def test_jobs_are_paginated_newest_first_and_by_state(world: SimulatedService) -> None:
    ids = []
    for number in range(5):
        ids.append(world.submit(name=f"job-{number}")["id"])
        world.clock.advance(1)
    world.http.post(f"/v1/jobs/{ids[0]}/cancel")

    first = world.http.get("/v1/jobs", params={"limit": 2}).json()
    second = world.http.get("/v1/jobs", params={"limit": 2, "cursor": first["next"]}).json()
    rest = world.http.get("/v1/jobs", params={"limit": 2, "cursor": second["next"]}).json()
    stopping = world.http.get("/v1/jobs", params={"status": ["stopping", "failed"]}).json()

    listed = [job["id"] for page in (first, second, rest) for job in page["jobs"]]
    assert listed == ids[::-1]
    assert rest["next"] is None
    assert [job["id"] for job in stopping["jobs"]] == [ids[0]]


def test_cancel_survives_events_in_between(world: SimulatedService) -> None:
    job = world.submit()
    world.until(job["id"], "training")

    first = world.http.post(f"/v1/jobs/{job['id']}/cancel", json={"reason": "too dear"})
    again = world.http.post(f"/v1/jobs/{job['id']}/cancel")
    done = world.until(job["id"], "cancelled")

    assert first.status_code == again.status_code == 202
    assert first.json()["state"] == "stopping"
    assert done["detail"] == "too dear"
    events = world.http.get(f"/v1/jobs/{job['id']}/events").json()
    assert [event["kind"] for event in events].count("CancelRequested") == 1
    assert world.http.post(f"/v1/jobs/{job['id']}/cancel").json()["state"] == "cancelled"


def test_preempt_requires_running_nodes(world: SimulatedService) -> None:
    job = world.submit()

    early = world.http.post(f"/v1/jobs/{job['id']}/preempt", json={})
    world.until(job["id"], "training")
    missing = world.http.post(f"/v1/jobs/{job['id']}/preempt", json={"node": 7})

    assert (early.status_code, missing.status_code) == (409, 409)
    assert "has no nodes" in early.json()["detail"]
    assert "node 7 does not exist" in missing.json()["detail"]


def test_metrics_are_listed(world: SimulatedService) -> None:
    job = world.submit()
    world.until(job["id"], "succeeded")

    points = world.http.get(f"/v1/jobs/{job['id']}/metrics", params={"limit": 3}).json()

    assert len(points) == 3
    assert points[-1]["step"] == world.job(job["id"])["total_steps"]


def test_render_shows_the_task_and_launches_nothing(
    world: SimulatedService,
) -> None:
    answer = world.http.post("/v1/render", json={"task": "run: echo hi\nresources: {infra: local}"})

    assert answer.status_code == 200
    assert "echo hi" in answer.json()["task"]
    assert answer.json()["engine"] == "local"
    assert world.http.get("/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize(
    ("file", "pointer", "message"),
    [
        ("rnu: x", "#/rnu", "did you mean 'run'"),
        ("run: x\nresources: {infra: aws}", "#/resources/infra", "needs the SkyPilot launcher"),
        ("run: x", "#/resources/infra", "write infra: local"),
        ("run: [", "#", "not YAML"),
        (
            "run: x\nresources: {infra: local}\nfile_mounts: {/a: s3://b}",
            "#/file_mounts",
            "workdir",
        ),
        ("run: x\nresources: {infra: local}\nworkdir: .", "#/workdir", "base_dir"),
    ],
)
def test_job_file_error_has_a_position_and_remedy(
    world: SimulatedService, file: str, pointer: str, message: str
) -> None:
    answer = world.http.post("/v1/jobs", json={"task": file})

    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    flaws = {flaw["pointer"]: flaw["message"] for flaw in answer.json()["errors"]}
    assert message in flaws[pointer]
    assert world.http.get("/v1/jobs").json()["jobs"] == []


def test_job_shows_save_interval_and_failed_saves(
    world: SimulatedService,
) -> None:
    job_id = world.submit()["id"]
    before = world.until(job_id, "succeeded")
    journal, now = world.services.journal, world.clock.now()
    failed = SavingFailed(
        at=now, attempt=1, step=9, failures=3, safe_step=0, policy=OnFailure.STOP, detail="403"
    )
    saved = replace(
        support_events.saved(0, step=5), at=now, interval=Interval(600, 300, 8000, 7200, 0)
    )
    promised = RestoreStarted(at=now, attempt=1, guarantee=ConsistencyGuarantee.CONDITIONAL)

    journal.append(journal.read(job_id), [promised, saved, failed])
    after = world.job(job_id)

    assert (before["saves"], before["store_promise"], before["warning"]) == (None, None, None)
    assert after["saves"].startswith("every 10 min: a checkpoint stalls training for 300 ms")
    assert after["store_promise"].startswith("supports conditional writes")
    assert after["warning"].startswith("3 consecutive checkpoints failed, and none")


def test_ended_job_warns_of_nodes_that_may_be_billed(
    world: SimulatedService,
) -> None:
    job_id = world.submit()["id"]
    before = world.until(job_id, "succeeded")
    journal, now = world.services.journal, world.clock.now()

    journal.append(journal.read(job_id), [CleanupFailed(at=now, detail="cluster hf-1 in aws")])
    warned = world.job(job_id)
    journal.append(journal.read(job_id), [CleanedUp(at=now, detail="cluster hf-1 in aws")])

    assert (before["warning"], world.job(job_id)["warning"]) == (None, None)
    assert (warned["state"], warned["warning"]) == (
        "succeeded",
        "nodes may still be billed: cluster hf-1 in aws",
    )

"""Jobs that continue from checkpoints of other jobs, by a retry or by a key of the job file."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast.domain.events import CheckpointsRemoved, Removal
from holdfast.store.ids import new_job_id
from support.principals import OWN, Principals, create_principals
from support.simulated_service import JOB_FILE, SimulatedService
from support.snapshots import created_once

SECRET = f"{JOB_FILE}secrets: {{TOKEN: a}}\n"


def retry(world: SimulatedService, job_id: str, key: str | None = None, **body: Any) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    return world.http.post(f"/v1/jobs/{job_id}/retry", json=body, headers=headers)


def submit(world: SimulatedService, from_job: str, store: str = "s3://bucket/prefix") -> Any:
    """A job whose file names the job that it continues from."""
    task = JOB_FILE.replace('store: "s3://bucket/prefix"', f'store: "{store}", from: {from_job}')
    return world.http.post("/v1/jobs", json={"task": task})


def ended_early(world: SimulatedService, file: str = JOB_FILE, step: int = 20) -> dict[str, Any]:
    """A job that was cancelled and saved a checkpoint on exit."""
    job = world.submit(file)
    while (world.job(job["id"])["last_checkpoint_step"] or 0) < step:
        world.pass_time(1)
    world.http.post(f"/v1/jobs/{job['id']}/cancel")
    return world.until(job["id"], "cancelled")


def attempts(world: SimulatedService, job_id: str) -> list[dict[str, Any]]:
    body: list[dict[str, Any]] = world.http.get(f"/v1/jobs/{job_id}/attempts").json()
    return body


def timeline_text(world: SimulatedService, job_id: str) -> str:
    body = world.http.get(f"/v1/jobs/{job_id}/story").json()
    return "\n".join(sentence["text"] for sentence in body)


def flaws(answer: Any) -> list[tuple[str, str]]:
    assert answer.status_code == 422, answer.text
    return [(flaw["pointer"], flaw["message"]) for flaw in answer.json()["errors"]]


def test_retry_resumes_from_newest_checkpoint(world: SimulatedService) -> None:
    job = created_once(world, ended_early)
    step, paid = job["last_checkpoint_step"], job["paid_micros"]

    answer = retry(world, job["id"], name="again", limits={"max_failures": 9})
    done = world.until(answer.json()["id"], "succeeded")

    assert answer.status_code == 201
    assert answer.headers["Location"] == f"/v1/jobs/{done['id']}"
    assert job["can"]["retry"] == {"allowed": True, "reason": None}
    assert (done["name"], done["max_failures"], done["tags"]) == ("again", 9, {"team": "nlp"})
    assert (done["from_job"], job["from_job"]) == (job["id"], None)
    assert f"a copy of job {job['id']}" in done["notes"]
    assert any(f"resumes from job {job['id']}, at step {step} " in note for note in done["notes"])
    [attempt] = attempts(world, done["id"])
    assert (attempt["first_step"], attempt["last_step"], attempt["lost_steps"]) == (step, 60, 0)
    assert (done["step"], done["last_checkpoint_step"]) == (60, 60)
    assert world.job(job["id"])["paid_micros"] == paid
    result = timeline_text(world, done["id"])
    assert f'Job "again" submitted to continue job {job["id"]}.' in result
    assert (
        f"Training resumed at step {step} from checkpoint step-00000000{step}-epoch-1 of job"
        in result
    )


def test_retried_job_counts_only_its_own_work(world: SimulatedService) -> None:
    """The job is preempted before its first checkpoint.

    It lost only its own work, not that of its parent.
    """
    job = created_once(world, ended_early)
    step = job["last_checkpoint_step"]
    again = retry(world, job["id"]).json()["id"]
    while world.job(again)["step"] < step + 3:
        world.pass_time(1)

    world.take_node(again, notice_s=0)
    world.until(again, "succeeded")

    first, second = attempts(world, again)
    assert (first["first_step"], second["first_step"]) == (step, step)
    assert 3 <= first["lost_steps"] == first["last_step"] - step < 10
    assert first["ms"]["useful"] == 0
    assert (second["lost_steps"], second["last_step"]) == (0, 60)
    assert second["ms"]["useful"] < (60 - step + 5) * 1000


def test_retry_without_checkpoints_can_only_be_copied(
    world: SimulatedService,
) -> None:
    job = created_once(world, ended_early)
    second = retry(world, job["id"]).json()["id"]
    world.pass_time(1)
    world.http.post(f"/v1/jobs/{second}/cancel")
    fruitless = world.until(second, "cancelled")

    refused = retry(world, second)
    copy = world.http.post(f"/v1/jobs/{second}/clone").json()
    done = world.until(copy["id"], "succeeded")

    assert fruitless["last_checkpoint_step"] is None
    assert refused.status_code == 409
    assert refused.json()["detail"] == (
        f"job {second} cannot be retried: it has no checkpoint to continue from; "
        f"submit a copy with: holdfast clone {second}"
    )
    assert done["from_job"] == job["id"]
    assert attempts(world, copy["id"])[0]["first_step"] == job["last_checkpoint_step"]


@pytest.mark.parametrize(
    ("state", "why"),
    [
        ("training", "it is training; only ended jobs can be retried"),
        ("paused", "it is paused; resume it with: holdfast resume {id}"),
        ("succeeded", "it succeeded; submit a copy with: holdfast clone {id}"),
    ],
)
def test_live_and_succeeded_jobs_are_not_retried(
    world: SimulatedService, state: str, why: str
) -> None:
    job_id = world.submit()["id"]
    if state == "paused":
        world.until(job_id, "training")
        world.http.post(f"/v1/jobs/{job_id}/pause")
    job = world.until(job_id, state)

    answer = retry(world, job_id)

    why = why.format(id=job_id)
    assert answer.status_code == 409
    assert answer.json()["detail"] == f"job {job_id} cannot be retried: {why}"
    assert job["can"]["retry"] == {"allowed": False, "reason": why}
    assert len(world.http.get("/v1/jobs").json()["jobs"]) == 1


def test_the_same_request_makes_one_job(world: SimulatedService) -> None:
    job = created_once(world, ended_early)

    first, second = retry(world, job["id"], "k"), retry(world, job["id"], "k")
    copy = world.http.post(f"/v1/jobs/{job['id']}/clone", headers={"Idempotency-Key": "k"})

    assert first.content == second.content
    assert (second.status_code, copy.status_code) == (201, 422)


def test_repeated_retry_key_returns_the_first_job(
    world: SimulatedService,
) -> None:
    job = created_once(world, ended_early)
    first = retry(world, job["id"], "k").json()["id"]
    names = [
        saved["checkpoint"]
        for saved in world.http.get(f"/v1/jobs/{job['id']}/checkpoints").json()["checkpoints"]
    ]
    gone = CheckpointsRemoved(
        at=world.clock.now(), checkpoints=tuple(names), removal=Removal.FOUND_GONE, size_bytes=0
    )
    world.services.journal.append(world.services.journal.read(job["id"]), [gone])

    again, another = retry(world, job["id"], "k"), retry(world, job["id"])

    assert (again.status_code, again.json()["id"]) == (201, first)
    assert another.status_code == 409


def test_retry_requires_secrets_again_and_is_audited(world: SimulatedService) -> None:
    job = ended_early(world, SECRET)

    without = retry(world, job["id"])
    complete = retry(world, job["id"], secrets={"TOKEN": "b"}, env={"A": "1"})

    assert [pointer for pointer, _ in flaws(without)] == ["#/secrets/TOKEN"]
    made = complete.json()["id"]
    submitted = world.services.journal.submission(made)
    assert submitted.spec["envs"] == {"A": "1"}
    assert submitted.spec["holdfast"]["checkpoint"]["from"] == job["id"]
    assert world.services.secrets.open(made) == {"TOKEN": "b"}
    [entry] = world.services.audit.page(limit=1)
    assert (entry.audit_action.action, entry.audit_action.target) == ("job.submit", made)


def test_job_file_may_name_the_job_to_continue_from(world: SimulatedService) -> None:
    job = created_once(world, ended_early)

    answer = submit(world, job["id"], store="s3://bucket/prefix/")
    done = world.until(answer.json()["id"], "succeeded")

    assert done["from_job"] == job["id"]
    assert attempts(world, done["id"])[0]["first_step"] == job["last_checkpoint_step"]


def test_unusable_parent_job_in_a_job_file_is_refused(
    world: SimulatedService,
) -> None:
    place = "#/holdfast/checkpoint/from"
    ended = created_once(world, ended_early)["id"]
    bare = world.submit(JOB_FILE[: JOB_FILE.index("holdfast:\n")])["id"]
    world.until(bare, "succeeded")
    runs = world.submit()["id"]

    found = {
        "unknown": flaws(submit(world, "j00000000000")),
        "runs": flaws(submit(world, runs)),
        "bare": flaws(submit(world, bare)),
        "elsewhere": flaws(submit(world, ended, store="s3://bucket/other")),
    }

    still = f"is {world.job(runs)['state']}; a job can only continue from an ended job"
    remedy = f"wait until it ends, or run holdfast cancel {runs}"
    assert found == {
        "unknown": [(place, "there is no job j00000000000")],
        "runs": [(place, f"job {runs} {still}; {remedy}")],
        "bare": [(place, f"job {bare} has no checkpoint to continue from; remove from")],
        "elsewhere": [
            (
                place,
                f"job {ended} stores its checkpoints in s3://bucket/prefix; set store to that",
            )
        ],
    }


def test_render_checks_the_parent_job_like_a_submit(
    world: SimulatedService,
) -> None:
    running, ended = world.submit()["id"], created_once(world, ended_early)["id"]
    with_from = JOB_FILE.replace("every: 10 steps", "from: {}")

    refused = world.http.post("/v1/render", json={"task": with_from.replace("{}", running)})
    body = world.http.post("/v1/render", json={"task": with_from.replace("{}", ended)}).json()

    assert flaws(refused) == flaws(submit(world, running))
    assert any(f"resumes from job {ended}, at step " in note for note in body["notes"])


def test_invisible_parent_job_counts_as_absent(world: SimulatedService) -> None:
    principals: Principals = create_principals(world)
    task = JOB_FILE.replace("every: 10 steps", f"from: {principals.foreign}")
    body = {"task": task, "project": OWN}

    member = principals.person("member").post("/v1/jobs", json=body)
    boss = principals.person("boss").post("/v1/jobs", json=body)

    assert [each for _, each in flaws(member)] == [f"there is no job {principals.foreign}"]
    assert "can only continue from an ended job" in flaws(boss)[0][1]


def test_an_admin_can_name_a_job_lost_with_a_database(world: SimulatedService) -> None:
    lost = new_job_id(world.clock.now())

    job = submit(world, lost).json()

    assert job["from_job"] == lost
    assert any(f"job {lost} is not in the database" in note for note in job["notes"])

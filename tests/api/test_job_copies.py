"""Jobs cloned from other jobs."""

from __future__ import annotations

from typing import Any

from support.simulated_service import JOB_FILE, SimulatedService

SECRET = f"{JOB_FILE}secrets: {{TOKEN: a}}\nenvs: {{A: '1', B: '2'}}\n"


def clone(world: SimulatedService, job_id: str, key: str | None = None, **body: Any) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    return world.http.post(f"/v1/jobs/{job_id}/clone", json=body, headers=headers)


def test_clone_is_a_separate_job_with_current_limits(world: SimulatedService) -> None:
    job = world.submit()
    world.http.patch(f"/v1/jobs/{job['id']}/limits", json={"max_failures": 9})
    world.until(job["id"], "succeeded")

    answer = clone(world, job["id"], name="again", limits={"max_wait": "2h"})
    copy = world.until(answer.json()["id"], "succeeded")

    assert answer.status_code == 201
    assert answer.headers["Location"] == f"/v1/jobs/{copy['id']}"
    assert copy["id"] != job["id"]
    assert (copy["name"], copy["max_failures"], copy["limits"]["max_wait"]) == ("again", 9, "2h")
    assert (copy["step"], copy["tags"], copy["paid_micros"] > 0) == (60, {"team": "nlp"}, True)
    assert f"a copy of job {job['id']}" in copy["notes"]


def test_secrets_are_not_copied(world: SimulatedService) -> None:
    job = world.submit(SECRET)

    without = clone(world, job["id"])
    others = clone(world, job["id"], secrets={"TOKEN": "b", "KEY": "c"})
    complete = clone(world, job["id"], secrets={"TOKEN": "b"}, env={"B": "3"})

    assert [flaw["pointer"] for flaw in without.json()["errors"]] == ["#/secrets/TOKEN"]
    assert [flaw["pointer"] for flaw in others.json()["errors"]] == ["#/secrets/KEY"]
    assert complete.status_code == 201
    submitted = world.services.journal.submission(complete.json()["id"])
    assert submitted.spec["envs"] == {"A": "1", "B": "3"}
    assert world.services.secrets.open(complete.json()["id"]) == {"TOKEN": "b"}


def test_the_same_request_makes_one_copy(world: SimulatedService) -> None:
    job = world.submit()

    first, second = clone(world, job["id"], "k"), clone(world, job["id"], "k")
    other = clone(world, job["id"], "k", name="other")

    assert first.content == second.content
    assert (second.status_code, other.status_code) == (201, 422)


def test_invalid_overrides_are_refused_with_their_pointers(world: SimulatedService) -> None:
    job = world.submit()

    limits = clone(world, job["id"], limits={"max_cost_usd": -1})
    env = clone(world, job["id"], env={"A": "a\0b"})
    names = clone(world, job["id"], env={"HOLDFAST_STORE": "s3://b", "A;id": "1"})

    assert limits.status_code == env.status_code == names.status_code == 422
    assert [flaw["pointer"] for flaw in limits.json()["errors"]] == ["#/max_cost_usd"]
    assert [flaw["pointer"] for flaw in env.json()["errors"]] == ["#/envs/A"]
    assert [f["pointer"] for f in names.json()["errors"]] == ["#/env/HOLDFAST_STORE", "#/env/A;id"]

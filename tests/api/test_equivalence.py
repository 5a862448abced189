"""Equivalence of two jobs by recorded data, with a certificate kept on the interrupted job."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import pytest
from support.principals import create_principals
from support.simulated_service import SimulatedService
from support.snapshots import created_once

HEARD = {"batches": 60, "other_batches": 0, "values": 10, "other_values": 0}


@pytest.fixture
def pair(world: SimulatedService) -> tuple[str, str]:
    """A job that ran without interruption, and one that was preempted."""
    return created_once(world, run_pair)


def run_pair(world: SimulatedService) -> tuple[str, str]:
    uninterrupted = world.submit()["id"]
    world.until(uninterrupted, "succeeded")
    preempted = world.submit()["id"]
    world.until(preempted, "training")
    world.take_node(preempted, notice_s=30)
    world.until(preempted, "succeeded")
    return uninterrupted, preempted


def prove(world: SimulatedService, job_id: str, **body: Any) -> Any:
    return world.http.post(f"/v1/jobs/{job_id}/proofs", json={**HEARD, **body})


def test_a_certificate_is_kept_with_its_job(world: SimulatedService, pair: tuple[str, str]) -> None:
    uninterrupted, preempted = pair

    made = prove(world, preempted, against=uninterrupted)
    again = prove(world, preempted, against=uninterrupted, other_batches=2)
    listed = world.http.get(f"/v1/jobs/{preempted}/proofs").json()
    bundle = zipfile.ZipFile(io.BytesIO(world.http.get(f"/v1/jobs/{preempted}/bundle").content))
    timeline = [one["text"] for one in world.http.get(f"/v1/jobs/{preempted}/story").json()]

    assert made.status_code == again.status_code == 201
    assert made.json()["preemptions"] == 1
    assert made.json()["weights_sha256"] == made.json()["other_weights_sha256"] != ""
    assert (made.json()["holds"], again.json()["holds"]) == (True, False)
    assert listed == [again.json(), made.json()]
    assert world.job(preempted)["proof"] == again.json()
    assert json.loads(bundle.read(f"holdfast-{preempted}/certificate.json")) == again.json()
    assert any("NOT proven correct: 2 of 60 batches differ" in text for text in timeline)
    assert world.job(uninterrupted)["proof"] is None


def test_incomparable_jobs_are_refused(world: SimulatedService, pair: tuple[str, str]) -> None:
    uninterrupted, preempted = pair
    running = world.submit()["id"]

    answers = {
        "itself": prove(world, preempted, against=preempted),
        "interrupted": prove(world, uninterrupted, against=preempted),
        "unfinished": prove(world, preempted, against=running),
        "unknown": prove(world, preempted, against="nobody"),
        "fewer than none": prove(world, preempted, against=uninterrupted, batches=-1),
    }

    assert {name: answer.status_code for name, answer in answers.items()} == {
        "itself": 409,
        "interrupted": 409,
        "unfinished": 409,
        "unknown": 404,
        "fewer than none": 422,
    }
    assert world.http.get(f"/v1/jobs/{preempted}/proofs").json() == []


def test_comparison_does_not_reveal_jobs_of_others(world: SimulatedService) -> None:
    principals = create_principals(world)

    answer = principals.person("member").post(
        f"/v1/jobs/{principals.own}/proofs", json={**HEARD, "against": principals.foreign}
    )

    assert answer.status_code == 404
    assert answer.json()["detail"] == f"there is no job {principals.foreign}"

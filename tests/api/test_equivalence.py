"""The service compares two jobs by what it knows itself, and keeps the certificate with the job that was interrupted."""

from __future__ import annotations

import io
import json
import zipfile
from typing import Any

import pytest
from support.principals import create_principals
from support.simulated_service import SimulatedService

HEARD = {"batches": 60, "other_batches": 0, "values": 10, "other_values": 0}


@pytest.fixture
def pair(world: SimulatedService) -> tuple[str, str]:
    """A job that was left alone, and one of which a node was taken."""
    straight = world.submit()["id"]
    world.until(straight, "succeeded")
    taken = world.submit()["id"]
    world.until(taken, "training")
    world.take_node(taken, notice_s=30)
    world.until(taken, "succeeded")
    return straight, taken


def prove(world: SimulatedService, job_id: str, **body: Any) -> Any:
    return world.http.post(f"/v1/jobs/{job_id}/proofs", json={**HEARD, **body})


def test_a_certificate_is_kept_with_its_job(world: SimulatedService, pair: tuple[str, str]) -> None:
    straight, taken = pair

    made = prove(world, taken, against=straight)
    again = prove(world, taken, against=straight, other_batches=2)
    listed = world.http.get(f"/v1/jobs/{taken}/proofs").json()
    bundle = zipfile.ZipFile(io.BytesIO(world.http.get(f"/v1/jobs/{taken}/bundle").content))
    story = [one["text"] for one in world.http.get(f"/v1/jobs/{taken}/story").json()]

    assert made.status_code == again.status_code == 201
    assert made.json()["preemptions"] == 1
    assert made.json()["weights_sha256"] == made.json()["other_weights_sha256"] != ""
    assert (made.json()["holds"], again.json()["holds"]) == (True, False)
    assert listed == [again.json(), made.json()]
    assert world.job(taken)["proof"] == again.json()
    assert json.loads(bundle.read(f"holdfast-{taken}/certificate.json")) == again.json()
    assert any("NOT proven correct: 2 of 60 batches differ" in text for text in story)
    assert world.job(straight)["proof"] is None


def test_incomparable_jobs_are_refused(world: SimulatedService, pair: tuple[str, str]) -> None:
    straight, taken = pair
    going = world.submit()["id"]

    answers = {
        "itself": prove(world, taken, against=taken),
        "interrupted": prove(world, straight, against=taken),
        "unfinished": prove(world, taken, against=going),
        "unknown": prove(world, taken, against="nobody"),
        "fewer than none": prove(world, taken, against=straight, batches=-1),
    }

    assert {name: answer.status_code for name, answer in answers.items()} == {
        "itself": 409,
        "interrupted": 409,
        "unfinished": 409,
        "unknown": 404,
        "fewer than none": 422,
    }
    assert world.http.get(f"/v1/jobs/{taken}/proofs").json() == []


def test_comparison_does_not_reveal_jobs_of_others(world: SimulatedService) -> None:
    principals = create_principals(world)

    answer = principals.person("member").post(
        f"/v1/jobs/{principals.own}/proofs", json={**HEARD, "against": principals.foreign}
    )

    assert answer.status_code == 404
    assert answer.json()["detail"] == f"there is no job {principals.foreign}"

"""Three node groups in two regions: one is preempted twice, once during its setup, and the others go on."""

from __future__ import annotations

import itertools
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from e2e.fake_aws.cloud import FakeAws
from e2e.fake_aws.holdfast_service import BUCKET, HoldfastService, s3_server

STEPS = 2000
REGIONS = ("us-east-1", "us-east-2")
LONGEST_STOP_S = 900.0
"""Longest time between two checkpoints: the wait for a new machine, on a slow test machine."""
STAY_ERROR_S = 90.0
"""Difference between a machine's life and its billed time: SkyPilot reports nodes some time after their boot, and
polls them every 15 s."""
GROUPS = [
    {"name": "head", "num_nodes": 1, "resources": {"infra": "aws/us-east-1", "use_spot": False}},
    {"name": "first", "num_nodes": 1, "resources": {"infra": "aws/us-east-1", "use_spot": True}},
    {"name": "second", "num_nodes": 1, "resources": {"infra": "aws/us-east-2", "use_spot": True}},
]


@pytest.mark.timeout(7200)
def test_lost_group_is_replaced_while_the_others_go_on(
    aws: FakeAws, service: HoldfastService, tmp_path: Path
) -> None:
    with s3_server(tmp_path / "s3") as endpoint:
        job_id = service.submit_training(
            endpoint,
            steps=STEPS,
            num_nodes=3,
            resources={"instance_type": "m6i.large"},
            run=f"holdfast-worker run train.py --steps {STEPS} --step-seconds 0.5",
            holdfast={
                "groups": GROUPS,
                "checkpoint": {"store": f"s3://{BUCKET}/runs", "every": "50 steps"},
            },
        )
        # The machine of the last group is lost while SkyPilot sets it up.
        service.wait_long(lambda: _machines(aws, "us-east-2"), "a machine boots")
        aws.preempt(_machines(aws, "us-east-2")[0])
        service.wait_for(job_id, "TrainingStarted")
        service.wait_for(job_id, "CheckpointCommitted", 2)

        # Then its next machine, while the job trains.
        aws.preempt(_machines(aws, "us-east-2")[0])
        lost = service.wait_for(job_id, "NodeLost")[-1]
        service.wait_for(job_id, "RanksReplaced")
        service.wait_for(job_id, "Finished")

        job = service.json("show", job_id)
        assert job["state"] == "succeeded", job["detail"]
        assert lost["body"]["node"] == 2
        _check_attempt(service, job_id)
        _check_launches(service, job_id)
        _check_steps(service, job_id)
        assert not aws.instances(), "nothing is left running"
        _check_bill(aws, service, job_id)


def _machines(aws: FakeAws, region: str) -> list[str]:
    return [instance.id for instance in aws.instances() if instance.region == region]


def _check_attempt(service: HoldfastService, job_id: str) -> None:
    """Check that the first group lived through it, so that there was one attempt."""
    ready = service.events(job_id, "NodesReady")
    assert [event["body"]["attempt"] for event in ready] == [1]
    assert [group["name"] for group in ready[0]["body"]["groups"]] == ["head", "first", "second"]
    assert not service.events(job_id, "CapacityLost")
    losses = [event["body"] for event in service.events(job_id, "NodeLost")]
    assert {loss["group"] for loss in losses if loss["cause"] != "ended"} == {2}
    assert len(service.events(job_id, "TrainingStarted")) == 1


def _check_launches(service: HoldfastService, job_id: str) -> None:
    """Check that each group was one managed job."""
    listed = service.listed_groups(job_id)
    assert len(listed) == len(GROUPS)
    assert {row["status"] for row in listed} <= {"SUCCEEDED", "CANCELLED"}


def _check_steps(service: HoldfastService, job_id: str) -> None:
    """Check that no step was lost, and that the job never stopped for long."""
    commits = service.events(job_id, "CheckpointCommitted")
    steps = [event["body"]["step"] for event in commits]
    assert steps == sorted(set(steps))
    assert steps[-1] == STEPS
    times = [_time(event) for event in commits]
    gaps = [(b - a).total_seconds() for a, b in itertools.pairwise(times)]
    assert max(gaps) < LONGEST_STOP_S
    bill = service.json("bill", job_id)
    assert bill["lost_steps"] == 0


def _check_bill(aws: FakeAws, service: HoldfastService, job_id: str) -> None:
    """Check that each group is billed for the time in which the cloud has had its machines."""
    bill, (ready,) = service.json("bill", job_id), service.events(job_id, "NodesReady")
    [attempt] = bill["attempts"]
    for number, region in ((0, "us-east-1"), (1, "us-east-1"), (2, "us-east-2")):
        market = "on-demand" if number == 0 else "spot"
        lives = _lives(aws, region, market)
        price = _price(service, job_id, ready, number)
        paid_s = attempt["groups"][number]["paid_micros"] / price * 3600
        assert abs(paid_s - sum(lives)) < STAY_ERROR_S * len(lives), (number, lives)


def _lives(aws: FakeAws, region: str, market: str) -> list[float]:
    """Seconds for which the cloud has had each machine of a kind."""
    born, lives = dict[str, datetime](), list[float]()
    for event in aws.events():
        if (event.get("region"), event.get("market")) != (region, market):
            continue
        if event["kind"] == "boot":
            born[event["id"]] = _time(event)
        elif event["kind"] in {"preempt", "terminate"} and event["id"] in born:
            lives.append((_time(event) - born.pop(event["id"])).total_seconds())
    assert not born, "machines are left"
    return lives


def _price(service: HoldfastService, job_id: str, ready: dict[str, Any], group: int) -> int:
    """The price of a group in micro-dollars per hour, which the fake cloud does not change."""
    first: int = ready["body"]["groups"][group]["micros_per_hour"]
    placed = [
        event["body"]["placed"]["micros_per_hour"]
        for event in service.events(job_id, "NodeReplaced")
        if event["body"]["group"] == group
    ]
    found: int = first or placed[0]
    return found


def _time(event: dict[str, Any]) -> datetime:
    return datetime.fromisoformat(event["at"])

"""A job of three node groups in two regions loses two of them, one on request; the others keep training."""

from __future__ import annotations

import shutil
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from e2e.fake_aws.catalog import CPUS
from e2e.fake_aws.cloud import FakeAws
from e2e.fake_aws.holdfast_service import BUCKET, HoldfastService, s3_server
from support.live_service import EXAMPLE
from support.loss_breakdown import LossBreakdown, append_breakdown

STEPS = 400
PACED = Path(__file__).with_name("paced.py")
MAY_END = "may-end"
"""The object for which paced.py looks."""
NODE = {"instance_type": "m6i.large"}
GROUPS = [
    {"name": "head", "num_nodes": 1, "resources": {"infra": "aws/us-east-1", "use_spot": False}},
    {"name": "near", "num_nodes": 1, "resources": {"infra": "aws/us-east-1"}},
    {"name": "far", "num_nodes": 1, "resources": {"infra": "aws/us-east-2"}},
]
HEAD, NEAR, FAR = "a", "b", "c"
"""Letters in the names of the groups' managed jobs."""
SPOT_SHARE = 0.4
"""Spot price of the cloud's machines, as a share of the price on demand."""
BILLED_LATE_S, BILLED_LONG_S = 90.0, 120.0
"""Most seconds by which a bill may begin after an instance and end after it: SkyPilot notices both late, on a loaded
machine."""


@pytest.mark.timeout(7200)
def test_other_groups_keep_training_while_one_is_replaced(
    aws: FakeAws, service: HoldfastService, tmp_path: Path
) -> None:
    with s3_server(tmp_path / "s3") as endpoint:
        shutil.copytree(EXAMPLE, tmp_path / "workdir")
        shutil.copy(PACED, tmp_path / "workdir")
        job_id = service.submit_training(
            endpoint,
            steps=STEPS,
            num_nodes=3,
            workdir=str(tmp_path / "workdir"),
            resources={**NODE, "use_spot": True},
            run=f"holdfast-worker run paced.py --steps {STEPS} --step-seconds 0.05",
            holdfast={
                "checkpoint": {"store": f"s3://{BUCKET}/runs", "every": "50 steps"},
                "groups": GROUPS,
            },
        )

        # Once during its setup.
        far = f"{job_id}{FAR}1"
        service.wait_long(lambda: aws.instances(far), "the group in the other region has a machine")
        aws.preempt(far)
        service.wait_for(job_id, "TrainingStarted")
        service.wait_long(lambda: _step(service, job_id) > 50, "training has made steps")

        # Once while it trains.
        at_loss = _step(service, job_id)
        aws.preempt(far)
        service.wait_for(job_id, "RanksReplaced")
        service.wait_long(lambda: _step(service, job_id) > at_loss, "training continues")

        # Another one on request, without notice.
        at_drill = _step(service, job_id)
        service.json("preempt", job_id, "--group", "near", "--no-notice")
        service.wait_for(job_id, "RanksReplaced", 2)
        service.wait_long(lambda: _step(service, job_id) > at_drill, "training continues again")
        standing = _live_jobs(service, job_id)
        (tmp_path / "s3" / BUCKET / MAY_END).write_text("yes")
        service.wait_for(job_id, "Finished")

        job = service.json("show", job_id)
        assert job["state"] == "succeeded", job["detail"]
        assert job["failures"] == 0
        assert standing == [HEAD, NEAR, FAR], "one managed job for each group"
        assert len(service.events(job_id, "TrainingStarted")) == 1, (
            "the others kept their processes"
        )
        assert not service.events(job_id, "CapacityLost"), "the first group was never lost"
        assert job["drills"] == 1
        _check_losses(service, job_id)
        lost_steps = service.json("bill", job_id)["lost_steps"]
        assert lost_steps == 0
        assert not aws.instances(), "nothing is left running"
        _check_bill(aws, service, job_id)
        assert _final_weights(service, job_id) == _uninterrupted_weights(service, tmp_path)
        _record_breakdown(aws, service, job_id, far, lost_steps)


def _check_losses(service: HoldfastService, job_id: str) -> None:
    """The group in the other region was lost to the cloud, the near one on request, and both were replaced."""
    lost = [event["body"] for event in service.events(job_id, "NodeLost")]
    lost = [event for event in lost if event["cause"] != "ended"]
    assert {event["node"] for event in lost} == {1, 2}
    assert all(event["drill"] is (event["node"] == 1) for event in lost)
    replaced = service.events(job_id, "RanksReplaced")
    assert [event["body"]["ranks"] for event in replaced] == [[2], [1]]


def _record_breakdown(
    aws: FakeAws, service: HoldfastService, job_id: str, group: str, lost_steps: int
) -> None:
    """Record what the last loss of a group cost, for the benchmark."""
    preempted = [each for each in aws.events("preempt") if group in str(each["name"])]
    append_breakdown(
        LossBreakdown.of_events(
            datetime.fromisoformat(str(preempted[-1]["at"])),
            service.events(job_id),
            nodes=len(GROUPS),
            repeated_steps=lost_steps,
        )
    )


def _step(service: HoldfastService, job_id: str) -> int:
    step: int = service.json("show", job_id)["step"]
    return step


def _live_jobs(service: HoldfastService, job_id: str) -> list[str]:
    """Groups with a managed job that has not ended, as SkyPilot itself has recorded, by their letters."""
    over = {"SUCCEEDED", "CANCELLED", "FAILED"}
    rows = service.listed_groups(job_id)
    return sorted(row["name"][-2] for row in rows if row["status"] not in over)


def _check_bill(aws: FakeAws, service: HoldfastService, job_id: str) -> None:
    """Each group is billed for the time in which the cloud had machines of it, at its own price."""
    (attempt,) = service.json("bill", job_id)["attempts"]
    (on_demand_usd,) = (usd for name, _, _, usd in CPUS if name == NODE["instance_type"])
    billed = {group["name"]: group for group in attempt["groups"]}
    for group, letter in zip(GROUPS, (HEAD, NEAR, FAR), strict=True):
        lives = [life.duration_s for life in aws.lives(f"{job_id}{letter}1")]
        name = str(group["name"])
        usd_per_hour = on_demand_usd * (1.0 if letter == HEAD else SPOT_SHARE)
        paid_s = billed[name]["paid_micros"] / 1e6 / usd_per_hour * 3600
        assert billed[name]["is_spot"] is (letter != HEAD)
        assert sum(lives) - BILLED_LATE_S * len(lives) <= paid_s, (name, lives, paid_s)
        assert paid_s <= sum(lives) + BILLED_LONG_S * len(lives), (name, lives, paid_s)


def _final_weights(service: HoldfastService, job_id: str) -> str:
    last = service.events(job_id, "CheckpointCommitted")[-1]["body"]
    assert last["step"] == STEPS
    weights: str = last["weights_sha256"]
    return weights


def _uninterrupted_weights(service: HoldfastService, tmp_path: Path) -> str:
    """The final weights of the same job on this machine, without groups and preemptions."""
    job: dict[str, Any] = {
        "num_nodes": 3,
        "envs": {"OMP_NUM_THREADS": "1"},
        "secrets": {},
        "resources": {"infra": "local", "use_spot": False},
        "run": f"holdfast-worker run train.py --steps {STEPS}",
        "holdfast": {"checkpoint": {"store": (tmp_path / BUCKET).as_uri(), "every": "200 steps"}},
    }
    job_id = service.submit_training("", steps=STEPS, **job)
    service.wait_for(job_id, "Finished")
    return _final_weights(service, job_id)

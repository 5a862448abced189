"""A cloud job is preempted twice, once with a notice, and ends with identical weights."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from e2e.fake_aws.cloud import FakeAws
from e2e.fake_aws.holdfast_service import BUCKET, HoldfastService, s3_server
from support.live_service import EXAMPLE

STEPS = 400
NOTICE_S = 600.0
"""Longer than ranks need to save and exit; the test preempts the node as soon as they have."""
PACED = Path(__file__).with_name("paced.py")
MAY_END = "may-end"
"""The object for which paced.py looks."""


@pytest.mark.timeout(7200)
def test_job_with_two_preemptions_ends_with_identical_weights(
    aws: FakeAws, service: HoldfastService, tmp_path: Path
) -> None:
    with s3_server(tmp_path / "s3") as endpoint:
        aws.deny(region="us-east-1", market="spot")
        job_id = service.submit_training(
            endpoint, steps=STEPS, **_pacing_arguments(tmp_path / "workdir")
        )
        service.wait_for(job_id, "CheckpointCommitted")
        service.wait_for(job_id, "NodesReady")
        service.wait_for_log(job_id, 1, "step 50/400")
        aws.allow_all()

        # A worker node is lost without notice.
        aws.preempt("worker")
        service.wait_for(job_id, "TrainingStarted", 2)
        service.wait_for(job_id, "CheckpointCommitted", 2)
        service.wait_for(job_id, "NodesReady", 2)

        # The head node receives a notice and is preempted later.
        aws.preempt("head", notice_s=NOTICE_S)
        service.wait_for(job_id, "PreemptionNoticed")
        service.wait_long(lambda: "preempted" in _reasons(service, job_id), "the ranks have left")
        aws.preempt("head")
        (tmp_path / "s3" / BUCKET / MAY_END).write_text("yes")
        service.wait_for(job_id, "Finished")

        job = service.json("show", job_id)
        assert job["state"] == "succeeded", job["detail"]
        assert job["preemptions"] == 2
        assert job["failures"] == 0
        _check_failover(service, job_id)
        _check_losses(service, job_id)
        _check_bill(service, job_id)
        _check_logs(service, job_id)
        assert not aws.instances(), "nothing is left running"
        assert _final_weights(service, job_id) == _uninterrupted_weights(service, tmp_path)


def _pacing_arguments(workdir: Path) -> dict[str, str]:
    """The arguments with which the job trains until this test lets it end."""
    shutil.copytree(EXAMPLE, workdir)
    shutil.copy(PACED, workdir)
    run = f"holdfast-worker run paced.py --steps {STEPS} --step-seconds 0.05"
    return {"workdir": str(workdir), "run": run}


def _reasons(service: HoldfastService, job_id: str) -> list[str]:
    return [event["body"]["reason"] for event in service.events(job_id, "WorkerLeft")]


def _check_failover(service: HoldfastService, job_id: str) -> None:
    denied = {event["body"]["zone"] for event in service.events(job_id, "CapacityDenied")}
    assert "aws/us-east-1" in denied
    first = service.events(job_id, "NodesReady")[0]["body"]
    assert first["zone"].startswith("aws/")
    assert not first["zone"].startswith("aws/us-east-1")


def _check_losses(service: HoldfastService, job_id: str) -> None:
    lost = [event["body"] for event in service.events(job_id, "CapacityLost")]
    assert [item["cause"] for item in lost] == ["node_failed", "preempted"]
    assert [item["attempt"] for item in lost] == [1, 2]
    started = [event["body"] for event in service.events(job_id, "TrainingStarted")]
    assert [item["attempt"] for item in started] == [1, 2, 3]
    assert started[0]["restored_from"] is None
    assert started[1]["restored_from"]
    noticed = service.events(job_id, "PreemptionNoticed")[0]["body"]
    assert 0 < noticed["left_s"] <= NOTICE_S
    # With a notice no step is lost: the last step was saved.
    assert started[2]["step"] == noticed["step"]


def _check_bill(service: HoldfastService, job_id: str) -> None:
    bill = service.json("bill", job_id)
    attempts = bill["attempts"]
    assert [item["attempt"] for item in attempts] == [1, 2, 3]
    assert attempts[0]["lost_steps"] > 0
    assert attempts[1]["lost_steps"] == 0
    for item in attempts:
        assert item["zone"].count("/") == 2, "cloud, region and zone"
        assert item["paid_micros"] > 0
        assert item["ms"]["setup"] > 0
        assert item["ms"]["useful"] > 0
    for item in attempts[1:]:
        assert item["waiting_ms"] > 0, "from the loss until there were nodes again"
        assert item["ms"]["restore"] > 0
    assert [loss["cause"] for loss in bill["losses"]] == ["node_failed", "preempted"]
    assert bill["paid_micros"] < bill["on_demand_micros"] + bill["wasted_micros"]
    assert not bill["simulated"]


def _check_logs(service: HoldfastService, job_id: str) -> None:
    printed = service.cli("logs", job_id, "--attempt", "1")
    assert "step 50/400" in printed.stdout, printed.stderr
    assert "sky-payload" not in printed.stdout


def _final_weights(service: HoldfastService, job_id: str) -> str:
    last = service.events(job_id, "CheckpointCommitted")[-1]["body"]
    assert last["step"] == STEPS
    weights: str = last["weights_sha256"]
    return weights


def _uninterrupted_weights(service: HoldfastService, tmp_path: Path) -> str:
    """The final weights of the same job on this machine, without preemptions."""
    job_id = service.submit_training(
        "",
        steps=STEPS,
        envs={"OMP_NUM_THREADS": "1"},
        secrets={},
        resources={"infra": "local", "use_spot": False},
        run=f"holdfast-worker run train.py --steps {STEPS}",
        holdfast={
            "checkpoint": {"store": (tmp_path / BUCKET).as_uri(), "every": "200 steps"},
        },
    )
    service.wait_for(job_id, "Finished")
    return _final_weights(service, job_id)

"""A job in the cloud loses its nodes twice, once with a notice, and ends where an undisturbed one ends."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from e2e.skycloud.cloud import SkyCloud
from e2e.skycloud.tenant import BUCKET, Tenant, s3_server
from premises import EXAMPLE

STEPS = 400
NOTICE_S = 600.0
"""Longer than the ranks take to save and leave on any machine; the test takes the node as soon as they have."""
PACED = Path(__file__).with_name("paced.py")
MAY_END = "may-end"
"""The object for which paced.py looks."""


@pytest.mark.timeout(7200)
def test_a_job_survives_two_preemptions_and_ends_as_if_there_had_been_none(
    sky_cloud: SkyCloud, tenant: Tenant, tmp_path: Path
) -> None:
    with s3_server(tmp_path / "s3") as endpoint:
        sky_cloud.deny(region="us-east-1", market="spot")
        job_id = tenant.submit_training(endpoint, steps=STEPS, **_paced(tmp_path / "workdir"))
        tenant.wait_for(job_id, "CheckpointCommitted")
        tenant.wait_for(job_id, "NodesReady")
        tenant.wait_for_log(job_id, 1, "step 50/400")
        sky_cloud.allow_all()

        # A worker node goes without a word.
        sky_cloud.preempt("worker")
        tenant.wait_for(job_id, "TrainingStarted", 2)
        tenant.wait_for(job_id, "CheckpointCommitted", 2)
        tenant.wait_for(job_id, "NodesReady", 2)

        # The head is told, and goes later.
        sky_cloud.preempt("head", notice_s=NOTICE_S)
        tenant.wait_for(job_id, "PreemptionNoticed")
        tenant.wait_long(lambda: "preempted" in _reasons(tenant, job_id), "the ranks have left")
        sky_cloud.preempt("head")
        (tmp_path / "s3" / BUCKET / MAY_END).write_text("yes")
        tenant.wait_for(job_id, "Finished")

        job = tenant.json("show", job_id)
        assert job["state"] == "succeeded", job["detail"]
        assert job["preemptions"] == 2
        assert job["failures"] == 0
        _tells_of_the_failover(tenant, job_id)
        _tells_of_both_losses(tenant, job_id)
        _pays_for_everything(tenant, job_id)
        _has_the_log_of_lost_nodes(tenant, job_id)
        assert not sky_cloud.instances(), "nothing is left running"
        assert _final_weights(tenant, job_id) == _undisturbed(tenant, tmp_path)


def _paced(workdir: Path) -> dict[str, str]:
    """What makes the job train until this test lets it end, however slow this machine is."""
    shutil.copytree(EXAMPLE, workdir)
    shutil.copy(PACED, workdir)
    run = f"holdfast-worker run paced.py --steps {STEPS} --step-seconds 0.05"
    return {"workdir": str(workdir), "run": run}


def _reasons(tenant: Tenant, job_id: str) -> list[str]:
    return [event["body"]["reason"] for event in tenant.events(job_id, "WorkerLeft")]


def _tells_of_the_failover(tenant: Tenant, job_id: str) -> None:
    denied = {event["body"]["zone"] for event in tenant.events(job_id, "CapacityDenied")}
    assert "aws/us-east-1" in denied
    first = tenant.events(job_id, "NodesReady")[0]["body"]
    assert first["zone"].startswith("aws/")
    assert not first["zone"].startswith("aws/us-east-1")


def _tells_of_both_losses(tenant: Tenant, job_id: str) -> None:
    lost = [event["body"] for event in tenant.events(job_id, "CapacityLost")]
    assert [item["cause"] for item in lost] == ["node_failed", "preempted"]
    assert [item["attempt"] for item in lost] == [1, 2]
    started = [event["body"] for event in tenant.events(job_id, "TrainingStarted")]
    assert [item["attempt"] for item in started] == [1, 2, 3]
    assert started[0]["restored_from"] is None
    assert started[1]["restored_from"]
    noticed = tenant.events(job_id, "PreemptionNoticed")[0]["body"]
    assert 0 < noticed["left_s"] <= NOTICE_S
    # With a notice nothing is lost: the work was saved at the very step at which it was left.
    assert started[2]["step"] == noticed["step"]


def _pays_for_everything(tenant: Tenant, job_id: str) -> None:
    bill = tenant.json("bill", job_id)
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


def _has_the_log_of_lost_nodes(tenant: Tenant, job_id: str) -> None:
    printed = tenant.cli("logs", job_id, "--attempt", "1")
    assert "step 50/400" in printed.stdout, printed.stderr
    assert "sky-payload" not in printed.stdout


def _final_weights(tenant: Tenant, job_id: str) -> str:
    last = tenant.events(job_id, "CheckpointCommitted")[-1]["body"]
    assert last["step"] == STEPS
    weights: str = last["weights_sha256"]
    return weights


def _undisturbed(tenant: Tenant, tmp_path: Path) -> str:
    """The final weights of the same job on this machine, where nobody takes anything."""
    job_id = tenant.submit_training(
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
    tenant.wait_for(job_id, "Finished")
    return _final_weights(tenant, job_id)

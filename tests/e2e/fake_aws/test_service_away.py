"""SkyPilot recovers a job while the service is down, and all events are recorded later."""

from __future__ import annotations

import signal
from pathlib import Path

from e2e.fake_aws.cloud import FakeAws
from e2e.fake_aws.holdfast_service import HoldfastService, s3_server
from e2e.fake_aws.jobs import ManagedJob


def test_job_recovers_while_the_service_is_down(
    aws: FakeAws, service: HoldfastService, tmp_path: Path
) -> None:
    with s3_server(tmp_path / "s3") as endpoint:
        job_id = service.submit_training(endpoint, steps=5000, num_nodes=1)
        service.wait_for(job_id, "CheckpointCommitted")
        service.wait_for(job_id, "NodesReady")
        (row,) = service.listed(job_id)

        service.end(signal.SIGKILL)
        aws.preempt()
        ManagedJob(aws, row["id"]).until("RUNNING", times=2)
        service.start()

        started = [event["body"] for event in service.wait_for(job_id, "TrainingStarted", 2)]
        assert [item["attempt"] for item in started] == [1, 2]
        assert started[1]["restored_from"], "it went on where it was saved"
        lost = service.wait_for(job_id, "CapacityLost")
        assert [event["body"]["cause"] for event in lost] == ["node_failed"]
        service.wait_for(job_id, "NodesReady", 2)
        assert service.json("show", job_id)["preemptions"] == 1
        assert [item["id"] for item in service.listed(job_id)] == [row["id"]], "launched once"

        assert service.cli("cancel", job_id).returncode == 0
        service.wait_for(job_id, "Finished")
        assert not aws.instances()

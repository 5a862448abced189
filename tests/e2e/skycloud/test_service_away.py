"""The service is dead while the market takes the nodes: SkyPilot recovers the job, and all is told afterwards."""

from __future__ import annotations

import signal
from pathlib import Path

from e2e.skycloud.cloud import SkyCloud
from e2e.skycloud.jobs import ManagedJob
from e2e.skycloud.tenant import Tenant, s3_server


def test_a_job_is_recovered_while_the_service_is_dead(
    sky_cloud: SkyCloud, tenant: Tenant, tmp_path: Path
) -> None:
    with s3_server(tmp_path / "s3") as endpoint:
        job_id = tenant.submit_training(endpoint, steps=5000, num_nodes=1)
        tenant.wait_for(job_id, "CheckpointCommitted")
        tenant.wait_for(job_id, "NodesReady")
        (row,) = tenant.listed(job_id)

        tenant.end(signal.SIGKILL)
        sky_cloud.preempt()
        ManagedJob(sky_cloud, row["id"]).until("RUNNING", times=2)
        tenant.start()

        started = [event["body"] for event in tenant.wait_for(job_id, "TrainingStarted", 2)]
        assert [item["attempt"] for item in started] == [1, 2]
        assert started[1]["restored_from"], "it went on where it was saved"
        lost = tenant.wait_for(job_id, "CapacityLost")
        assert [event["body"]["cause"] for event in lost] == ["node_failed"]
        tenant.wait_for(job_id, "NodesReady", 2)
        assert tenant.json("show", job_id)["preemptions"] == 1
        assert [item["id"] for item in tenant.listed(job_id)] == [row["id"]], "launched once"

        assert tenant.cli("cancel", job_id).returncode == 0
        tenant.wait_for(job_id, "Finished")
        assert not sky_cloud.instances()

"""SkyPilot says nothing for a minute: nothing is concluded, nothing is done, and training does not notice."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from e2e.skycloud.cloud import SkyCloud
from e2e.skycloud.tenant import Tenant, s3_server

BLACKOUT_S = 60.0


@pytest.mark.timeout(1500)
def test_a_minute_of_silence_changes_nothing(
    sky_cloud: SkyCloud, tenant: Tenant, tmp_path: Path
) -> None:
    with s3_server(tmp_path / "s3") as endpoint:
        job_id = tenant.submit_training(endpoint, steps=5000, num_nodes=1)
        tenant.wait_for(job_id, "CheckpointCommitted")
        before = tenant.json("show", job_id)
        machines = {instance.id for instance in sky_cloud.instances()}
        told = len(tenant.events(job_id, "CheckpointCommitted"))

        with sky_cloud.blackout():
            time.sleep(BLACKOUT_S)
            silent = tenant.json("show", job_id)

        assert silent["state"] == before["state"] == "training"
        assert "SkyPilot" in silent["trouble"]
        assert silent["last_seen_at"] < silent["updated_at"], "the worker went on telling"
        tenant.wait_long(lambda: not tenant.json("show", job_id)["trouble"], "it is seen again")
        kinds = {event["kind"] for event in tenant.events(job_id)}
        assert not kinds & {"CapacityLost", "CancelRequested", "Finished", "GuardTripped"}
        assert {instance.id for instance in sky_cloud.instances()} == machines
        assert len(tenant.events(job_id, "CheckpointCommitted")) > told

        assert tenant.cli("cancel", job_id).returncode == 0
        tenant.wait_for(job_id, "Finished")
        # A cancel asks the worker to save first: no work is lost by it.
        left = tenant.events(job_id, "WorkerLeft")[-1]["body"]
        saved = tenant.events(job_id, "CheckpointCommitted")[-1]["body"]
        assert saved["step"] == left["step"]
        assert not sky_cloud.instances()

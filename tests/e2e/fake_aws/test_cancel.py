"""Cancellation while SkyPilot recovers the job on new nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.fake_aws.cloud import FakeAws
from e2e.fake_aws.holdfast_service import HoldfastService, s3_server


@pytest.mark.timeout(1500)
def test_cancel_during_recovery_leaves_no_job_running(
    aws: FakeAws, service: HoldfastService, tmp_path: Path
) -> None:
    with s3_server(tmp_path / "s3") as endpoint:
        job_id = service.submit_training(endpoint, steps=5000, num_nodes=1)
        service.wait_for(job_id, "CheckpointCommitted")
        aws.preempt()
        service.wait_for(job_id, "CapacityLost")
        service.wait_long(aws.instances, "SkyPilot has requested new instances")

        assert service.cli("cancel", job_id).returncode == 0
        end = service.wait_for(job_id, "Finished")[0]["body"]

        assert end["outcome"] == "cancelled"
        # When the job ends, nothing runs, and nothing starts later.
        assert not aws.instances()
        rows = service.listed(job_id)
        assert [row["status"] for row in rows] == ["CANCELLED"]
        assert not service.events(job_id, "CleanupFailed")

"""A cancel in the worst moment: while SkyPilot is putting the job on new nodes."""

from __future__ import annotations

from pathlib import Path

import pytest
from e2e.skycloud.cloud import SkyCloud
from e2e.skycloud.tenant import Tenant, s3_server


@pytest.mark.timeout(1500)
def test_a_cancel_during_recovery_leaves_nothing_running(
    sky_cloud: SkyCloud, tenant: Tenant, tmp_path: Path
) -> None:
    with s3_server(tmp_path / "s3") as endpoint:
        job_id = tenant.submit_training(endpoint, steps=5000, num_nodes=1)
        tenant.wait_for(job_id, "CheckpointCommitted")
        sky_cloud.preempt()
        tenant.wait_for(job_id, "CapacityLost")
        tenant.wait_long(sky_cloud.instances, "SkyPilot has begun to rent anew")

        assert tenant.cli("cancel", job_id).returncode == 0
        end = tenant.wait_for(job_id, "Finished")[0]["body"]

        assert end["outcome"] == "cancelled"
        # At the moment at which the end is told nothing is left, and nothing comes later.
        assert not sky_cloud.instances()
        rows = tenant.listed(job_id)
        assert [row["status"] for row in rows] == ["CANCELLED"]
        assert not tenant.events(job_id, "CleanupFailed")

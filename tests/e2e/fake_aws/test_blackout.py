"""SkyPilot does not respond for a minute: no state changes, and training continues."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from e2e.fake_aws.cloud import FakeAws
from e2e.fake_aws.holdfast_service import HoldfastService, s3_server

BLACKOUT_S = 60.0


@pytest.mark.timeout(1500)
def test_unresponsive_skypilot_changes_no_state(
    aws: FakeAws, service: HoldfastService, tmp_path: Path
) -> None:
    with s3_server(tmp_path / "s3") as endpoint:
        job_id = service.submit_training(endpoint, steps=5000, num_nodes=1)
        service.wait_for(job_id, "CheckpointCommitted")
        before = service.json("show", job_id)
        machines = {instance.id for instance in aws.instances()}
        recorded = len(service.events(job_id, "CheckpointCommitted"))

        with aws.blackout():
            time.sleep(BLACKOUT_S)
            silent = service.json("show", job_id)

        assert silent["state"] == before["state"] == "training"
        assert "SkyPilot" in silent["trouble"]
        assert silent["last_seen_at"] < silent["updated_at"], "the worker went on telling"
        service.wait_long(
            lambda: not service.json("show", job_id)["trouble"], "it is observed again"
        )
        kinds = {event["kind"] for event in service.events(job_id)}
        assert not kinds & {"CapacityLost", "CancelRequested", "Finished", "GuardTripped"}
        assert {instance.id for instance in aws.instances()} == machines
        assert len(service.events(job_id, "CheckpointCommitted")) > recorded

        assert service.cli("cancel", job_id).returncode == 0
        service.wait_for(job_id, "Finished")
        # A cancellation lets the worker save first, so that no steps are lost.
        left = service.events(job_id, "WorkerLeft")[-1]["body"]
        saved = service.events(job_id, "CheckpointCommitted")[-1]["body"]
        assert saved["step"] == left["step"]
        assert not aws.instances()

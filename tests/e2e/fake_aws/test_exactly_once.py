"""A hundred launches over a rough road, with the service and SkyPilot killed on the way: each happens once."""

from __future__ import annotations

import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

import psutil
import pytest
from e2e.fake_aws import network_faults
from e2e.fake_aws.cloud import FakeAws
from e2e.fake_aws.holdfast_service import HoldfastService, start_gated
from holdfast.api.schemas.jobs import TaskIn
from holdfast.client import Client

LAUNCHES = 100
TASK = """
resources: {infra: aws/us-east-1/us-east-1a, instance_type: m6i.large, use_spot: true}
run: "true"
"""
SEED = 11
TEMPESTS = ("service", "skypilot", "service", "skypilot", "service")
"""Who is killed, each while launches are under way."""


@pytest.fixture
def aws(the_cloud: FakeAws) -> Iterator[FakeAws]:
    """A cloud that is recreated after the test: to cancel a hundred jobs takes SkyPilot longer than to launch them."""
    the_cloud.restore_api_server()
    yield the_cloud
    start_gated(the_cloud)


@pytest.fixture
def hurried(tmp_path: Path, aws: FakeAws) -> Iterator[HoldfastService]:
    """A service that reaches SkyPilot over the rough road."""
    service = HoldfastService(
        tmp_path, aws.place, skypilot=f"http://127.0.0.1:{network_faults.PORT}"
    )
    yield service
    if service.process:
        service.end(signal.SIGTERM)


@pytest.fixture
def idle_controllers(aws: FakeAws) -> Iterator[None]:
    """SkyPilot's jobs controllers stand still: a hundred jobs that look for machines would keep this one busy for hours.

    What makes a managed job are SkyPilot's server and its database; controllers begin where those have ended.
    """
    held: dict[int, psutil.Process] = {}
    over = threading.Event()

    def hold() -> None:
        while not over.wait(0.5):
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    is_controller = "-msky.jobs.controller" in process.cmdline()
                    if is_controller and process.environ().get("HOME") == str(aws.place.home):
                        process.suspend()
                        held[process.pid] = process

    keeper = threading.Thread(target=hold)
    keeper.start()
    yield
    over.set()
    keeper.join()
    for process in held.values():
        with suppress(psutil.Error):
            process.resume()


@pytest.mark.timeout(2600)
@pytest.mark.usefixtures("idle_controllers")
def test_a_hundred_launches_happen_once_each(aws: FakeAws, hurried: HoldfastService) -> None:
    # Nothing is for sale, so that no machine is needed: what is counted are SkyPilot's managed jobs.
    aws.deny()
    with network_faults.faulty_proxy(SEED) as road:
        hurried.start()
        with Client(hurried.environment["HOLDFAST_URL"]) as client:
            ids = [
                client.submit(TaskIn(task=TASK, force=True), idempotency_key=f"once-{number}").id
                for number in range(LAUNCHES)
            ]
        for number, tempest in enumerate(TEMPESTS, 1):
            known = number * LAUNCHES // 10
            hurried.wait_long(
                lambda known=known: len(_known(hurried)) >= known, f"{known} launches are known"
            )
            if tempest == "service":
                hurried.end(signal.SIGKILL)
                hurried.start()
            else:
                aws.kill_api_server()
                time.sleep(5)
                aws.start_api_server()
        hurried.wait_long(
            lambda: len(_known(hurried)) == LAUNCHES,
            "SkyPilot's number of every launch is known",
            patience_s=1500,
        )
        # What the road doubled may still stand in line.
        hurried.wait_long(
            lambda: not aws.launching(), "SkyPilot has carried out every launch request"
        )
        assert road.fates["lose the answer"]
        assert road.fates["send twice"]

    live = {
        job_id: [row for row in hurried.listed(job_id) if row["status"] != "CANCELLED"]
        for job_id in ids
    }
    assert {job_id: len(rows) for job_id, rows in live.items()} == dict.fromkeys(ids, 1)
    known = _known(hurried)
    assert {job_id: rows[0]["id"] for job_id, rows in live.items()} == known
    # What was cancelled had never begun: a request of SkyPilot's own that died between two of its steps.
    for job_id in ids:
        for row in hurried.listed(job_id):
            assert row["status"] != "CANCELLED" or row["schedule"] == "INACTIVE", row


def _known(service: HoldfastService) -> dict[str, int]:
    """SkyPilot's number of each job, as the service has it on record."""
    with closing(sqlite3.connect(service.home / "holdfast.db", timeout=30)) as connection:
        query = "select job_id, engine_id from launches where engine_id is not null and job_id like 'j%'"
        return dict(connection.execute(query).fetchall())

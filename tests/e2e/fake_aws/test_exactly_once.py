"""A hundred launches happen once each, through a faulty proxy and kills of both servers."""

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
KILLS = ("service", "skypilot", "service", "skypilot", "service")
"""The killed process of each round, with launches in progress."""


@pytest.fixture
def aws(the_cloud: FakeAws) -> Iterator[FakeAws]:
    """A cloud that is recreated after the test, which is faster than cancelling a hundred jobs."""
    the_cloud.restore_api_server()
    yield the_cloud
    start_gated(the_cloud)


@pytest.fixture
def service_behind_proxy(tmp_path: Path, aws: FakeAws) -> Iterator[HoldfastService]:
    """A service that reaches SkyPilot through the faulty proxy."""
    service = HoldfastService(
        tmp_path, aws.paths, skypilot=f"http://127.0.0.1:{network_faults.PORT}"
    )
    yield service
    if service.process:
        service.end(signal.SIGTERM)


@pytest.fixture
def idle_controllers(aws: FakeAws) -> Iterator[None]:
    """Suspend SkyPilot's jobs controllers: placing a hundred jobs would take hours.

    SkyPilot's server and its database create managed jobs; controllers act after that.
    """
    suspended: dict[int, psutil.Process] = {}
    stop = threading.Event()

    def suspend_controllers() -> None:
        while not stop.wait(0.5):
            for process in psutil.process_iter():
                with suppress(psutil.Error):
                    is_controller = "-msky.jobs.controller" in process.cmdline()
                    if is_controller and process.environ().get("HOME") == str(aws.paths.home):
                        process.suspend()
                        suspended[process.pid] = process

    thread = threading.Thread(target=suspend_controllers)
    thread.start()
    yield
    stop.set()
    thread.join()
    for process in suspended.values():
        with suppress(psutil.Error):
            process.resume()


@pytest.mark.timeout(2600)
@pytest.mark.usefixtures("idle_controllers")
def test_hundred_launches_happen_once_each(
    aws: FakeAws, service_behind_proxy: HoldfastService
) -> None:
    # No capacity exists, so that no machine is needed: the test counts SkyPilot's managed jobs.
    aws.deny()
    with network_faults.faulty_proxy(SEED) as proxy:
        service_behind_proxy.start()
        with Client(service_behind_proxy.environment["HOLDFAST_URL"]) as client:
            ids = [
                client.jobs.submit(
                    TaskIn(task=TASK, force=True), idempotency_key=f"once-{number}"
                ).id
                for number in range(LAUNCHES)
            ]
        for number, killed in enumerate(KILLS, 1):
            known = number * LAUNCHES // 10
            service_behind_proxy.wait_long(
                lambda known=known: len(_known(service_behind_proxy)) >= known,
                f"{known} launches are known",
            )
            if killed == "service":
                service_behind_proxy.end(signal.SIGKILL)
                service_behind_proxy.start()
            else:
                aws.kill_api_server()
                time.sleep(5)
                aws.start_api_server()
        service_behind_proxy.wait_long(
            lambda: len(_known(service_behind_proxy)) == LAUNCHES,
            "SkyPilot's number of every launch is known",
            patience_s=1500,
        )
        # Duplicated requests may still be queued.
        service_behind_proxy.wait_long(
            lambda: not aws.launching(), "SkyPilot has carried out every launch request"
        )
        assert proxy.faults["lose the response"]
        assert proxy.faults["send twice"]

    live = {
        job_id: [row for row in service_behind_proxy.listed(job_id) if row["status"] != "CANCELLED"]
        for job_id in ids
    }
    assert {job_id: len(rows) for job_id, rows in live.items()} == dict.fromkeys(ids, 1)
    known = _known(service_behind_proxy)
    assert {job_id: rows[0]["id"] for job_id, rows in live.items()} == known
    # Cancelled jobs never started: SkyPilot's request died between two of its steps.
    for job_id in ids:
        for row in service_behind_proxy.listed(job_id):
            assert row["status"] != "CANCELLED" or row["schedule"] == "INACTIVE", row


def _known(service: HoldfastService) -> dict[str, int]:
    """SkyPilot's number of each job, as recorded by the service."""
    with closing(sqlite3.connect(service.home / "holdfast.db", timeout=30)) as connection:
        query = "select job_id, engine_id from launches where engine_id is not null and job_id like 'j%'"
        return dict(connection.execute(query).fetchall())

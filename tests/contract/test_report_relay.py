"""Report relay through the checkpoint store: the worker's sender and the service's importer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import fake_s3
import pytest
from holdfast.background.report_import import ReportImporter
from holdfast.clock import SystemClock
from holdfast.storage import CheckpointBuckets
from holdfast.store.incarnations import Incarnations
from holdfast.store.journal import Journal
from holdfast.store.leases import LeaseTable
from holdfast.store.queries import Queries
from holdfast_worker.protocol.reports import Json, ReportKind
from holdfast_worker.storage import open_store
from holdfast_worker.telemetry.delivery import ReportSender
from holdfast_worker.telemetry.service_client import ServiceClient
from holdfast_worker.telemetry.spool import Spool, read_spool, spool_file
from holdfast_worker.telemetry.store_relay import StoreRelay
from sqlalchemy import Engine
from support.cloud_servers import FAKE_CLOUDS
from support.events import launched, ready, submitted
from support.live_service import free_port
from worker.support.report_server import ReportServer
from worker.support.run_driver import wait_until
from worker.support.s3_servers import credentials

JOB = "job-1"

pytestmark = [
    pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning"),
    pytest.mark.parametrize("database_url", ["sqlite"], indirect=True),
]


@pytest.fixture(params=["folder", "bucket", "gs", "az"])
def store(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    """Address of a store, with the variables that boto3 needs in the environment."""
    if request.param == "folder":
        yield f"file://{tmp_path / 'store'}"
        return
    with fake_s3.in_thread() as s3:
        if cloud := FAKE_CLOUDS.get(request.param):
            server = cloud(s3)
            server.open(monkeypatch)
            yield server.runs
            return
        for name, value in credentials(s3.endpoint).items():
            monkeypatch.setenv(name, value)
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            monkeypatch.setenv(name, os.devnull)
        yield "s3://bucket/runs"


@dataclass
class RelayedJob:
    """One job, its journal and the report importer of the service."""

    engine: Engine
    store: str

    def __post_init__(self) -> None:
        self.clock = SystemClock()
        self.journal = Journal(self.engine, self.clock)
        block = {"checkpoint": {"store": self.store}}
        self.journal.append(self.journal.submit(JOB, submitted(**block)), [launched(0), ready(1)])
        self.importer = self.new_importer()

    def new_importer(self) -> ReportImporter:
        """A new importer, as after a restart of the service."""
        return ReportImporter(
            journal=self.journal,
            incarnations=Incarnations(self.engine, self.clock),
            leases=LeaseTable(self.engine),
            open_bucket=CheckpointBuckets(self.clock).open,
            clock=self.clock,
            every_s=0.05,
        )

    def steps(self) -> list[int]:
        return [point.step for point in Queries(self.engine).points(JOB, limit=1000)]

    def event_kinds(self) -> list[str]:
        events = self.journal.events(JOB)
        return [item.kind for item in events if item.event.source == "worker"]


def append_report(spool: Spool, kind: ReportKind, **body: Json) -> None:
    spool.append(kind, body)


def steps(spool: Spool, numbers: range) -> None:
    for step in numbers:
        append_report(spool, ReportKind.PROGRESS, step=step, values={})


def new_sender(relayed: RelayedJob, spool: Path, port: int) -> ReportSender:
    relay = StoreRelay(
        partial(open_store, relayed.store, JOB, os.environ), spool, 1, quiet_s=0.3, pause_s=0.1
    )
    client = ServiceClient(f"http://127.0.0.1:{port}", JOB, "secret")
    return ReportSender(client, spool, 1, relay=relay)


def import_until(relayed: RelayedJob, is_enough: Callable[[], bool]) -> None:
    def poll() -> bool:
        relayed.importer.run_once()
        return is_enough()

    wait_until(poll)


def test_relay_delivers_all_reports_without_the_service(
    engine: Engine, store: str, tmp_path: Path
) -> None:
    relayed, path = RelayedJob(engine, store), tmp_path / "spool"
    spool = Spool(path, 1)
    sender = new_sender(relayed, path, free_port())
    append_report(spool, ReportKind.TRAINING_STARTED, step=0)
    steps(spool, range(1, 6))
    sender.start()

    import_until(relayed, lambda: relayed.steps() == [*range(1, 6)])
    steps(spool, range(6, 9))
    import_until(relayed, lambda: relayed.steps() == [*range(1, 9)])
    append_report(spool, ReportKind.WORKER_LEFT, step=8, reason="finished", exit_code=0, detail="")
    sender.close(within_s=10)
    import_until(relayed, lambda: relayed.event_kinds() == ["TrainingStarted", "WorkerLeft"])

    left = open_store(store, JOB, os.environ).list("inbox/")
    assert left == []
    assert relayed.journal.marks(JOB) == {1: 10}


def test_returning_service_receives_all_reports_once(
    engine: Engine, store: str, tmp_path: Path
) -> None:
    """Reports that the fake service accepts over HTTP go to the journal, as in the real one."""
    relayed, path, port = RelayedJob(engine, store), tmp_path / "spool", free_port()
    spool, service = Spool(path, 1), ReportServer()
    sender = new_sender(relayed, path, port)
    steps(spool, range(5))
    sender.start()
    import_until(relayed, lambda: relayed.steps() == [*range(5)])
    steps(spool, range(5, 10))
    wait_until(lambda: bool(open_store(store, JOB, os.environ).list("inbox/")))
    service.received[1] = [*range(1, 6)]

    with service.opened(port):
        service.wait_for(1, 10)
        reports = [report for report, _ in read_spool(spool_file(path, 1))]
        relayed.journal.ingest(JOB, 1, reports[5:])
        steps(spool, range(10, 12))
        service.wait_for(1, 12)
        reports = [report for report, _ in read_spool(spool_file(path, 1))]
        relayed.journal.ingest(JOB, 1, reports[10:])
        sender.close()
    relayed.importer = relayed.new_importer()
    import_until(relayed, lambda: open_store(store, JOB, os.environ).list("inbox/") == [])

    assert relayed.steps() == [*range(12)]
    assert service.received == {1: [*range(1, 13)]}

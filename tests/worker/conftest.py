"""Fixtures of all tests of the worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from fake_s3 import FakeS3
from holdfast_worker.storage.base import Store
from support.cloud_servers import FAKE_CLOUDS

from worker.support.report_server import ReportServer
from worker.support.run_driver import DDP_SCRIPT, TOTAL, RunDriver, end_all, free_port
from worker.support.s3_servers import open_bucket


@pytest.fixture(autouse=True)
def _leave_no_process_behind() -> Iterator[None]:
    yield
    end_all()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> RunDriver:
    """An undisturbed run of two ranks."""
    driver = RunDriver(tmp_path_factory.mktemp("undisturbed"))
    assert driver.run_ranks(2, DDP_SCRIPT, TOTAL) == [0, 0]
    return driver


@pytest.fixture
def s3(one_s3: FakeS3) -> FakeS3:
    """An empty S3 server, without faults until a test injects them."""
    one_s3.renew()
    return one_s3


@pytest.fixture
def bucket(request: pytest.FixtureRequest, s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> Store:
    """The store of a job in the fake S3; in the protocol of another cloud as an indirect parameter."""
    if cloud := FAKE_CLOUDS.get(getattr(request, "param", "s3")):
        return cloud(s3).open(monkeypatch)
    return open_bucket(s3.endpoint, monkeypatch)


@pytest.fixture
def service() -> ReportServer:
    """A service that accepts reports once it listens."""
    return ReportServer()


@pytest.fixture
def port() -> int:
    """A free port of this machine."""
    return free_port()


@pytest.fixture
def opened(service: ReportServer, port: int) -> Iterator[ReportServer]:
    """The service, listening."""
    with service.opened(port):
        yield service

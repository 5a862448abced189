"""What all tests of the worker stand on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import s3stand
from holdfast_worker.storage.base import Store
from s3stand import Stand

from worker.inbox import Service
from worker.servers import open_bucket
from worker.stage import LESSON, TOTAL, Stage, end_all, free_port


@pytest.fixture(autouse=True)
def _leave_no_process_behind() -> Iterator[None]:
    yield
    end_all()


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A run of two ranks that nobody disturbed."""
    stage = Stage(tmp_path_factory.mktemp("undisturbed"))
    assert stage.run_ranks(2, LESSON, TOTAL) == [0, 0]
    return stage


@pytest.fixture(scope="session")
def one_stand() -> Iterator[Stand]:
    with s3stand.in_thread() as stand:
        yield stand


@pytest.fixture
def stand(one_stand: Stand) -> Stand:
    """An S3 server with nothing in it, and nothing wrong with it until a test says so."""
    one_stand.renew()
    return one_stand


@pytest.fixture
def bucket(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Where the stand keeps the checkpoints of a job."""
    return open_bucket(stand.endpoint, monkeypatch)


@pytest.fixture
def service() -> Service:
    """A service that takes reports, and is not open yet."""
    return Service()


@pytest.fixture
def port() -> int:
    """A free port of this machine."""
    return free_port()


@pytest.fixture
def opened(service: Service, port: int) -> Iterator[Service]:
    """The service, open."""
    with service.opened(port):
        yield service

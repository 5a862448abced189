"""Common fixtures: databases, servers and clocks."""

from __future__ import annotations

import gc
import os
import shutil
import sqlite3
from collections.abc import Callable, Generator, Iterator
from pathlib import Path

import fake_s3
import hypothesis
import pytest
from holdfast.store.database import open_database, upgrade
from holdfast.store.journal import Journal
from local_slurm import NotPossible, SlurmCluster, start_cluster
from sqlalchemy import Engine, event
from support import cloud_servers, fork_server
from support.durations import Durations
from support.fakes import FixedClock
from support.hang_guard import LastResort
from support.postgres import PATIENT, Cluster, NotInstalled, with_options
from support.process_sweep import Sweep
from support.repetitions import repeat_count
from support.requirements import skip_or_fail
from support.scheduling import Scheduling
from support.tiers import Tiers
from xdist.remote import Producer

# Fixed examples, so that failures are reproducible. New examples: --hypothesis-profile=explore.
_QUIET = [
    hypothesis.HealthCheck.too_slow,
    hypothesis.HealthCheck.data_too_large,
    hypothesis.HealthCheck.filter_too_much,
]
hypothesis.settings.register_profile(
    "steady",
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=_QUIET,
    max_examples=repeat_count(20, 100),
)
hypothesis.settings.register_profile(
    "explore", hypothesis.settings.get_profile("steady"), derandomize=False, max_examples=2000
)
hypothesis.settings.load_profile("steady")


LONG_FIRST = (
    "e2e/test_slurm.py",
    "e2e/test_up.py",
    "e2e/test_demo.py",
    "e2e",
    "repository/test_interruption.py",
    "repository/test_hang_guard.py",
    "demo_history",
    "fault_injection",
    "worker",
    "web",
    "api",
)
"""Long tests in the order of their start. A long test that starts last leaves cores idle."""


def pytest_configure(config: pytest.Config) -> None:
    """Print the slowest files, and end hanging tests and all processes that the run started."""
    config.pluginmanager.register(Tiers())
    if not hasattr(config, "workerinput"):  # Test processes of pytest-xdist descend from the run.
        config.pluginmanager.register(Sweep())
        if config.getoption("numprocesses", None):
            fork_server.share()
    config.pluginmanager.register(Durations(config.getoption("durations")))
    config.pluginmanager.register(LastResort())


@pytest.hookimpl(optionalhook=True)  # A hook of pytest-xdist, which may be missing.
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Keep tests that use Slurm in one process if files are kept in one."""
    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep all modules and tests out of garbage collections, which take a tenth of the CPU time otherwise."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start long tests first."""
    here = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        path = str(item.path.relative_to(here))
        return next(
            (n for n, name in enumerate(LONG_FIRST) if path.startswith(name)), len(LONG_FIRST)
        )

    items.sort(key=place)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL server of this test process."""
    try:
        cluster = Cluster()
    except NotInstalled as reason:
        skip_or_fail(str(reason))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()


@pytest.fixture(scope="session")
def one_slurm() -> Iterator[SlurmCluster]:
    """A Slurm with four nodes for this test process."""
    try:
        with start_cluster() as server:
            yield server
    except NotPossible as reason:
        skip_or_fail(str(reason))


@pytest.fixture
def slurm(one_slurm: SlurmCluster) -> Iterator[SlurmCluster]:
    """An idle Slurm with all nodes up."""
    yield one_slurm
    one_slurm.settle()


@pytest.fixture(scope="session")
def one_s3() -> Iterator[fake_s3.FakeS3]:
    """An S3 server of this test process."""
    with fake_s3.in_thread() as server:
        yield server


@pytest.fixture(scope="module")
def rclone_endpoint(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an S3 server that ignores conditions; tests use prefixes of their own."""
    from worker.support.s3_servers import rclone

    with rclone(tmp_path_factory.mktemp("rclone")) as endpoint:
        yield endpoint


@pytest.fixture(scope="module")
def moto_endpoint() -> Iterator[str]:
    """The address of an S3 server that observes conditions; tests use prefixes of their own."""
    from worker.support.s3_servers import moto

    with moto() as (endpoint, _):
        yield endpoint


@pytest.fixture(scope="session")
def one_azurite() -> Iterator[str]:
    """Microsoft's emulator of Azure Blob Storage for this test process."""
    try:
        with cloud_servers.azurite() as endpoint:
            yield endpoint
    except cloud_servers.NotInstalled as reason:
        skip_or_fail(str(reason))


@pytest.fixture
def google(one_s3: fake_s3.FakeS3) -> cloud_servers.CloudServer:
    """An empty server with the protocol of Google Cloud Storage."""
    one_s3.renew()
    return cloud_servers.fake_google(one_s3)


@pytest.fixture
def azure(one_s3: fake_s3.FakeS3) -> cloud_servers.CloudServer:
    """An empty server with the protocol of Azure Blob Storage."""
    one_s3.renew()
    return cloud_servers.fake_azure(one_s3)


@pytest.fixture
def azurite(one_azurite: str) -> cloud_servers.CloudServer:
    """Microsoft's emulator; tests use prefixes of their own."""
    return cloud_servers.CloudServer("az", cloud_servers.azure_variables(one_azurite))


@pytest.fixture
def service_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """S3 keys in the service's environment, and no other source of keys."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "the-services-own")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a SQLite or PostgreSQL database, with tables if the test also uses an engine."""
    has_tables = "engine" in request.fixturenames
    if request.param == "postgresql":
        cluster: Cluster = request.getfixturevalue("cluster")
        url = cluster.new_pattern_copy() if has_tables else cluster.new_database()
        return with_options(url, PATIENT)
    file = tmp_path / "holdfast.db"
    if has_tables:
        shutil.copyfile(request.getfixturevalue("pattern"), file)
    return f"sqlite:///{file}"


@pytest.fixture(scope="session")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SQLite database with the tables of this version.

    A migration would take as long as many tests.
    """
    file = tmp_path_factory.mktemp("pattern") / "holdfast.db"
    engine = open_database(f"sqlite:///{file}")
    upgrade(engine)
    engine.dispose()  # Closing the last connection moves the write-ahead log into the file.
    return file


@pytest.fixture
def sqlite(pattern: Path, tmp_path: Path, open_engine: Callable[[str], Engine]) -> Engine:
    """A SQLite database with the tables of this version."""
    return open_engine(f"sqlite:///{shutil.copy(pattern, tmp_path)}")


@pytest.fixture
def open_engine() -> Iterator[Callable[[str], Engine]]:
    """Open databases and close them after the test.

    SQLite commits do not wait for the disk, which would take 4 ms each.
    """
    engines: list[Engine] = []

    def open_one(url: str) -> Engine:
        engine = open_database(url)
        if engine.dialect.name == "sqlite":
            event.listen(engine, "connect", _do_not_sync)
        engines.append(engine)
        return engine

    yield open_one
    for engine in engines:
        engine.dispose()


def _do_not_sync(connection: sqlite3.Connection, _record: object) -> None:
    connection.execute("PRAGMA synchronous=OFF")


@pytest.fixture
def engine(database_url: str, open_engine: Callable[[str], Engine]) -> Engine:
    """A database with the tables of this version."""
    return open_engine(database_url)


@pytest.fixture
def clock() -> FixedClock:
    """A clock that only a test advances."""
    return FixedClock()


@pytest.fixture
def journal(engine: Engine, clock: FixedClock) -> Journal:
    """An empty journal."""
    return Journal(engine, clock)

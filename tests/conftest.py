"""Fixtures of many tests: both databases, and generators with fixed examples."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import fake_s3
import hypothesis
import pytest
from holdfast.store.database import open_database, upgrade
from holdfast.store.journal import Journal
from local_slurm import NotPossible, SlurmCluster, start_cluster
from sqlalchemy import Engine, event
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

# The same examples every time, so that a failure is never a coincidence. New ones: --hypothesis-profile=explore.
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
    max_examples=repeat_count(30, 100),
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
    "demo_history",
    "fault_injection",
    "worker",
    "web",
    "api",
)
"""Tests that take long, in the order in which they begin. What is long and begins last, one core waits for."""


def pytest_configure(config: pytest.Config) -> None:
    """Have the slowest files printed, tests that hang ended, and what the run starts ended with it."""
    config.pluginmanager.register(Tiers())
    if not hasattr(config, "workerinput"):  # Test processes of pytest-xdist descend from the run.
        config.pluginmanager.register(Sweep())
    config.pluginmanager.register(Durations(config.getoption("durations")))
    config.pluginmanager.register(LastResort())


@pytest.hookimpl(optionalhook=True)  # Of pytest-xdist, which a run may be without.
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """Keep tests with a Slurm in one process where files are kept in one."""
    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long ones first."""
    here = Path(__file__).parent

    def place(item: pytest.Item) -> int:
        path = str(item.path.relative_to(here))
        return next(
            (n for n, name in enumerate(LONG_FIRST) if path.startswith(name)), len(LONG_FIRST)
        )

    items.sort(key=place)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL of this test process alone."""
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
    """A Slurm of this test process alone, with four nodes."""
    try:
        with start_cluster() as server:
            yield server
    except NotPossible as reason:
        skip_or_fail(str(reason))


@pytest.fixture
def slurm(one_slurm: SlurmCluster) -> Iterator[SlurmCluster]:
    """An idle Slurm with all its nodes up."""
    yield one_slurm
    one_slurm.settle()


@pytest.fixture(scope="session")
def one_s3() -> Iterator[fake_s3.FakeS3]:
    """An S3 server of this test process alone."""
    with fake_s3.in_thread() as server:
        yield server


@pytest.fixture
def service_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys for S3 in the service's environment, and no other source of keys."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "the-services-own")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, os.devnull)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database, once of SQLite, once of PostgreSQL: with tables for who asks for an engine, else an empty one."""
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
    """A SQLite database with the tables of this version. To migrate an empty one takes as long as many a test."""
    file = tmp_path_factory.mktemp("pattern") / "holdfast.db"
    engine = open_database(f"sqlite:///{file}")
    upgrade(engine)
    engine.dispose()  # With the last connection its write-ahead log goes into the file.
    return file


@pytest.fixture
def sqlite(pattern: Path, tmp_path: Path, open_engine: Callable[[str], Engine]) -> Engine:
    """A SQLite database with the tables of this version."""
    return open_engine(f"sqlite:///{shutil.copy(pattern, tmp_path)}")


@pytest.fixture
def open_engine() -> Iterator[Callable[[str], Engine]]:
    """Opens databases, and closes them after the test. Commits to SQLite return before the disk has them, which takes 4 ms each."""
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

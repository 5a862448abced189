"""What many tests stand on: both databases, and generators that tell the same examples every time."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import hypothesis
import pytest
from fakes import FixedClock
from holdfast.store.database import open_database, upgrade
from holdfast.store.journal import Journal
from lacking import lacking
from postgres import Cluster, NotInstalled
from slurmstand import NotPossible, Stand, raised
from sqlalchemy import Engine

# The same examples every time, so that a failure is never a coincidence. New ones: --hypothesis-profile=explore.
_QUIET = [
    hypothesis.HealthCheck.too_slow,
    hypothesis.HealthCheck.data_too_large,
    hypothesis.HealthCheck.filter_too_much,
]
hypothesis.settings.register_profile(
    "steady", deadline=None, derandomize=True, database=None, suppress_health_check=_QUIET
)
hypothesis.settings.register_profile(
    "explore", hypothesis.settings.get_profile("steady"), derandomize=False, max_examples=2000
)
hypothesis.settings.load_profile("steady")


LONG_FIRST = ("e2e", "storm", "worker", "showcase", "web", "api")
"""Folders of tests that take long, in the order in which they begin. What is long and begins last, one core waits for."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the long ones first."""
    places = {name: place for place, name in enumerate(LONG_FIRST)}
    here = Path(__file__).parent
    items.sort(key=lambda item: places.get(item.path.relative_to(here).parts[0], len(places)))


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """A PostgreSQL of this test process alone."""
    try:
        cluster = Cluster()
    except NotInstalled as reason:
        lacking(str(reason))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.remove()


@pytest.fixture(scope="session")
def one_slurm() -> Iterator[Stand]:
    """A Slurm of this test process alone, with four nodes."""
    try:
        with raised() as stand:
            yield stand
    except NotPossible as reason:
        lacking(str(reason))


@pytest.fixture
def slurm(one_slurm: Stand) -> Iterator[Stand]:
    """A Slurm on which nothing runs, and all of whose nodes stand."""
    yield one_slurm
    one_slurm.settle()


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a database, once of SQLite, once of PostgreSQL: with tables for who asks for an engine, else an empty one."""
    has_tables = "engine" in request.fixturenames
    if request.param == "postgresql":
        cluster: Cluster = request.getfixturevalue("cluster")
        return cluster.new_pattern_copy() if has_tables else cluster.new_database()
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
def open_engine() -> Iterator[Callable[[str], Engine]]:
    """Opens databases, and closes them after the test."""
    engines: list[Engine] = []

    def open_one(url: str) -> Engine:
        engines.append(open_database(url))
        return engines[-1]

    yield open_one
    for engine in engines:
        engine.dispose()


@pytest.fixture
def engine(database_url: str, open_engine: Callable[[str], Engine]) -> Engine:
    """A database with the tables of this version."""
    return open_engine(database_url)


@pytest.fixture
def clock() -> FixedClock:
    """A clock that stands still until it is told to move."""
    return FixedClock()


@pytest.fixture
def journal(engine: Engine, clock: FixedClock) -> Journal:
    """An empty journal."""
    return Journal(engine, clock)

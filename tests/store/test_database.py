"""The database: SQLite and PostgreSQL, one way to write, and one error during outages."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from threading import Barrier

import pytest
from holdfast.domain.jobs.lifecycle import fold
from holdfast.errors import BadRequest, StoreUnavailable
from holdfast.store import database
from holdfast.store.database import (
    newest_revision,
    open_database,
    reading,
    revision_of,
    upgrade,
    writing,
)
from holdfast.store.journal import Journal
from holdfast.store.leases import LeaseTable
from holdfast.store.tables.base import UtcTime
from sqlalchemy import Column, Engine, MetaData, Table, event, insert, select, text
from support.events import at, launched, submitted
from support.fakes import FixedClock
from support.postgres import Cluster

OpenEngine = Callable[[str], Engine]


@pytest.fixture
def sqlite_engine(tmp_path: Path, open_engine: OpenEngine) -> Engine:
    engine = open_engine(f"sqlite:///{tmp_path / 'holdfast.db'}")
    upgrade(engine)
    return engine


@pytest.fixture
def restarted(cluster: Cluster) -> Iterator[Cluster]:
    """The cluster, which is running again after the test."""
    yield cluster
    cluster.stop()
    cluster.start()


# Opening


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("mysql://db/holdfast", "mysql is not supported; use sqlite:///FILE or postgresql://"),
        ("sqlite://", "write sqlite:////absolute/file"),
        ("holdfast.db", "Could not parse"),
        ("nosuch://x", "nosuch"),
    ],
)
def test_unsupported_database_url_is_refused(url: str, message: str) -> None:
    with pytest.raises(BadRequest, match=f"HOLDFAST_DATABASE_URL: .*{message}"):
        open_database(url)


def test_the_folder_of_a_new_database_is_made(tmp_path: Path, open_engine: OpenEngine) -> None:
    file = tmp_path / "a" / "b" / "holdfast.db"

    upgrade(open_engine(f"sqlite:///{file}"))

    assert file.exists()


def test_uncreatable_directory_is_reported(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file")

    with pytest.raises(StoreUnavailable, match=r"the directory of .* cannot be created"):
        open_database(f"sqlite:///{tmp_path / 'taken' / 'holdfast.db'}")


@pytest.mark.parametrize("scheme", ["postgresql", "postgresql+psycopg"])
def test_both_postgresql_url_schemes_are_accepted(
    scheme: str, cluster: Cluster, open_engine: OpenEngine
) -> None:
    url = cluster.new_database().replace("postgresql", scheme, 1)

    assert revision_of(open_engine(url)) is None


def test_sqlite_uses_wal_with_full_synchronous(tmp_path: Path) -> None:
    engine = open_database(f"sqlite:///{tmp_path / 'holdfast.db'}")

    with reading(engine) as connection:
        assert connection.execute(text("PRAGMA journal_mode")).scalar() == "wal"
        assert connection.execute(text("PRAGMA synchronous")).scalar() == 2  # FULL
    engine.dispose()


# Failures


def test_file_that_is_not_a_database_is_reported(tmp_path: Path, open_engine: OpenEngine) -> None:
    file = tmp_path / "holdfast.db"
    file.write_bytes(b"This is not a database, but it is long enough to be taken for one." * 99)

    with pytest.raises(StoreUnavailable, match="not a database"):
        upgrade(open_engine(f"sqlite:///{file}"))


def test_full_disk_loses_no_data_and_recovers_with_space(
    sqlite_engine: Engine, clock: FixedClock
) -> None:
    journal = Journal(sqlite_engine, clock)
    job = journal.submit("job-1", submitted())
    pages = _limit_pages(sqlite_engine, extra=2)

    with pytest.raises(StoreUnavailable, match=r"full.*nothing was recorded"):
        journal.submit("job-2", submitted(task="x" * 1_000_000))
    full = journal.read("job-1")
    _limit_pages(sqlite_engine, extra=10_000)
    after = journal.append(job, [launched(1)])

    assert pages
    assert full == job
    assert after == fold("job-1", [item.event for item in journal.events("job-1")])


def _limit_pages(engine: Engine, *, extra: int) -> int:
    """Limit the growth of the file to `extra` pages, as a full disk would.

    Returns the former size of the file.
    """
    engine.dispose()
    with engine.connect() as connection:
        used: int = connection.execute(text("PRAGMA page_count")).scalar_one()

    def limit(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute(f"PRAGMA max_page_count={used + extra}")

    event.listen(engine, "connect", limit)
    engine.dispose()
    return used


def test_lock_timeout_is_reported_as_store_unavailable(
    sqlite_engine: Engine, open_engine: OpenEngine
) -> None:
    def hurry(connection: sqlite3.Connection, _record: object) -> None:
        connection.execute("PRAGMA busy_timeout=1")

    impatient = open_engine(str(sqlite_engine.url))
    event.listen(impatient, "connect", hurry)

    with writing(sqlite_engine), pytest.raises(StoreUnavailable, match="locked"):
        LeaseTable(impatient).make_due("job-1", at(0))

    LeaseTable(impatient).make_due("job-1", at(0))


def test_readers_do_not_wait_for_a_writer(engine: Engine, clock: FixedClock) -> None:
    Journal(engine, clock).submit("job-1", submitted())

    with writing(engine):
        assert Journal(engine, clock).read("job-1").name == "tiny-gpt"


def test_failed_transaction_is_rolled_back(engine: Engine) -> None:
    def half() -> None:
        with writing(engine) as connection:
            connection.execute(text("INSERT INTO report_marks VALUES ('job-1', 1, 1)"))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        half()

    with reading(engine) as connection:
        assert connection.execute(text("SELECT count(*) FROM report_marks")).scalar() == 0


def test_stopped_postgresql_is_reported_and_recovers(
    restarted: Cluster, open_engine: OpenEngine, clock: FixedClock
) -> None:
    engine = open_engine(restarted.new_database())
    upgrade(engine)
    journal = Journal(engine, clock)
    job = journal.submit("job-1", submitted())
    restarted.stop()

    with pytest.raises(StoreUnavailable, match="nothing was recorded"):
        journal.append(job, [launched(1)])
    with pytest.raises(StoreUnavailable):
        journal.read("job-1")
    restarted.start()

    assert journal.append(job, [launched(1)]) == journal.read("job-1")


def test_connection_lost_in_transaction_is_reported(
    cluster: Cluster, open_engine: OpenEngine, clock: FixedClock
) -> None:
    engine = open_engine(cluster.new_database())
    upgrade(engine)
    hang_up = text(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE datname = current_database() AND pid <> pg_backend_pid()"
    )

    def write() -> None:
        with writing(engine) as connection:
            connection.execute(text("INSERT INTO report_marks VALUES ('job-1', 1, 1)"))
            with reading(engine) as other:
                other.execute(hang_up)
            connection.execute(text("INSERT INTO report_marks VALUES ('job-1', 2, 1)"))

    with pytest.raises(StoreUnavailable):
        write()

    assert Journal(engine, clock).submit("job-1", submitted()).seq == 1
    assert Journal(engine, clock).marks("job-1") == {}


# Upgrading


def test_concurrent_replicas_upgrade_one_after_another(
    database_url: str, open_engine: OpenEngine
) -> None:
    engines = [open_engine(database_url) for _ in range(4)]
    barrier = Barrier(len(engines))

    def start(engine: Engine) -> None:
        barrier.wait()
        upgrade(engine)

    with ThreadPoolExecutor(len(engines)) as pool:
        list(pool.map(start, engines))

    assert {revision_of(engine) for engine in engines} == {newest_revision()}


def test_upgrade_of_a_file_waits_longer_than_a_writer(
    tmp_path: Path, open_engine: OpenEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_TIMEOUT_MS", 50)
    url = f"sqlite:///{tmp_path / 'holdfast.db'}"
    engine, other = open_engine(url), open_engine(url)

    with ThreadPoolExecutor(1) as pool:
        with writing(other):
            upgraded = pool.submit(upgrade, engine)
            wait([upgraded], timeout=1)
            is_early = upgraded.done()
        upgraded.result()

    assert not is_early
    with writing(other), pytest.raises(StoreUnavailable, match="locked"), writing(engine):
        pass


def test_new_file_can_be_opened_concurrently(tmp_path: Path, open_engine: OpenEngine) -> None:
    """Two concurrent switches to the write-ahead log refuse each other at once.

    Queries would wait instead. Replicas crashed because of it.
    """
    crowd = 6
    with ThreadPoolExecutor(crowd) as pool:
        for turn in range(100):
            barrier = Barrier(crowd)
            engines = [open_engine(f"sqlite:///{tmp_path / f'{turn}.db'}") for _ in range(crowd)]

            def come(engine: Engine, barrier: Barrier = barrier) -> str | None:
                barrier.wait()
                return revision_of(engine)

            assert list(pool.map(come, engines)) == [None] * crowd


def test_concurrent_starts_upgrade_the_schema_serially(
    database_url: str, open_engine: OpenEngine
) -> None:
    program = (
        "import sys; from holdfast.store.database import *; upgrade(open_database(sys.argv[1]))"
    )
    argv = [sys.executable, "-c", program, database_url]

    processes = [subprocess.Popen(argv) for _ in range(2)]
    codes = [process.wait(timeout=240) for process in processes]

    assert codes == [0, 0]
    assert revision_of(open_engine(database_url)) == newest_revision()


def test_tables_of_a_newer_version_are_left_as_they_are(engine: Engine) -> None:
    with writing(engine) as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))

    upgrade(engine)

    assert revision_of(engine) == "9999"


# Times

moments = Table("moments", MetaData(), Column("at", UtcTime))


@pytest.mark.parametrize(
    "time",
    [
        datetime(2026, 3, 1, 12, 0, 0, 123456, UTC),
        datetime(2026, 3, 1, 12, 0, 0, tzinfo=timezone(timedelta(hours=-11))),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(2999, 12, 31, tzinfo=UTC),
        None,
    ],
)
def test_time_is_read_back_as_the_same_utc_time(engine: Engine, time: datetime | None) -> None:
    with writing(engine) as connection:
        moments.create(connection)
        connection.execute(insert(moments).values(at=time))

    with reading(engine) as connection:
        stored = connection.execute(select(moments.c.at)).scalar()

    assert stored == time
    assert stored is None or stored.utcoffset() == timedelta()


def test_times_of_different_zones_are_compared_as_moments(engine: Engine) -> None:
    east = datetime(2026, 3, 1, 13, 0, tzinfo=timezone(timedelta(hours=2)))  # 11:00 in UTC
    utc = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
    with writing(engine) as connection:
        moments.create(connection)
        connection.execute(insert(moments), [{"at": utc}, {"at": east}])

    with reading(engine) as connection:
        earlier = connection.execute(select(moments.c.at).where(moments.c.at < utc)).scalars().all()

    assert earlier == [east]


def test_naive_time_raises_an_error() -> None:
    naive = datetime(2026, 3, 1)  # noqa: DTZ001 - the point

    with pytest.raises(AssertionError, match="must be aware"):
        UtcTime().process_bind_param(naive, None)

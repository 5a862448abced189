"""The database: SQLite in the home directory by default, PostgreSQL by URL.

One function opens read transactions, one write transactions, and a fair lock queues the writers of this process.

Writers are serialized (SQLite: `BEGIN IMMEDIATE`; PostgreSQL: a transaction-level advisory lock), so that
the order of cursors is the order of commits, as the event stream needs. Conflicting writes to one job are prevented
by the journal's key alone.
"""

from __future__ import annotations

import functools
import os
import sqlite3
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from importlib import resources
from pathlib import Path
from threading import Lock
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import URL, Connection, Engine, create_engine, event, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DatabaseError,
    DBAPIError,
    NoSuchModuleError,
    OperationalError,
)
from sqlalchemy.exc import TimeoutError as PoolTimeout

from holdfast.errors import BadRequest, StoreUnavailable


class FairLock:
    """A first-come, first-served lock.

    With a plain lock, a thread among busy ones may wait forever.
    """

    def __init__(self) -> None:
        self._mutex = Lock()
        self._is_held = False
        self._waiting: deque[Lock] = deque()
        """A lock for each waiting thread, held until its turn."""

    def acquire(self, timeout_s: float) -> bool:
        """Acquire the lock within that time; returns whether it succeeded. Then call `release`."""
        with self._mutex:
            if not self._is_held:
                self._is_held = True
                return True
            mine = Lock()
            mine.acquire()
            self._waiting.append(mine)
        if mine.acquire(timeout=timeout_s):
            return True
        with self._mutex:
            if mine not in self._waiting:
                return True  # Acquired at the last moment.
            self._waiting.remove(mine)
            return False

    def release(self) -> None:
        """Pass the lock to the next waiting thread."""
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._is_held = False


_WRITERS_LOCK: Final = 0x686F6C64  # "hold": a constant that no other program of this database uses.
_WRITER_QUEUE_OPTION: Final = "holdfast_turns"
"""Engine option that holds the queue of writers."""
BUSY_TIMEOUT_MS: Final = 5000
"""How long a SQLite writer waits for others. A lower value fails in bursts; a higher value blocks requests."""
MIGRATION_TIMEOUT_MS: Final = 600_000
"""How long a migration of SQLite waits for others.
A lower value fails if another replica migrates large tables; a higher value shows a stuck writer later."""

_POOL: Final[Mapping[str, int]] = {"pool_size": 8, "max_overflow": 40, "pool_timeout": 5}
"""A connection for each thread that may need one: 40 of requests, and those of the reconciler, the
group commit and background tasks. A lower maximum makes requests wait for each other; a higher
one lets two replicas exceed PostgreSQL's default of 100."""


def open_database(url: str) -> Engine:
    """An engine for `url`, with its directory created if it is a file. It does not connect yet.

    Raises:
        BadRequest: the URL names no supported database.
    """
    try:
        parsed = make_url(url)
        backend = parsed.get_backend_name()
        if backend == "postgresql":
            return _open_postgresql(parsed.set(drivername="postgresql+psycopg"))
        if backend == "sqlite":
            return _open_sqlite(parsed.database)
    except (ArgumentError, NoSuchModuleError, ModuleNotFoundError) as error:
        raise BadRequest(f"HOLDFAST_DATABASE_URL: {error}") from error
    raise BadRequest(
        f"HOLDFAST_DATABASE_URL: {backend} is not supported; use sqlite:///FILE or postgresql://..."
    )


def _open_postgresql(url: URL) -> Engine:
    from holdfast.store import postgres  # noqa: PLC0415 - only PostgreSQL needs psycopg

    engine = create_engine(
        postgres.with_limits(url),
        pool_pre_ping=True,
        execution_options={_WRITER_QUEUE_OPTION: FairLock()},
        **_POOL,
    )
    postgres.install_probe(engine)
    return engine


def _open_sqlite(file: str | None) -> Engine:
    if not file:
        raise BadRequest("HOLDFAST_DATABASE_URL: write sqlite:////absolute/file")
    try:
        Path(file).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StoreUnavailable(
            f"the directory of {file} cannot be created: {error.strerror}"
        ) from error
    engine = create_engine(
        f"sqlite:///{file}",
        connect_args={"timeout": BUSY_TIMEOUT_MS / 1000},
        execution_options={_WRITER_QUEUE_OPTION: FairLock()},
        **_POOL,
    )
    event.listen(engine, "do_connect", partial(_make_private, file))
    event.listen(engine, "connect", _on_connect)
    event.listen(engine, "begin", _on_begin)
    return engine


def _make_private(file: str, *_: Any) -> None:
    """Create the file of a new database, private to this account.

    Its other files inherit the mode. An existing file is not opened: closing it would release the
    locks of all connections of this process.
    """
    with suppress(OSError):  # SQLite reports the error later.
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))


def _on_connect(connection: sqlite3.Connection, _record: Any) -> None:
    connection.isolation_level = None  # `_on_begin` sends BEGIN.
    _write_ahead(connection)
    connection.execute("PRAGMA synchronous=FULL")  # An acknowledged write survives a power cut.
    connection.execute("PRAGMA foreign_keys=ON")


def _write_ahead(connection: sqlite3.Connection) -> None:
    """Switch the file to its write-ahead log permanently.

    Unlike a query, the switch does not wait for a concurrent one, as when two replicas start on a fresh file.
    """
    deadline_s = time.monotonic() + BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode != sqlite3.SQLITE_BUSY or time.monotonic() > deadline_s:
                raise
            time.sleep(0.01)
        else:
            return


def _on_begin(connection: Connection) -> None:
    options = connection.get_execution_options()
    if not options.get("holdfast_migrates"):
        connection.exec_driver_sql("BEGIN IMMEDIATE" if options.get("holdfast_writes") else "BEGIN")
        return
    connection.exec_driver_sql(f"PRAGMA busy_timeout={MIGRATION_TIMEOUT_MS}")
    try:
        connection.exec_driver_sql("BEGIN IMMEDIATE")
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout={BUSY_TIMEOUT_MS}")


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """An exclusive write transaction; committed at the end, rolled back on an exception.

    Raises:
        StoreUnavailable: the database cannot be reached, is full, locked or read-only; nothing was written.
    """
    with _begin_exclusive(engine) as connection:
        yield connection


@contextmanager
def _begin_exclusive(engine: Engine, *, is_migration: bool = False) -> Iterator[Connection]:
    """An exclusive write transaction.

    A migration has no time limit with PostgreSQL, and a long one with SQLite: tables may be large, or already being migrated.
    """
    with (
        _writer_turn(engine),
        _outages(),
        engine.connect().execution_options(
            holdfast_writes=True, holdfast_migrates=is_migration
        ) as connection,
        connection.begin(),
    ):
        if connection.dialect.name == "postgresql":
            from holdfast.store import postgres  # noqa: PLC0415 - only PostgreSQL needs psycopg

            if is_migration:
                postgres.without_limit(connection)
            postgres.lock_writers(connection, _WRITERS_LOCK, may_idle=is_migration)
        yield connection


def _lift_limits(connection: Connection) -> None:
    if connection.dialect.name == "postgresql":
        from holdfast.store.postgres import without_limit  # noqa: PLC0415 - see above

        without_limit(connection)


@contextmanager
def _writer_turn(engine: Engine) -> Iterator[None]:
    """Wait for the other writers of this process.

    SQLite polls its lock at intervals of up to 100 ms, so that one of many writers may never find
    it free. With PostgreSQL, a waiting writer would occupy a connection.
    """
    turns: FairLock = engine.get_execution_options()[_WRITER_QUEUE_OPTION]
    if turns.acquire(BUSY_TIMEOUT_MS / 1000):
        try:
            yield
        finally:
            turns.release()
    else:
        raise StoreUnavailable(
            f"other writers blocked the service's database for {BUSY_TIMEOUT_MS / 1000:.0f} s; nothing was recorded"
        )


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A read transaction on one consistent snapshot.

    Raises:
        StoreUnavailable: the database cannot be reached.
    """
    with _outages(), engine.connect() as connection:
        if connection.dialect.name == "postgresql":  # The only level of SQLite.
            connection.execution_options(isolation_level="REPEATABLE READ")
        with connection.begin():
            yield connection


@contextmanager
def _outages() -> Iterator[None]:
    try:
        yield
    except PoolTimeout as error:
        raise StoreUnavailable(
            "all connections of this service to its database have been in use for 5 s; nothing was recorded"
        ) from error
    except DBAPIError as error:
        # A bare DatabaseError means a damaged file, or one that is not a database.
        unusable = isinstance(error, OperationalError) or type(error) is DatabaseError
        if not (unusable or error.connection_invalidated):
            raise
        why = str(error.orig).partition("\n")[0]
        raise StoreUnavailable(
            f"the service's database is unavailable ({why}); nothing was recorded"
        ) from error


@contextmanager
def exporting(engine: Engine) -> Iterator[Connection]:
    """A read transaction on one consistent snapshot, without a time limit.

    Raises:
        StoreUnavailable: the database cannot be reached.
    """
    with reading(engine) as connection:
        _lift_limits(connection)
        yield connection


@contextmanager
def migrating(engine: Engine) -> Iterator[Connection]:
    """An exclusive write transaction that waits long for others; rolled back on an exception.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    with _begin_exclusive(engine, is_migration=True) as connection:
        yield connection


def upgrade(engine: Engine, revision: str = "head") -> None:
    """Upgrade the tables to `revision`. Replicas that start together do so one after the other.

    Tables of a newer version stay unchanged: migrations only expand, so this version can use them.

    Raises:
        StoreUnavailable: the database is unavailable.
    """
    with migrating(engine) as connection:
        if not is_newer(revision_in(connection)):
            upgrade_to(connection, revision)


def downgrade(engine: Engine, revision: str) -> None:
    """Downgrade the tables to `revision` (`base` removes them, with all data)."""
    with migrating(engine) as connection:
        downgrade_to(connection, revision)


def revision_of(engine: Engine) -> str | None:
    """The revision of the tables; None if there are no tables yet."""
    with reading(engine) as connection:
        return revision_in(connection)


def revision_in(connection: Connection) -> str | None:
    """The revision of the tables, inside a transaction."""
    return MigrationContext.configure(connection).get_current_revision()


def is_known(revision: str) -> bool:
    """Whether this version of Holdfast knows a revision."""
    return revision in _revisions()


def is_newer(revision: str | None) -> bool:
    """Whether a revision is of a newer version; None, an empty database, is not."""
    return revision is not None and not is_known(revision)


def upgrade_to(connection: Connection, revision: str) -> None:
    """Upgrade the tables to a revision inside a transaction of `migrating`."""
    command.upgrade(_alembic(connection), revision)


def downgrade_to(connection: Connection, revision: str) -> None:
    """Downgrade the tables to a revision inside a transaction of `migrating`."""
    command.downgrade(_alembic(connection), revision)


def newest_revision() -> str:
    """The revision that this version of Holdfast needs."""
    return _revisions()[0]


@functools.cache
def _revisions() -> tuple[str, ...]:
    """All revisions, newest first; reading them executes every migration's module."""
    every = ScriptDirectory.from_config(_alembic(None)).walk_revisions()
    return tuple(script.revision for script in every)


def _alembic(connection: Connection | None) -> Config:
    config = Config()
    packaged = resources.files("holdfast") / "_migrations"
    folder = packaged if packaged.is_dir() else Path(__file__).parents[3] / "migrations"
    config.set_main_option("script_location", str(folder))
    config.attributes["connection"] = connection
    return config

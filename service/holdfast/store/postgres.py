"""Connections to PostgreSQL on which every wait is limited, even if the server hangs.

The server limits the wait for a lock, a statement, and a transaction whose client has stopped. A
stopped server enforces no limits, but its kernel still acknowledges packets. So a statement without
a response opens another connection to find out whether the server responds.
"""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable
from threading import Lock
from typing import Any, Final, TypeVar

import psycopg
from psycopg.abc import PQGen
from psycopg.conninfo import make_conninfo
from psycopg.pq import PGconn, PollingStatus
from sqlalchemy import URL, Engine, event

T = TypeVar("T")

CONNECT_S: Final = 5
LOCK_S: Final = 5
"""How long a statement waits for another writer. A lower value fails in bursts; a higher value
blocks requests."""
STATEMENT_S: Final = 30
IDLE_S: Final = 30
"""How long a read transaction may wait for its client."""
WRITER_IDLE_MS: Final = 1500
"""How long a write transaction may wait for its client. A lower value fails on a busy machine; a
higher value lets a replica that stops in a transaction delay all others for longer, including
the limits of jobs."""
PROBE_AFTER_S: Final = 0.5
"""Time without a response after which a statement probes the server. A lower value opens more
connections for slow statements; a higher value notices a hung server later."""
PROBE_S: Final = 1.0
"""Timeout of a probe. A lower value considers a busy server hung; a higher value delays every
response of the service while the server hangs."""
PROBE_TTL_S: Final = 2.0
"""How long the result of a probe is valid for all statements."""
_STATEMENT_MARGIN_S: Final = 5.0
"""Time after STATEMENT_S in which the server should have ended a statement."""
_SELECTOR_EVENTS: Final = {
    PollingStatus.READING: selectors.EVENT_READ,
    PollingStatus.WRITING: selectors.EVENT_WRITE,
}
_KEEPALIVE: Final = {
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "3",
    "tcp_user_timeout": "30000",
}
"""With these options, a connection to a machine that is gone ends within half a minute."""
_OPTIONS: Final = (
    f"-c lock_timeout={LOCK_S}s -c statement_timeout={STATEMENT_S}s"
    f" -c idle_in_transaction_session_timeout={IDLE_S}s"
)


def with_limits(url: URL) -> URL:
    """Add these limits to a URL, except those it sets itself."""
    options = f"{_OPTIONS} {url.query.get('options', '')}"  # The last one counts.
    ours = {"connect_timeout": str(CONNECT_S), **_KEEPALIVE}
    return url.set(query={**ours, **url.query, "options": options.strip()})


def install_probe(engine: Engine) -> None:
    """Create the connections of an engine as `BoundedConnection`, with a common probe."""
    server = PostgresServer()

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: object, _record: object, words: Any, options: Any) -> BoundedConnection:
        def probe() -> None:
            _probe_server(make_conninfo(*words, **{**options, "context": None}))

        return server.open_connection(probe, lambda: BoundedConnection.connect(*words, **options))


def lock_writers(connection: Any, lock: int, *, may_idle: bool) -> None:
    """Wait for the lock of all writers; a client that stops soon loses it, unless it may idle.

    A limit in the URL takes precedence.
    """
    idle_ms = 0 if may_idle else WRITER_IDLE_MS
    connection.exec_driver_sql(
        "SELECT set_config(name, CASE WHEN current_setting(name) = %s THEN %s ELSE current_setting(name) END, true),"
        " pg_advisory_xact_lock(%s) FROM (VALUES ('idle_in_transaction_session_timeout')) AS limits (name)",
        (f"{IDLE_S}s", str(idle_ms), lock),
    )


def without_limit(connection: Any) -> None:
    """Remove the time limits of this transaction, as for migrations."""
    connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
    connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
    driver = connection.connection.driver_connection
    assert isinstance(driver, BoundedConnection)
    driver.max_statement_s = None


class PostgresServer:
    """Whether one server responds, as far as is known."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_silent = False
        self._probed_s = -PROBE_TTL_S

    @property
    def was_silent(self) -> bool:
        """Whether the server did not respond to the last probe."""
        return self._is_silent

    def open_connection(
        self, probe: Callable[[], None], connect: Callable[[], BoundedConnection]
    ) -> BoundedConnection:
        """Open a connection.

        Raises:
            psycopg.OperationalError: the server is unavailable.
        """
        if self._is_silent and self.is_silent(probe):
            raise psycopg.errors.ConnectionTimeout("the server does not respond")
        connection = connect()
        connection.server, connection.probe = self, probe
        return connection

    def is_silent(self, probe: Callable[[], None]) -> bool:
        """Whether a new connection gets no response now; one thread probes for all."""
        if not self._lock.acquire(blocking=not self._is_silent):
            return True  # It did not respond before, and another thread is probing it.
        try:
            if time.monotonic() - self._probed_s >= PROBE_TTL_S:
                self._is_silent = _is_unresponsive(probe)
                self._probed_s = time.monotonic()
            return self._is_silent
        finally:
            self._lock.release()


def _probe_server(conninfo: str) -> None:
    """Connect within PROBE_S, which is below the least time limit of `psycopg.connect`.

    Raises:
        psycopg.errors.ConnectionTimeout: the server does not respond. A refusal is a response.
    """
    deadline_s = time.monotonic() + PROBE_S
    connection = PGconn.connect_start(conninfo.encode())
    try:
        while wanted := _SELECTOR_EVENTS.get(PollingStatus(connection.connect_poll())):
            with selectors.DefaultSelector() as selector:
                selector.register(connection.socket, wanted)
                if not selector.select(max(0, deadline_s - time.monotonic())):
                    raise psycopg.errors.ConnectionTimeout
    finally:
        connection.finish()


def _is_unresponsive(probe: Callable[[], None]) -> bool:
    try:
        probe()
    except psycopg.errors.ConnectionTimeout:
        return True
    except psycopg.Error:
        pass  # A refusal is a response.
    return False


class BoundedConnection(psycopg.Connection[Any]):
    """A connection on which every wait is limited."""

    server: PostgresServer | None = None
    """None while the connection is opened, which has a limit of its own."""
    probe: Callable[[], None]
    max_statement_s: float | None = STATEMENT_S + _STATEMENT_MARGIN_S
    """Time limit of one statement; None: as long as the server responds to others."""

    def wait(self, gen: PQGen[T], *how: Any, **more: Any) -> T:
        """Run `gen` and return its result.

        Raises:
            psycopg.OperationalError: the server does not respond; the connection is closed.
        """
        return super().wait(self._bounded(gen), *how, **more)

    def _bounded(self, gen: PQGen[T]) -> PQGen[T]:
        started_s = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and self._is_timed_out(time.monotonic() - started_s):
                    gen.close()
                    self.pgconn.finish()
                    raise psycopg.OperationalError("the server does not respond")
                wanted = gen.send(ready)
        except StopIteration as end:
            value: T = end.value
            return value

    def _is_timed_out(self, waited_s: float) -> bool:
        if self.server is None:
            return False
        if self.max_statement_s is not None and waited_s >= self.max_statement_s:
            return True
        is_suspect = waited_s >= PROBE_AFTER_S or self.server.was_silent
        return is_suspect and self.server.is_silent(self.probe)

"""Connections to PostgreSQL whose every wait has an end, also where the server accepts connections and answers nothing.

The server ends what takes it too long: waiting for a lock, a statement, a transaction whose client has stopped. A server
that is stopped itself ends nothing, and its kernel still acknowledges every packet. So a statement without an answer asks,
by a connection of its own, whether the server answers at all.
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
"""How long a statement waits for another writer. A lower value fails under a burst; a higher value hangs requests."""
STATEMENT_S: Final = 30
IDLE_S: Final = 30
"""How long a transaction that reads may wait for its client."""
WRITER_IDLE_MS: Final = 1500
"""How long one that writes may. A lower value ends those of a busy machine; a higher value lets a replica that stops inside a
write delay all others for longer, the limits of jobs among them."""
PROBE_AFTER_S: Final = 0.5
"""After so long without an answer, a statement asks whether the server answers at all. A lower value opens more connections
for slow statements; a higher value notices a silent server later."""
PROBE_S: Final = 1.0
"""How long that question waits. A lower value takes a busy server for a silent one; a higher value delays every answer of the
service while the server is silent."""
PROBE_TTL_S: Final = 2.0
"""How long its answer is believed, so that one statement asks for all."""
_STATEMENT_MARGIN_S: Final = 5.0
"""How long after STATEMENT_S the answer of a server that should have ended a statement is waited for."""
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
"""By these a connection ends within half a minute where the other machine is gone."""
_OPTIONS: Final = (
    f"-c lock_timeout={LOCK_S}s -c statement_timeout={STATEMENT_S}s"
    f" -c idle_in_transaction_session_timeout={IDLE_S}s"
)


def with_limits(url: URL) -> URL:
    """The URL with these limits. What it already says about them stays."""
    options = f"{_OPTIONS} {url.query.get('options', '')}"  # PostgreSQL takes the last one.
    ours = {"connect_timeout": str(CONNECT_S), **_KEEPALIVE}
    return url.set(query={**ours, **url.query, "options": options.strip()})


def install_probe(engine: Engine) -> None:
    """Have an engine connect by `Patient` connections, which share what is known of their server."""
    server = PostgresServer()

    @event.listens_for(engine, "do_connect")
    def _connect(_dialect: object, _record: object, words: Any, options: Any) -> BoundedConnection:
        def probe() -> None:
            _probe_server(make_conninfo(*words, **{**options, "context": None}))

        return server.open_connection(probe, lambda: BoundedConnection.connect(*words, **options))


def lock_writers(connection: Any, lock: int, *, may_idle: bool) -> None:
    """Wait for the lock of all writers. A client that stops while it has the lock loses it soon, unless it may idle.

    A limit that the URL names holds instead of ours.
    """
    idle_ms = 0 if may_idle else WRITER_IDLE_MS
    connection.exec_driver_sql(
        "SELECT set_config(name, CASE WHEN current_setting(name) = %s THEN %s ELSE current_setting(name) END, true),"
        " pg_advisory_xact_lock(%s) FROM (VALUES ('idle_in_transaction_session_timeout')) AS limits (name)",
        (f"{IDLE_S}s", str(idle_ms), lock),
    )


def without_limit(connection: Any) -> None:
    """Let the statements of this transaction take as long as they need, as migrations may."""
    connection.exec_driver_sql("SET LOCAL lock_timeout = 0")
    connection.exec_driver_sql("SET LOCAL statement_timeout = 0")
    driver = connection.connection.driver_connection
    assert isinstance(driver, BoundedConnection)
    driver.max_statement_s = None


class PostgresServer:
    """What is known of one server: whether it answers at all."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._is_silent = False
        self._probed_s = -PROBE_TTL_S

    @property
    def was_silent(self) -> bool:
        """Whether it was silent when it was last asked."""
        return self._is_silent

    def open_connection(
        self, probe: Callable[[], None], connect: Callable[[], BoundedConnection]
    ) -> BoundedConnection:
        """A new connection.

        Raises:
            psycopg.OperationalError: there is none to be had.
        """
        if self._is_silent and self.is_silent(probe):
            raise psycopg.errors.ConnectionTimeout("the server does not answer")
        connection = connect()
        connection.server, connection.probe = self, probe
        return connection

    def is_silent(self, probe: Callable[[], None]) -> bool:
        """Whether a new connection gets no answer now. One thread asks, and the others take its word."""
        if not self._lock.acquire(blocking=not self._is_silent):
            return True  # It was, and another thread is asking whether it still is.
        try:
            if time.monotonic() - self._probed_s >= PROBE_TTL_S:
                self._is_silent = _has_no_answer(probe)
                self._probed_s = time.monotonic()
            return self._is_silent
        finally:
            self._lock.release()


def _probe_server(conninfo: str) -> None:
    """Connect within PROBE_S, which is shorter than a time limit of `psycopg.connect` may be.

    Raises:
        psycopg.errors.ConnectionTimeout: the server does not answer. A refusal is an answer.
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


def _has_no_answer(probe: Callable[[], None]) -> bool:
    try:
        probe()
    except psycopg.errors.ConnectionTimeout:
        return True
    except psycopg.Error:
        pass  # A refusal is an answer.
    return False


class BoundedConnection(psycopg.Connection[Any]):
    """A connection on which no wait lasts for ever."""

    server: PostgresServer | None = None
    """None while it is opened, which has a limit of its own."""
    probe: Callable[[], None]
    max_statement_s: float | None = STATEMENT_S + _STATEMENT_MARGIN_S
    """How long one statement may take in all; None: as long as the server answers others."""

    def wait(self, gen: PQGen[T], *how: Any, **more: Any) -> T:
        """What `gen` returns.

        Raises:
            psycopg.OperationalError: the server does not answer; the connection is closed.
        """
        return super().wait(self._bounded(gen), *how, **more)

    def _bounded(self, gen: PQGen[T]) -> PQGen[T]:
        begun_s = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if not ready and self._is_timed_out(time.monotonic() - begun_s):
                    gen.close()
                    self.pgconn.finish()
                    raise psycopg.OperationalError("the server does not answer")
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

"""An unresponsive PostgreSQL and suspended replicas: waits are bounded, and work resumes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest
from holdfast.errors import StoreUnavailable
from holdfast.store import postgres
from holdfast.store.database import open_database, reading, upgrade, writing
from holdfast.store.journal import Journal
from sqlalchemy import Engine, text
from support.events import launched, submitted
from support.fakes import FixedClock
from support.postgres import PATIENT, Cluster, with_options
from worker.support.run_driver import wait_until

OpenEngine = Callable[[str], Engine]
LONGEST_S = 60
"""Time limit of a process that should finish at once."""
LIMITS = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout")


def _limits(engine: Engine) -> list[str]:
    with reading(engine) as connection:
        return [connection.execute(text(f"SHOW {name}")).scalar_one() for name in LIMITS]


def test_every_wait_at_postgresql_has_a_limit(cluster: Cluster, open_engine: OpenEngine) -> None:
    engine = open_engine(cluster.new_database())

    assert _limits(engine) == ["5s", "30s", "30s"]
    assert engine.url.query["connect_timeout"] == "5"
    assert engine.url.query["keepalives_idle"] == "10"


def test_limits_in_the_url_apply(cluster: Cluster, open_engine: OpenEngine) -> None:
    url = with_options(cluster.new_database(), "lock_timeout=2s")

    engine = open_engine(f"{url}&connect_timeout=7")

    assert _limits(engine) == ["2s", "30s", "30s"]
    assert engine.url.query["connect_timeout"] == "7"


@pytest.mark.parametrize(
    ("named", "limit"), [([], "1500ms"), (["idle_in_transaction_session_timeout=7s"], "7s")]
)
def test_a_writer_may_idle_as_long_as_the_url_names(
    cluster: Cluster, open_engine: OpenEngine, named: list[str], limit: str
) -> None:
    engine = open_engine(with_options(cluster.new_pattern_copy(), *named))

    with writing(engine) as connection:
        assert connection.execute(text(f"SHOW {LIMITS[-1]}")).scalar_one() == limit


def test_a_migration_waits_longer_than_a_writer(cluster: Cluster, open_engine: OpenEngine) -> None:
    url = cluster.new_pattern_copy()
    impatient = open_engine(with_options(url, "lock_timeout=10ms"))
    others = open_engine(with_options(url, PATIENT))
    waits = text(
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory'"
        " AND datname = current_database() AND clock_timestamp() - query_start > interval '50 ms'"
    )

    def is_waiting() -> bool:
        with reading(others) as connection:
            return bool(connection.execute(waits).scalar())

    with ThreadPoolExecutor(1) as pool:
        with writing(others):
            migrated = pool.submit(upgrade, impatient)
            wait_until(is_waiting)
        migrated.result()


def test_a_writer_that_waits_too_long_is_refused(cluster: Cluster, open_engine: OpenEngine) -> None:
    url = cluster.new_pattern_copy()
    impatient = open_engine(with_options(url, "lock_timeout=10ms"))

    with (
        writing(open_engine(with_options(url, PATIENT))),
        pytest.raises(StoreUnavailable, match=r"lock timeout\); nothing was recorded"),
        writing(impatient),
    ):
        pass

    assert Journal(impatient, FixedClock()).submit("job-1", submitted()).seq == 1


def _stop_inside_a_write(url: str) -> None:
    """Write, stop, and exit with 0 after continuing if the write is then refused with a message."""
    try:
        with writing(open_database(url)) as connection:
            connection.execute(text("INSERT INTO report_marks VALUES ('job-1', 1, 1)"))
            os.kill(os.getpid(), signal.SIGSTOP)
            connection.execute(text("INSERT INTO report_marks VALUES ('job-1', 2, 1)"))
    except StoreUnavailable:
        os._exit(0)
    os._exit(1)


def test_a_replica_stopped_inside_a_write_lets_others_write(
    cluster: Cluster, open_engine: OpenEngine, clock: FixedClock
) -> None:
    url = cluster.new_pattern_copy()
    replica = multiprocessing.get_context("fork").Process(target=_stop_inside_a_write, args=(url,))
    replica.start()
    assert replica.pid
    os.waitpid(replica.pid, os.WUNTRACED)
    journal = Journal(open_engine(url), clock)

    try:
        job = journal.submit("job-1", submitted())
        os.kill(replica.pid, signal.SIGCONT)
        replica.join(LONGEST_S)
    finally:
        replica.kill()  # The test process joins it at its exit, and a suspended process never ends.

    assert replica.exitcode == 0
    assert journal.append(job, [launched(1)]) == journal.read("job-1")
    assert journal.marks("job-1") == {}


def test_a_silent_postgresql_is_an_error_and_then_continues(
    cluster: Cluster, open_engine: OpenEngine, clock: FixedClock
) -> None:
    engine = open_engine(cluster.new_pattern_copy())
    journal = Journal(engine, clock)
    job = journal.submit("job-1", submitted())

    with cluster.frozen():
        with pytest.raises(StoreUnavailable, match=r"does not respond\); nothing was recorded"):
            journal.append(job, [launched(1)])
        with pytest.raises(StoreUnavailable, match="does not respond"):
            journal.read("job-1")

    wait_until(lambda: _can_be_read(journal))
    assert journal.append(job, [launched(1)]) == journal.read("job-1")


def _can_be_read(journal: Journal) -> bool:
    with suppress(StoreUnavailable):
        return bool(journal.read("job-1"))
    return False


def test_waiters_share_one_probe_of_a_silent_server() -> None:
    asked: list[int] = []

    def probe() -> None:
        asked.append(1)
        raise postgres.psycopg.errors.ConnectionTimeout

    server = postgres.PostgresServer()

    assert [server.is_silent(probe) for _ in range(64)] == [True] * 64
    assert len(asked) == 1


def test_a_server_that_refuses_connections_is_not_silent() -> None:
    def probe() -> None:
        raise postgres.psycopg.OperationalError("sorry, too many clients already")

    assert not postgres.PostgresServer().is_silent(probe)

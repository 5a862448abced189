"""The audit log: written with each change and immutable; verification locates tampering."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from holdfast.background.audit_anchor import AuditAnchor
from holdfast.background.job_retention import RETENTION
from holdfast.domain.access.audit import Actor, ChainHead, digest
from holdfast.errors import StaleWrite
from holdfast.store.audit_log import AuditLog
from holdfast.store.database import downgrade, upgrade
from holdfast.store.journal import Journal
from holdfast.store.tables.identity import audit as table
from holdfast.store.tables.identity import audit_anchors
from sqlalchemy import Connection, Engine, delete, event, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError
from support.events import submitted
from support.fakes import FixedClock

ADA = Actor(name="ada", token_id="t1", address="192.0.2.1", request_id="r1")


@pytest.fixture
def audit(engine: Engine, clock: FixedClock) -> AuditLog:
    """A log of five rows."""
    log = AuditLog(engine, clock)
    for n in range(1, 6):
        clock.advance(1)
        log.record(
            ADA.audit_action("job.cancel", f"job-{n}", {"state": "training"}, {"reason": f"é {n}"})
        )
    return log


def tamper(engine: Engine, change: Callable[[Connection], Any]) -> None:
    """Change the log like an attacker with all permissions on the database."""
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("ALTER TABLE audit DISABLE TRIGGER ALL"))
        else:
            triggers = (
                "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'audit'"
            )
            for name in connection.execute(text(triggers)).scalars().all():
                connection.execute(text(f"DROP TRIGGER {name}"))
        change(connection)


def row_of(connection: Connection, seq: int) -> dict[str, Any]:
    return dict(connection.execute(select(table).where(table.c.seq == seq)).mappings().one())


def test_untampered_log_verifies(audit: AuditLog) -> None:
    decision = audit.verify([audit.head()])

    assert (decision.broken_seq, decision.problem) == (None, "")
    assert decision.head == audit.head()
    assert decision.head.seq == 5


@pytest.mark.parametrize("statement", ["UPDATE audit SET actor = 'eve'", "DELETE FROM audit"])
def test_the_database_refuses_to_change_or_remove(
    audit: AuditLog, engine: Engine, statement: str
) -> None:
    with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
        connection.execute(text(statement))

    assert audit.verify().head.seq == 5


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_postgresql_refuses_to_truncate_the_audit_log(audit: AuditLog, engine: Engine) -> None:
    with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
        connection.execute(text("TRUNCATE audit"))


@pytest.mark.parametrize(
    "change",
    [
        {"actor": "eve"},
        {"token_id": None},
        {"address": "192.0.2.2"},
        {"request_id": ""},
        {"action": "job.submit"},
        {"target": "job-9"},
        {"before": None},
        {"after": {"reason": "e 3"}},
        {"hash": "0" * 64},
    ],
)
def test_a_changed_row_is_named(audit: AuditLog, engine: Engine, change: dict[str, Any]) -> None:
    tamper(engine, lambda c: c.execute(update(table).where(table.c.seq == 3).values(**change)))

    decision = audit.verify()

    assert (decision.broken_seq, decision.head.seq) == (3, 2)
    assert "row 3 was changed" in decision.problem


def test_a_removed_row_is_named(audit: AuditLog, engine: Engine) -> None:
    tamper(engine, lambda c: c.execute(delete(table).where(table.c.seq == 3)))

    decision = audit.verify()

    assert "row 3 is missing" in decision.problem
    assert decision.head.seq == 2


def test_swapped_rows_are_named(audit: AuditLog, engine: Engine) -> None:
    def swap(connection: Connection) -> None:
        for old, new in ((2, 99), (3, 2), (99, 3)):
            connection.execute(update(table).where(table.c.seq == old).values(seq=new))

    tamper(engine, swap)

    assert audit.verify().broken_seq == 2


@pytest.mark.parametrize("seq", [-3, 0, 6])
def test_inserted_row_is_named(audit: AuditLog, engine: Engine, seq: int) -> None:
    tamper(engine, lambda c: c.execute(insert(table).values(**{**row_of(c, 3), "seq": seq})))

    assert audit.verify().broken_seq == seq


def test_recomputed_hash_breaks_the_following_row(audit: AuditLog, engine: Engine) -> None:
    """An attacker who recomputes the hash has to do so for all rows that follow."""
    entry = audit.page(limit=1, before=4)[0]

    def forge(connection: Connection) -> None:
        forged = entry.audit_action.actor.audit_action("job.cancel", "job-3", None, None)
        hash_ = digest(entry.previous_hash, 3, entry.at, forged)
        row = update(table).where(table.c.seq == 3)
        connection.execute(row.values(before=None, after=None, hash=hash_))

    tamper(engine, forge)

    decision = audit.verify()
    assert decision.broken_seq == 4
    assert "does not follow" in decision.problem


def test_truncated_tail_is_detected_with_a_saved_head(audit: AuditLog, engine: Engine) -> None:
    kept = audit.head()

    tamper(engine, lambda c: c.execute(delete(table).where(table.c.seq > 3)))

    assert audit.verify().broken_seq is None
    decision = audit.verify([kept])
    assert decision.broken_seq == 4
    assert "rows 4 to 5 are missing" in decision.problem


def test_rewritten_log_is_detected_with_a_saved_head(audit: AuditLog, engine: Engine) -> None:
    kept = audit.head()
    tamper(engine, lambda c: c.execute(delete(table).where(table.c.seq > 3)))
    for n in (4, 5, 6):
        audit.record(ADA.audit_action("job.cancel", f"other-{n}"))

    assert audit.verify().broken_seq is None
    assert audit.verify([kept]).broken_seq == 5


def test_anchor_keeps_its_head_when_the_log_is_rewritten(
    audit: AuditLog, engine: Engine, tmp_path: Path
) -> None:
    audit_anchor = AuditAnchor(tmp_path / "audit-head", audit)
    before = audit_anchor.read()
    audit_anchor.update()
    kept = audit_anchor.read()
    tamper(engine, lambda c: c.execute(delete(table).where(table.c.seq > 3)))
    for n in range(4):
        audit.record(ADA.audit_action("job.cancel", f"other-{n}"))

    audit_anchor.update()

    assert (before, kept.seq) == (ChainHead(), 5)
    assert audit_anchor.read() == kept
    assert audit.verify([audit_anchor.read()]).broken_seq == 5


def test_audit_entry_and_event_are_written_atomically(engine: Engine, clock: FixedClock) -> None:
    journal, audit = Journal(engine, clock), AuditLog(engine, clock)
    journal.submit("job-1", submitted(), actor=ADA)

    with pytest.raises(StaleWrite):
        journal.submit("job-1", submitted(), actor=ADA)

    (entry,) = audit.page(limit=9)
    assert (entry.audit_action.action, entry.audit_action.target) == ("job.submit", "job-1")
    assert entry.audit_action.after == {"project": "default", "owner": ""}
    assert entry.audit_action.actor == ADA


SQLITE = pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
REST = "at, 'eve', token_id, address, request_id, action, target, before, after, previous_hash, hash FROM audit WHERE seq = 2"


@SQLITE
@pytest.mark.parametrize(
    "insert_",
    [
        f"INSERT OR REPLACE INTO audit SELECT seq, {REST}",
        f"INSERT OR REPLACE INTO audit SELECT '2', {REST}",
        f"INSERT OR REPLACE INTO audit SELECT 2.0, {REST}",
        f"INSERT INTO audit SELECT seq, {REST} ON CONFLICT (seq) DO UPDATE SET actor = 'eve'",
        # By the row's other key, which is in no list of columns.
        f"INSERT OR REPLACE INTO audit (rowid, {', '.join(table.columns.keys())}) SELECT 2, 6, {REST}",
        f"INSERT OR REPLACE INTO audit (rowid, {', '.join(table.columns.keys())}) SELECT '2', 6, {REST}",
        f"INSERT INTO audit (rowid, {', '.join(table.columns.keys())}) SELECT -1, 6, {REST}",
        f"INSERT INTO audit SELECT x'ff', {REST}",
        f"INSERT INTO audit SELECT 'six', {REST}",
    ],
)
def test_no_row_is_replaced_by_an_insert(audit: AuditLog, engine: Engine, insert_: str) -> None:
    before = audit.page(limit=9)

    with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
        connection.execute(text(insert_))
    audit.record(ADA.audit_action("job.cancel", "job-6"))

    assert audit.page(limit=9)[1:] == before
    assert audit.verify([audit.head()]).head.seq == 6


@SQLITE
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT OR REPLACE INTO audit_anchors SELECT seq, 'eve', at FROM audit_anchors",
        "INSERT OR REPLACE INTO audit_anchors (rowid, seq, hash, at) SELECT rowid, 99, hash, at FROM audit_anchors",
        "INSERT INTO audit_anchors (rowid, seq, hash, at) SELECT -1, 99, hash, at FROM audit_anchors",
        "INSERT INTO audit_anchors SELECT x'ff', hash, at FROM audit_anchors",
        "UPDATE audit_anchors SET hash = 'eve'",
        "DELETE FROM audit_anchors",
    ],
)
def test_anchor_is_not_replaced(audit: AuditLog, engine: Engine, clock: FixedClock, statement: str) -> None:  # fmt: skip
    grow(audit, clock, 10)
    audit.expire(clock.now() - timedelta(days=5), RETENTION)
    before = audit.verify().anchor

    with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
        connection.execute(text(statement))
    grow(audit, clock, 10)
    audit.expire(clock.now() - timedelta(days=5), RETENTION)

    after = audit.verify([before])
    assert (after.problem, after.anchor.seq > before.seq > 0) == ("", True)


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE audit_anchors SET hash = 'eve'",
        "DELETE FROM audit_anchors",
        "TRUNCATE audit_anchors",
        "INSERT INTO audit_anchors SELECT * FROM audit_anchors ON CONFLICT (seq) DO UPDATE SET hash = 'eve'",
    ],
)
def test_postgresql_refuses_to_change_an_anchor(audit: AuditLog, engine: Engine, clock: FixedClock, statement: str) -> None:  # fmt: skip
    grow(audit, clock, 10)
    audit.expire(clock.now() - timedelta(days=5), RETENTION)

    with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
        connection.execute(text(statement))

    assert audit.verify().anchor.seq > 0


def test_dropped_triggers_are_restored(engine: Engine) -> None:
    names = "SELECT name FROM sqlite_master WHERE type = 'trigger' ORDER BY name"
    if engine.dialect.name == "postgresql":
        names = "SELECT tgname FROM pg_trigger WHERE NOT tgisinternal ORDER BY tgname"

    def triggers() -> list[str]:
        with engine.connect() as connection:
            return list(connection.execute(text(names)).scalars())

    newest = triggers()
    downgrade(engine, "0018")
    older = triggers()
    upgrade(engine)

    assert set(older) < set(newest)
    assert triggers() == newest


ODD: dict[str, str] = {
    "bytes": "x'ff00'",
    "text that is not UTF-8": "CAST(x'61ff62' AS TEXT)",
    "NULL": "NULL",
    "number": "1.5",
    "JSON of a list": "'[1]'",
    "JSON without an end": "'['",
    "JSON nested too deeply": f"'{'[' * 200_000}{']' * 200_000}'",
}


@SQLITE
@pytest.mark.parametrize("column", table.columns.keys())
def test_value_of_another_type_is_found_and_named(audit: AuditLog, engine: Engine, clock: FixedClock, column: str) -> None:  # fmt: skip
    def lift_constraints(connection: Connection) -> None:
        connection.execute(text("CREATE TABLE free AS SELECT * FROM audit"))
        connection.execute(text("DROP TABLE audit"))
        connection.execute(text("ALTER TABLE free RENAME TO audit"))

    tamper(engine, lift_constraints)
    written = audit.page(limit=9)
    with engine.connect() as connection:
        kept = connection.execute(text(f"SELECT {column} FROM audit WHERE seq = 3")).scalar()

    broken = 4 if column == "seq" else 3  # Row 4 does not follow row 2.
    for odd in ODD.values():
        with engine.begin() as connection:
            connection.execute(text(f"UPDATE audit SET {column} = {odd} WHERE rowid = 3"))
        decision, page, head = audit.verify([audit.head()]), audit.page(limit=9), audit.head()
        audit.expire(clock.now() - timedelta(days=5), RETENTION)
        with engine.begin() as connection:
            change = text(f"UPDATE audit SET {column} = :kept WHERE rowid = 3")
            connection.execute(change, {"kept": kept})

        is_same = odd == "NULL" and kept is None
        assert (decision.broken_seq, decision.head.seq) == (
            (None, 5) if is_same else (broken, 2)
        ), odd
        assert head.seq == 5
        assert [row.seq for row in page] == ([5, 4, 2, 1] if column == "seq" else [5, 4, 3, 2, 1])
        assert [row for row in page if row.seq != 3] == [row for row in written if row.seq != 3]
        if not is_same:
            assert ("row 3 was changed" in decision.problem) == (column != "seq"), odd
    assert audit.verify([audit.head()]).problem == ""


@SQLITE
@pytest.mark.parametrize("odd", ["x'ff00'", "'six'", "6.5"])
def test_row_without_an_integer_as_number_is_named(
    audit: AuditLog, engine: Engine, odd: str
) -> None:
    tamper(engine, lambda connection: connection.execute(text(f"INSERT INTO audit SELECT {odd}, {REST}")))  # fmt: skip

    decision = audit.verify([audit.head()])
    audit.record(ADA.audit_action("job.cancel", "job-6"))

    assert decision.broken_seq == 6
    assert (
        decision.problem
        == "1 rows have a seq that is not an integer: they were inserted or changed manually"
    )
    assert [row.seq for row in audit.page(limit=9)] == [6, 5, 4, 3, 2, 1]


@SQLITE
@pytest.mark.parametrize("column", ["seq", "hash", "at"])
def test_anchor_of_another_type_ends_in_a_verdict(audit: AuditLog, engine: Engine, clock: FixedClock, column: str) -> None:  # fmt: skip
    grow(audit, clock, 10)
    audit.expire(clock.now() - timedelta(days=5), RETENTION)
    with engine.begin() as connection:
        connection.execute(text("DROP TRIGGER audit_anchors_are_not_changed"))
        connection.execute(text(f"UPDATE audit_anchors SET {column} = x'ff00'"))

    decision = audit.verify([audit.head()])

    assert audit.page(limit=1)[0].seq == audit.head().seq
    assert (decision.broken_seq is None) == (column == "at")
    if column == "seq":
        assert "row 1 is missing" in decision.problem


DAY_S = 86_400


def grow(audit: AuditLog, clock: FixedClock, days: int) -> None:
    """One row per day."""
    for day in range(days):
        clock.advance(DAY_S)
        audit.record(ADA.audit_action("job.cancel", f"day-{day}"))


def test_log_is_sound_after_old_rows_expired(audit: AuditLog, engine: Engine, clock: FixedClock) -> None:  # fmt: skip
    first = audit.head()
    grow(audit, clock, 10)
    later = audit.head()

    audit.expire(clock.now() - timedelta(days=5), RETENTION)
    decision = audit.verify([first, later])
    grow(audit, clock, 10)
    audit.expire(clock.now() - timedelta(days=5), RETENTION)
    again = audit.verify([later, audit.head()])

    assert (decision.problem, decision.anchor.seq, decision.head.seq) == ("", 9, 16)
    assert (again.problem, again.head) == ("", audit.head())
    assert again.anchor.seq > 15
    assert audit.page(limit=99)[-1].seq == again.anchor.seq + 1
    with engine.connect() as connection:
        assert len(connection.execute(select(table.c.seq)).all()) == again.head.seq - again.anchor.seq  # fmt: skip


def test_rows_expire_at_most_once_a_day(audit: AuditLog, clock: FixedClock) -> None:
    grow(audit, clock, 10)

    for _ in range(5):
        audit.expire(clock.now() - timedelta(days=5), RETENTION)

    assert [row.audit_action.action for row in audit.page(limit=99)].count("audit.expire") == 1


def test_manually_truncated_beginning_is_named(audit: AuditLog, engine: Engine, clock: FixedClock) -> None:  # fmt: skip
    with engine.begin() as connection:
        anchor = {"seq": 3, "hash": row_of(connection, 3)["hash"], "at": clock.now()}
        connection.execute(insert(audit_anchors).values(**anchor))
        connection.execute(delete(table).where(table.c.seq <= 3))

    decision = audit.verify()

    assert (
        decision.problem == "rows 1 to 3 are missing, and no row records their removal by retention"
    )


def test_saved_head_that_differs_from_the_anchor_is_named(
    audit: AuditLog, clock: FixedClock
) -> None:
    grow(audit, clock, 10)
    audit.expire(clock.now() - timedelta(days=5), RETENTION)
    anchor = audit.verify().anchor

    assert "does not match the kept head" in audit.verify([ChainHead(seq=anchor.seq, hash="1" * 64)]).problem  # fmt: skip
    assert audit.verify([anchor]).problem == ""


def test_interrupted_expiry_leaves_a_sound_log(audit: AuditLog, engine: Engine, clock: FixedClock) -> None:  # fmt: skip
    grow(audit, clock, 10)

    def crash(connection: Connection, cursor: Any, statement: str, *_: Any) -> None:
        if statement.startswith("DELETE"):
            raise MemoryError("killed")

    event.listen(engine, "before_cursor_execute", crash)
    with pytest.raises(MemoryError):
        audit.expire(clock.now() - timedelta(days=5), RETENTION)
    event.remove(engine, "before_cursor_execute", crash)
    between = audit.verify()
    audit.expire(clock.now() - timedelta(days=5), RETENTION)

    assert between.problem == audit.verify().problem == ""
    assert audit.page(limit=99)[-1].seq == between.anchor.seq + 1
    with engine.connect() as connection:
        assert connection.execute(select(func.min(table.c.seq))).scalar() == between.anchor.seq + 1


def test_kept_head_follows_a_log_that_expired(audit: AuditLog, clock: FixedClock, tmp_path: Path) -> None:  # fmt: skip
    audit_anchor = AuditAnchor(tmp_path / "head", audit)
    audit_anchor.update()
    grow(audit, clock, 10)
    audit.expire(clock.now() - timedelta(days=5), RETENTION)

    audit_anchor.update()

    assert audit_anchor.read() == audit.head()

"""The audit log: written with what it tells, changed by nobody, and where somebody did, it says where."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fakes import FixedClock
from histories import submitted
from holdfast.custody import Custodian
from holdfast.domain.deeds import Doer, Head, digest
from holdfast.errors import StaleWrite
from holdfast.store.audit import Audit
from holdfast.store.journal import Journal
from holdfast.store.people_schema import audit as table
from sqlalchemy import Connection, Engine, delete, insert, select, text, update
from sqlalchemy.exc import DBAPIError

ADA = Doer(name="ada", token_id="t1", address="192.0.2.1", request_id="r1")


@pytest.fixture
def audit(engine: Engine, clock: FixedClock) -> Audit:
    """A log of five rows."""
    log = Audit(engine, clock)
    for n in range(1, 6):
        clock.advance(1)
        log.note(ADA.did("job.cancel", f"job-{n}", {"state": "training"}, {"reason": f"é {n}"}))
    return log


def tamper(engine: Engine, change: Callable[[Connection], Any]) -> None:
    """Change the log as somebody does who may do everything with the database."""
    with engine.begin() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(text("ALTER TABLE audit DISABLE TRIGGER ALL"))
        else:
            for name in ("audit_is_not_changed", "audit_is_not_removed"):
                connection.execute(text(f"DROP TRIGGER {name}"))
        change(connection)


def row_of(connection: Connection, seq: int) -> dict[str, Any]:
    return dict(connection.execute(select(table).where(table.c.seq == seq)).mappings().one())


def test_what_nobody_touched_is_sound(audit: Audit) -> None:
    verdict = audit.verify([audit.head()])

    assert (verdict.broken_seq, verdict.problem) == (None, "")
    assert verdict.head == audit.head()
    assert verdict.head.seq == 5


@pytest.mark.parametrize("statement", ["UPDATE audit SET actor = 'eve'", "DELETE FROM audit"])
def test_the_database_refuses_to_change_or_remove(
    audit: Audit, engine: Engine, statement: str
) -> None:
    with pytest.raises(DBAPIError, match="append-only"), engine.begin() as connection:
        connection.execute(text(statement))

    assert audit.verify().head.seq == 5


@pytest.mark.parametrize("database_url", ["postgresql"], indirect=True)
def test_postgresql_refuses_to_empty_it(audit: Audit, engine: Engine) -> None:
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
def test_a_changed_row_is_named(audit: Audit, engine: Engine, change: dict[str, Any]) -> None:
    tamper(engine, lambda c: c.execute(update(table).where(table.c.seq == 3).values(**change)))

    verdict = audit.verify()

    assert (verdict.broken_seq, verdict.head.seq) == (3, 2)
    assert "row 3 was changed" in verdict.problem


def test_a_removed_row_is_named(audit: Audit, engine: Engine) -> None:
    tamper(engine, lambda c: c.execute(delete(table).where(table.c.seq == 3)))

    verdict = audit.verify()

    assert "row 3 is missing" in verdict.problem
    assert verdict.head.seq == 2


def test_rows_that_changed_places_are_named(audit: Audit, engine: Engine) -> None:
    def swap(connection: Connection) -> None:
        for old, new in ((2, 99), (3, 2), (99, 3)):
            connection.execute(update(table).where(table.c.seq == old).values(seq=new))

    tamper(engine, swap)

    assert audit.verify().broken_seq == 2


@pytest.mark.parametrize("seq", [-3, 0, 6])
def test_a_row_that_was_put_in_is_named(audit: Audit, engine: Engine, seq: int) -> None:
    tamper(engine, lambda c: c.execute(insert(table).values(**{**row_of(c, 3), "seq": seq})))

    assert audit.verify().broken_seq == seq


def test_a_row_with_a_hash_of_its_own_breaks_the_one_after_it(audit: Audit, engine: Engine) -> None:
    """Whoever computes the hash anew has to do so for all rows that follow."""
    entry = audit.page(limit=1, before=4)[0]

    def forge(connection: Connection) -> None:
        forged = entry.deed.doer.did("job.cancel", "job-3", None, None)
        hash_ = digest(entry.previous_hash, 3, entry.at, forged)
        row = update(table).where(table.c.seq == 3)
        connection.execute(row.values(before=None, after=None, hash=hash_))

    tamper(engine, forge)

    verdict = audit.verify()
    assert verdict.broken_seq == 4
    assert "does not follow" in verdict.problem


def test_a_tail_that_was_cut_off_is_seen_by_who_kept_the_head(audit: Audit, engine: Engine) -> None:
    kept = audit.head()

    tamper(engine, lambda c: c.execute(delete(table).where(table.c.seq > 3)))

    assert audit.verify().broken_seq is None
    verdict = audit.verify([kept])
    assert verdict.broken_seq == 4
    assert "rows 4 to 5 are gone" in verdict.problem


def test_a_log_that_was_made_anew_is_seen_by_who_kept_the_head(
    audit: Audit, engine: Engine
) -> None:
    kept = audit.head()
    tamper(engine, lambda c: c.execute(delete(table).where(table.c.seq > 3)))
    for n in (4, 5, 6):
        audit.note(ADA.did("job.cancel", f"other-{n}"))

    assert audit.verify().broken_seq is None
    assert audit.verify([kept]).broken_seq == 5


def test_the_custodian_keeps_the_head_and_never_one_of_another_story(
    audit: Audit, engine: Engine, tmp_path: Path
) -> None:
    custodian = Custodian(tmp_path / "audit-head", audit)
    before = custodian.kept()
    custodian.keep()
    kept = custodian.kept()
    tamper(engine, lambda c: c.execute(delete(table).where(table.c.seq > 3)))
    for n in range(4):
        audit.note(ADA.did("job.cancel", f"other-{n}"))

    custodian.keep()

    assert (before, kept.seq) == (Head(), 5)
    assert custodian.kept() == kept
    assert audit.verify([custodian.kept()]).broken_seq == 5


def test_a_deed_is_written_with_its_fact_or_not_at_all(engine: Engine, clock: FixedClock) -> None:
    journal, audit = Journal(engine, clock), Audit(engine, clock)
    journal.submit("job-1", submitted(), doer=ADA)

    with pytest.raises(StaleWrite):
        journal.submit("job-1", submitted(), doer=ADA)

    (entry,) = audit.page(limit=9)
    assert (entry.deed.action, entry.deed.target) == ("job.submit", "job-1")
    assert entry.deed.after == {"project": "default", "owner": ""}
    assert entry.deed.doer == ADA

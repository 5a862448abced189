"""Migrations create the schema that the code expects, and remove it again."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from holdfast.domain.jobfile.spec import Engine as Kind
from holdfast.domain.jobs.selection import JobFilter
from holdfast.store.database import (
    downgrade,
    newest_revision,
    reading,
    revision_of,
    upgrade,
    writing,
)
from holdfast.store.identity.access_tokens import AccessTokens
from holdfast.store.identity.users import Users
from holdfast.store.journal import Journal
from holdfast.store.leases import LeaseTable
from holdfast.store.metrics import MetricSeries
from holdfast.store.queries import Queries
from holdfast.store.retention_queue import RetentionQueue
from holdfast.store.tables.base import metadata
from holdfast_worker.protocol.policies import RetentionOwner
from holdfast_worker.protocol.reports import Json, Report, ReportKind
from sqlalchemy import Engine, inspect, text
from support.events import at, launched, ready, submitted
from support.fakes import FixedClock


@pytest.fixture
def empty(database_url: str, open_engine: Callable[[str], Engine]) -> Engine:
    """A database without tables."""
    return open_engine(database_url)


def tables(engine: Engine) -> set[str]:
    with reading(engine) as connection:
        return set(inspect(connection).get_table_names())


def test_an_empty_database_has_no_revision(empty: Engine) -> None:
    assert revision_of(empty) is None


def test_downgrade_and_repeated_upgrade_succeed(empty: Engine) -> None:
    upgrade(empty)
    up = tables(empty)
    downgrade(empty, "base")
    down = tables(empty)
    upgrade(empty)

    assert up == {*metadata.tables, "alembic_version"} == tables(empty)
    assert down == {"alembic_version"}
    assert revision_of(empty) == newest_revision()


def test_repeated_upgrade_keeps_data(engine: Engine, clock: FixedClock) -> None:
    journal = Journal(engine, clock)
    job = journal.append(journal.submit("job-1", submitted()), [launched(1)])

    upgrade(engine)

    assert journal.read("job-1") == job


def test_existing_watches_get_their_launcher(engine: Engine, clock: FixedClock) -> None:
    journal, watches = Journal(engine, clock), LeaseTable(engine)
    for name, infra in [("here", "local"), ("there", "aws/us-east-1"), ("hpc", "slurm/a/gpu")]:
        journal.submit(name, submitted(infra=infra))

    downgrade(engine, "0003")
    upgrade(engine)

    claimed = {kind: watches.claim(kind, at(1), 10, limit=9) for kind in Kind}
    assert claimed == {Kind.LOCAL: ["here"], Kind.SLURM: ["hpc"], Kind.SKYPILOT: ["there"]}


def test_existing_jobs_keep_retention_by_their_workers(engine: Engine, clock: FixedClock) -> None:
    journal = Journal(engine, clock)
    journal.submit("old", submitted(), tidied_by=RetentionOwner.SERVICE)

    downgrade(engine, "0004")
    upgrade(engine)
    journal.submit("new", submitted(), tidied_by=RetentionOwner.SERVICE)

    assert list(RetentionQueue(engine).statuses(["old", "new"])) == ["new"]


def test_jobs_and_tokens_from_before_users_remain_valid(engine: Engine, clock: FixedClock) -> None:
    """Existing jobs belong to the initial project.

    Existing tokens belong to the owner, and never expire.
    """
    Journal(engine, clock).submit("old", submitted())
    downgrade(engine, "0005")
    digest = hashlib.sha256(b"hush").hexdigest()
    with writing(engine) as connection:
        row = {"id": "t1", "sha256": digest, "name": "first", "at": clock.now().isoformat(" ")}
        columns = "INSERT INTO tokens (id, sha256, name, created_at)"
        connection.execute(text(f"{columns} VALUES (:id, :sha256, :name, :at)"), row)

    upgrade(engine)

    keyring = AccessTokens(engine, b"key")
    keyring.ensure_pepper()
    token = keyring.find("hf_t1_hush")
    assert token is not None
    assert (token.user, token.refusal(clock.now())) == (None, "")
    assert [
        job.id
        for job in Queries(engine)
        .jobs(limit=9, where=JobFilter(projects=frozenset({"default"})))
        .jobs
    ] == ["old"]
    assert [project.name for project in Users(engine, clock).projects()] == ["default"]


def test_existing_points_are_moved_into_blocks(engine: Engine, clock: FixedClock) -> None:
    journal = Journal(engine, clock)
    journal.append(journal.submit("old", submitted()), [launched(1), ready(2)])
    body: dict[str, Json] = {"step": 1, "values": {"loss": 1.0}}
    when = at(3).isoformat()
    reported = [Report(1, n, when, ReportKind.PROGRESS, body) for n in range(1, 131)]
    journal.ingest("old", 1, reported)

    downgrade(engine, "0008")
    upgrade(engine)

    series = MetricSeries(engine)
    assert series.roll_up(99) == 2
    assert [(item.name, item.points) for item in series.names("old")] == [("loss", 130)]


def test_migrated_tables_match_the_code(engine: Engine) -> None:
    with reading(engine) as connection:
        context = MigrationContext.configure(
            connection, opts={"compare_type": True, "compare_server_default": True}
        )

        assert compare_metadata(context, metadata) == []


def test_migrated_primary_keys_match_the_code(engine: Engine) -> None:
    """Primary keys, which are the journal's lock, are not covered by comparing tables."""
    with reading(engine) as connection:
        inspector = inspect(connection)
        built = {
            name: tuple(inspector.get_pk_constraint(name)["constrained_columns"])
            for name in metadata.tables
        }

    assert built == {
        name: tuple(column.name for column in table.primary_key)
        for name, table in metadata.tables.items()
    }

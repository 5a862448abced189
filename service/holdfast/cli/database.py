"""Commands for the service's database."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.errors import StaleWrite
from holdfast.settings import read_settings

app = typer.Typer(help="Manage the service's database.", no_args_is_help=True)


@app.command()
def upgrade() -> None:
    """Upgrade the schema to this version; `holdfast serve` also does this."""
    from holdfast.store import database  # noqa: PLC0415 - the bare client has no database

    engine = database.open_database(read_settings().sqlalchemy_url)
    database.upgrade(engine)
    output.echo(f"the database is at revision {database.revision_of(engine)}")


@app.command()
def downgrade(
    revision: Annotated[str, typer.Argument(help="Target revision; `base` removes everything.")],
) -> None:
    """Downgrade the schema to an older revision."""
    from holdfast.store import database  # noqa: PLC0415 - the bare client has no database

    engine = database.open_database(read_settings().sqlalchemy_url)
    database.downgrade(engine, revision)
    output.echo(f"the database is at revision {database.revision_of(engine) or 'base'}")


@app.command()
def current(as_json: AsJson = False) -> None:
    """Show the schema revision of the database."""
    from holdfast.store import database  # noqa: PLC0415 - the bare client has no database

    at = database.revision_of(database.open_database(read_settings().sqlalchemy_url))
    if as_json:
        output.print_json({"revision": at, "newest": database.newest_revision()})
    else:
        typer.echo(at or "base")


@app.command()
def backup(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File to write.")],
    without_secret: Annotated[
        bool, typer.Option("--without-secret", help="Omit the service's secret.")
    ] = False,
) -> None:
    """Back up the database and the service's secret to a file; the service may be running."""
    from holdfast.server.backup import back_up  # noqa: PLC0415 - the bare client has no database

    made = back_up(read_settings(), file, with_secret=not without_secret)
    output.echo(f"{file}: {sum(made.rows.values())} rows at revision {made.revision}")
    if not without_secret:
        output.echo("the backup contains the service's secret: keep it where only you can read it")


@app.command()
def restore(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Backup to restore.")],
    force: Annotated[
        bool, typer.Option("--force", help="Replace the current database, and keep a copy of it.")
    ] = False,
) -> None:
    """Restore a backup; the service must be stopped."""
    from holdfast.server.backup import restore as put_back  # noqa: PLC0415 - the bare client has no database

    done = put_back(read_settings(), file, force=force)
    output.echo(
        f"restored the backup of {done.manifest.made_at}: {sum(done.manifest.rows.values())} rows"
    )
    for path in done.aside:
        output.echo(f"kept the previous database: {path}")
    output.echo(
        "start the service; holdfast doctor then lists launches newer than the backup, which are left running"
    )


@app.command()
def check(
    repair: Annotated[bool, typer.Option("--repair", help="Repair rows that differ.")] = False,
    as_json: AsJson = False,
) -> None:
    """Rebuild every job from its event log and compare it with its row."""
    from holdfast.clock import SystemClock  # noqa: PLC0415 - the bare client has no database
    from holdfast.store import database  # noqa: PLC0415
    from holdfast.store.journal import Journal  # noqa: PLC0415
    from holdfast.store.queries import Queries  # noqa: PLC0415

    engine = database.open_database(read_settings().sqlalchemy_url)
    journal, reading = Journal(engine, SystemClock()), Queries(engine)
    every = list(reading.all_ids())
    # A job may change between the two reads; only a row that differs twice is wrong.
    wrong = [
        job_id
        for job_id in every
        if journal.is_inconsistent(job_id) and journal.is_inconsistent(job_id)
    ]
    if repair:
        for job_id in wrong:
            journal.rebuild(job_id)
    if as_json:
        output.print_json({"jobs": len(every), "wrong": wrong, "repaired": repair and bool(wrong)})
    else:
        output.echo(f"{len(every)} jobs, {len(wrong)} rows that differ from their event log")
    if wrong and not repair:
        raise StaleWrite(
            f"rows differ from their event log: {', '.join(wrong)}; repair them with: holdfast db check --repair"
        )

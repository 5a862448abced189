"""Commands about the audit log, for admins of the service."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from holdfast.api.schemas.identity import AuditEntryOut
from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.client.identity import PeopleClient
from holdfast.settings import read_settings

app = typer.Typer(help="See what people did.", invoke_without_command=True)


@app.callback()
def audit(
    context: typer.Context,
    *,
    actor: Annotated[
        str | None, typer.Option("--actor", help="Only what this one did; owner is the service's.")
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Only what was done to this job, user, ...")
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, max=1000, help="At most so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List what people did, newest first."""
    if context.invoked_subcommand:
        return
    with Client.from_settings(read_settings()) as client:
        page = PeopleClient(client).audit(actor=actor, target=target, limit=limit)
    if as_json:
        output.print_json(page.rows)
        return
    table = output.table("SEQ", "AT", "WHO", "FROM", "DID", "TO", "HOW", right=("SEQ",))
    for row in page.rows:
        at, who = f"{row.at:%Y-%m-%d %H:%M:%S}Z", row.actor or "-"
        table.add_row(str(row.seq), at, who, row.address or "-", row.action, row.target, _how(row))
    output.print_table(table)
    if page.next:
        output.echo(f"only the newest {limit} are shown; --limit shows more")


@app.command()
def verify(
    *,
    head: Annotated[
        str | None, typer.Option("--head", help="A head that you kept, as seq:hash.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Look whether every row is the one that was written; ends with 1 if one is not."""
    with Client.from_settings(read_settings()) as client:
        verdict = PeopleClient(client).verdict(head)
    if as_json:
        output.print_json(verdict)
    elif verdict.sound:
        output.console.print(f"{verdict.rows} rows, all as they were written", markup=False)
        if verdict.removed:
            told = f"rows 1 to {verdict.removed} were removed after HOLDFAST_KEEP_AUDIT_DAYS"
            output.console.print(told, markup=False)
        output.console.print(f"keep this elsewhere: --head {verdict.head}", markup=False)
    else:
        output.console.print(f"NOT as it was written: {verdict.problem}", markup=False)
        output.console.print(f"the {verdict.rows} rows before are", markup=False)
    if not verdict.sound:
        raise typer.Exit(1)


def _how(row: AuditEntryOut) -> str:
    """What changed, short enough for a table."""
    told = row.after if row.after is not None else row.before
    text = json.dumps(told, ensure_ascii=False) if told else ""
    return text if len(text) <= 80 else f"{text[:79]}…"

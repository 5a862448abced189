"""Commands for the audit log; for admins of the service."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from holdfast.api.schemas.identity import AuditEntryOut
from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.settings import read_settings

app = typer.Typer(help="Manage the audit log.", invoke_without_command=True)


@app.callback()
def audit(
    context: typer.Context,
    *,
    actor: Annotated[
        str | None,
        typer.Option("--actor", help="Only this actor; `owner` is the owner of the service."),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", help="Only this job, user or other target.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1000, help="Maximum number of rows.")
    ] = 50,
    as_json: AsJson = False,
) -> None:
    """List audit entries, newest first."""
    if context.invoked_subcommand:
        return
    with Client.from_settings(read_settings()) as client:
        page = client.identity.audit(actor=actor, target=target, limit=limit)
    if as_json:
        output.print_json(page.rows)
        return
    table = output.table(
        "SEQ", "AT", "ACTOR", "FROM", "ACTION", "TARGET", "DETAILS", right=("SEQ",)
    )
    for row in page.rows:
        at, who = f"{row.at:%Y-%m-%d %H:%M:%S}Z", row.actor or "-"
        table.add_row(
            str(row.seq), at, who, row.address or "-", row.action, row.target, _change_summary(row)
        )
    output.print_table(table)
    if page.next:
        output.echo(f"only the newest {limit} are shown; raise --limit to see more")


@app.command()
def verify(
    *,
    head: Annotated[
        str | None, typer.Option("--head", help="A chain head that you saved, as seq:hash.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Verify the hash chain of the audit log; exit with 1 if a row was changed."""
    with Client.from_settings(read_settings()) as client:
        verdict = client.identity.verify_audit(head)
    if as_json:
        output.print_json(verdict)
    elif verdict.sound:
        output.console.print(f"{verdict.rows} rows verified, unchanged", markup=False)
        if verdict.removed:
            text_only = f"rows 1 to {verdict.removed} were deleted after HOLDFAST_KEEP_AUDIT_DAYS"
            output.console.print(text_only, markup=False)
        output.console.print(f"store this outside the service: --head {verdict.head}", markup=False)
    else:
        output.console.print(f"MODIFIED: {verdict.problem}", markup=False)
        output.console.print(f"the {verdict.rows} rows before it are unchanged", markup=False)
    if not verdict.sound:
        raise typer.Exit(1)


def _change_summary(row: AuditEntryOut) -> str:
    """Summarize the change for a table."""
    text_only = row.after if row.after is not None else row.before
    text = json.dumps(text_only, ensure_ascii=False) if text_only else ""
    return text if len(text) <= 80 else f"{text[:79]}…"

"""Commands about access tokens."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.api.people_schemas import NewTokenOut, TokenOut
from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.client_people import PeopleClient
from holdfast.settings import read_settings

app = typer.Typer(help="Look after access tokens.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the token.")]


@app.command("list")
def list_tokens(
    *,
    everybodys: Annotated[
        bool, typer.Option("--everybodys", help="Those of all people; for admins of the service.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List your tokens, newest first."""
    with Client.from_settings(read_settings()) as client:
        tokens = PeopleClient(client).tokens(everybodys=everybodys)
    if as_json:
        output.print_json(tokens)
        return
    table = output.table("ID", "NAME", "USER", "PROJECT", "SCOPES", "LAST USED", "GOOD")
    for token in tokens:
        used = f"{token.last_used_at:%Y-%m-%d %H:%M}Z" if token.last_used_at else "never"
        whose, scopes = token.user or "(owner)", " ".join(token.scopes)
        table.add_row(
            token.id, token.name, whose, token.project or "all", scopes, used, _good(token)
        )
    output.print_table(table)


@app.command()
def add(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What it is for, such as laptop.")],
    *,
    user: Annotated[
        str | None, typer.Option("--user", help="Whose, if not yours; for admins of the service.")
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", "-p", help="The only project that it is good for.")
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", help="read, write or admin; repeatable; without it read, write."),
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=366, help="How long it is good.")] = 90,
    as_json: AsJson = False,
) -> None:
    """Make a token and print it; it cannot be seen again."""
    scopes = scope or ["read", "write"]
    with Client.from_settings(read_settings()) as client:
        made = PeopleClient(client).add_token(
            name, user=user, project=project, scopes=scopes, days=days
        )
    _tell(made, as_json)


@app.command()
def rotate(token_id: Id, as_json: AsJson = False) -> None:
    """Make a token instead of another, which goes on for a day, and print it."""
    with Client.from_settings(read_settings()) as client:
        made = PeopleClient(client).rotate_token(token_id)
    _tell(made, as_json)


@app.command()
def revoke(token_id: Id, as_json: AsJson = False) -> None:
    """Let a token, and the sessions that began with it, let in nobody any more."""
    with Client.from_settings(read_settings()) as client:
        token = PeopleClient(client).revoke_token(token_id)
    if as_json:
        output.print_json(token)
    else:
        output.console.print(f"token {token.id} is revoked", markup=False)


def _tell(made: NewTokenOut, as_json: bool) -> None:
    if as_json:
        output.print_json(made)
        return
    typer.echo(made.token)
    output.say(f"token {made.kept.id}, good {_good(made.kept)}; it cannot be shown again")


def _good(token: TokenOut) -> str:
    if token.revoked_at:
        return f"no, revoked {token.revoked_at:%Y-%m-%d}"
    if token.expires_at is None:
        return "for ever"
    return f"{'until' if token.is_good else 'no, expired'} {token.expires_at:%Y-%m-%d}"

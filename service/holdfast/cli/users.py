"""Commands about users, for admins of the service."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.api.people_schemas import UserOut
from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.client_people import PeopleClient
from holdfast.settings import read_settings

app = typer.Typer(help="Look after who may come in.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]


@app.command("list")
def list_users(as_json: AsJson = False) -> None:
    """List everybody."""
    with Client.from_settings(read_settings()) as client:
        users = PeopleClient(client).users()
    if as_json:
        output.print_json(users)
        return
    table = output.table("NAME", "ADMIN", "SINCE", "MAY COME IN")
    for user in users:
        may = f"no, since {user.disabled_at:%Y-%m-%d}" if user.disabled_at else "yes"
        admin = "yes" if user.is_admin else "-"
        table.add_row(user.name, admin, f"{user.created_at:%Y-%m-%d}", may)
    output.print_table(table)


@app.command()
def add(
    name: Name,
    *,
    admin: Annotated[
        bool, typer.Option("--admin", help="They may do everything in this service.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Make a user; a token for them is another command."""
    with Client.from_settings(read_settings()) as client:
        user = PeopleClient(client).add_user(name, is_admin=admin)
    _tell(user, as_json)
    output.say(
        f"next: holdfast tokens add laptop --user {name}; holdfast members set PROJECT {name} member"
    )


@app.command()
def disable(name: Name, as_json: AsJson = False) -> None:
    """Keep a user out: all their tokens are revoked. Their jobs go on."""
    _change(name, as_json, is_disabled=True)


@app.command()
def enable(name: Name, as_json: AsJson = False) -> None:
    """Let a user in again, with new tokens."""
    _change(name, as_json, is_disabled=False)


@app.command()
def promote(
    name: Name,
    *,
    back: Annotated[bool, typer.Option("--back", help="Make them no admin any more.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a user an admin of the service."""
    _change(name, as_json, is_admin=not back)


def _change(name: str, as_json: bool, **change: bool) -> None:
    with Client.from_settings(read_settings()) as client:
        user = PeopleClient(client).change_user(name, **change)
    _tell(user, as_json)


def _tell(user: UserOut, as_json: bool) -> None:
    if as_json:
        output.print_json(user)
        return
    words = ["an admin" if user.is_admin else "no admin"]
    words.append("may not come in" if user.disabled_at else "may come in")
    output.console.print(f"{user.name}: {', '.join(words)}", markup=False)

"""Commands about oneself: log in, log out, and ask who one is."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated

import typer

from holdfast.addresses import is_here
from holdfast.api.schemas.identity import CurrentUserOut
from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.client.credentials import Credentials
from holdfast.client.identity import PeopleClient
from holdfast.errors import BadRequest
from holdfast.settings import read_settings


def login(
    url: Annotated[
        str | None, typer.Option("--url", help="Address of the service, such as https://...")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option("--token", help="Access token; - reads it from standard input."),
    ] = None,
) -> None:
    """Keep an address and a token for the commands to come; the token is tried first."""
    settings = read_settings()
    kept = Credentials.read(settings.login_file)
    url = (url or kept.url or settings.url).rstrip("/")
    text = _token(token)
    if url.startswith("http://") and not is_here(url):
        output.echo(f"note: {url} has no TLS; whoever is on the way there reads the token")
    with Client(url, text) as client:
        who = PeopleClient(client).who()
    project = kept.project if kept.url == url else None
    Credentials(url=url, token=text, project=project).write(settings.login_file)
    output.console.print(f"logged in at {url} as {_name(who)}", markup=False)


def logout() -> None:
    """Forget the token that `holdfast login` kept; it stays good for others until it is revoked."""
    file = read_settings().login_file
    kept = Credentials.read(file)
    if kept.token is None:
        output.echo("nobody is logged in")
        return
    replace(kept, url=None, token=None, project=None).write(file)
    output.echo("logged out; holdfast tokens revoke ends a token that nobody needs any more")


def whoami(as_json: AsJson = False) -> None:
    """Tell who one is at the service, and what one may do there."""
    settings = read_settings()
    with Client.from_settings(settings) as client:
        who, url = PeopleClient(client).who(), client.url
    if as_json:
        output.print_json(who)
        return
    output.console.print(f"{_name(who)} at {url}", markup=False)
    if who.demo_seed is not None:
        output.echo(
            f"this service is a demonstration (seed {who.demo_seed}): nothing in it is real"
        )
    rows = {
        "roles": ", ".join(f"{role} of {project}" for project, role in who.roles.items()),
        "scopes": ", ".join(who.scopes),
        "token": who.token_id,
        "only for": who.project,
        "works in": Credentials.read(settings.login_file).project,
    }
    for label, value in rows.items():
        if value:
            output.console.print(f"  {label:<9} {value}", markup=False)


def _name(who: CurrentUserOut) -> str:
    name = who.user or "the owner of the service"
    return f"{name}, an admin" if who.is_admin and who.user else name


def _token(given: str | None) -> str:
    if given is None and sys.stdin.isatty():
        given = typer.prompt("Access token", hide_input=True, err=True)
    elif given is None or given == "-":
        given = sys.stdin.readline()
    text = given.strip()
    if not text.startswith("hf_"):
        raise BadRequest("--token: an access token begins with hf_; holdfast tokens add makes one")
    return text

"""Commands for projects, members, access tokens, users, and the login of this machine."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import Annotated

import typer

from holdfast.addresses import is_here
from holdfast.api.schemas.identity import CurrentUserOut, NewTokenOut, TokenOut, UserOut
from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.client.credentials import Credentials
from holdfast.errors import (
    BadRequest,
    NotFound,
    TooManyRequests,
    Unauthenticated,
    Unavailable,
)
from holdfast.settings import read_settings

SLOW_DOWN_S = 5
"""Seconds by which polls slow down if asked to, as RFC 8628 demands."""

projects_app = typer.Typer(help="Manage projects.", no_args_is_help=True)
members = typer.Typer(help="Manage project members and their roles.", no_args_is_help=True)

Project = Annotated[str, typer.Argument(metavar="PROJECT", help="Name of the project.")]
User = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]


@projects_app.command("list")
def list_projects(as_json: AsJson = False) -> None:
    """List your projects; an admin sees all of them."""
    settings = read_settings()
    with Client.from_settings(settings) as client:
        projects = client.identity.projects()
    if as_json:
        output.print_json(projects)
        return
    table = output.table("NAME", "ROLE", "SINCE", "ACCEPTS JOBS")
    works_in = Credentials.read(settings.login_file).project
    for project in projects:
        takes = f"no, since {project.archived_at:%Y-%m-%d}" if project.archived_at else "yes"
        name = f"{project.name} (current)" if project.name == works_in else project.name
        table.add_row(name, project.role or "-", f"{project.created_at:%Y-%m-%d}", takes)
    output.print_table(table)


@projects_app.command("add")
def add_project(name: Project, as_json: AsJson = False) -> None:
    """Create a project."""
    with Client.from_settings(read_settings()) as client:
        project = client.identity.add_project(name)
    if as_json:
        output.print_json(project)
    else:
        output.console.print(f"created project {project.name}", markup=False)


@projects_app.command()
def archive(
    name: Project,
    *,
    back: Annotated[bool, typer.Option("--back", help="Accept new jobs again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Archive a project: it accepts no new jobs; its jobs continue and remain visible."""
    with Client.from_settings(read_settings()) as client:
        project = client.identity.archive_project(name, is_archived=not back)
    if as_json:
        output.print_json(project)
    else:
        takes = "accepts no new jobs" if project.archived_at else "accepts new jobs"
        output.console.print(f"project {project.name} {takes}", markup=False)


@projects_app.command()
def use(name: Project) -> None:
    """Set the project of jobs whose file names none."""
    settings = read_settings()
    with Client.from_settings(settings) as client:
        known = {project.name for project in client.identity.projects()}
    if name not in known:
        yours = ", ".join(sorted(known)) or "none"
        raise NotFound(f"you are not a member of a project {name}; your projects: {yours}")
    replace(Credentials.read(settings.login_file), project=name).write(settings.login_file)
    output.echo(f"jobs belong to project {name} unless their file or --project names another")


@members.command("list")
def list_members(project: Project, as_json: AsJson = False) -> None:
    """List the members of a project."""
    with Client.from_settings(read_settings()) as client:
        inside = client.identity.members(project)
    if as_json:
        output.print_json(inside)
        return
    table = output.table("USER", "ROLE")
    for member in inside:
        table.add_row(member.user, member.role)
    output.print_table(table)


@members.command("set")
def set_member(
    project: Project,
    user: User,
    role: Annotated[str, typer.Argument(metavar="ROLE", help="viewer, member or admin.")],
    as_json: AsJson = False,
) -> None:
    """Add a user to a project, or change their role."""
    with Client.from_settings(read_settings()) as client:
        member = client.identity.set_member(project, user, role)
    if as_json:
        output.print_json(member)
    else:
        output.console.print(f"{user} is {member.role} of project {project}", markup=False)


@members.command("remove")
def remove_member(project: Project, user: User) -> None:
    """Remove a user from a project; their jobs stay in it and continue."""
    with Client.from_settings(read_settings()) as client:
        client.identity.remove_member(project, user)
    output.echo(f"removed {user} from project {project}")


tokens_app = typer.Typer(help="Manage access tokens.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the token.")]


@tokens_app.command("list")
def list_tokens(
    *,
    everybodys: Annotated[
        bool, typer.Option("--everybodys", help="Tokens of all users; for admins of the service.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List your tokens, newest first."""
    with Client.from_settings(read_settings()) as client:
        tokens = client.identity.tokens(everybodys=everybodys)
    if as_json:
        output.print_json(tokens)
        return
    table = output.table("ID", "NAME", "USER", "PROJECT", "SCOPES", "LAST USED", "VALID")
    for token in tokens:
        used = f"{token.last_used_at:%Y-%m-%d %H:%M}Z" if token.last_used_at else "never"
        whose, scopes = token.user or "(owner)", " ".join(token.scopes)
        table.add_row(
            token.id, token.name, whose, token.project or "all", scopes, used, _good(token)
        )
    output.print_table(table)


@tokens_app.command("add")
def create_token(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Purpose of the token, such as laptop.")
    ],
    *,
    user: Annotated[
        str | None,
        typer.Option("--user", help="Owner of the token, default: you; for admins of the service."),
    ] = None,
    project: Annotated[
        str | None, typer.Option("--project", "-p", help="Restrict the token to this project.")
    ] = None,
    scope: Annotated[
        list[str] | None,
        typer.Option("--scope", help="read, write or admin; repeatable; default: read and write."),
    ] = None,
    days: Annotated[
        int, typer.Option("--days", min=1, max=366, help="Validity of the token.")
    ] = 90,
    as_json: AsJson = False,
) -> None:
    """Create a token and print it once."""
    scopes = scope or ["read", "write"]
    with Client.from_settings(read_settings()) as client:
        made = client.identity.add_token(name, user=user, project=project, scopes=scopes, days=days)
    _print_token(made, as_json)


@tokens_app.command()
def rotate(token_id: Id, as_json: AsJson = False) -> None:
    """Replace a token and print the new one; the old one stays valid for a day."""
    with Client.from_settings(read_settings()) as client:
        made = client.identity.rotate_token(token_id)
    _print_token(made, as_json)


@tokens_app.command()
def revoke(token_id: Id, as_json: AsJson = False) -> None:
    """Revoke a token and the sessions that it opened."""
    with Client.from_settings(read_settings()) as client:
        token = client.identity.revoke_token(token_id)
    if as_json:
        output.print_json(token)
    else:
        output.console.print(f"token {token.id} is revoked", markup=False)


def _print_token(made: NewTokenOut, as_json: bool) -> None:
    if as_json:
        output.print_json(made)
        return
    typer.echo(made.token)
    output.echo(f"token {made.kept.id}, valid {_good(made.kept)}; it is shown only once")


def _good(token: TokenOut) -> str:
    if token.revoked_at:
        return f"no, revoked {token.revoked_at:%Y-%m-%d}"
    if token.expires_at is None:
        return "without expiry"
    return f"{'until' if token.is_good else 'no, expired'} {token.expires_at:%Y-%m-%d}"


users_app = typer.Typer(help="Manage users.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]


@users_app.command("list")
def list_users(as_json: AsJson = False) -> None:
    """List all users."""
    with Client.from_settings(read_settings()) as client:
        users = client.identity.users()
    if as_json:
        output.print_json(users)
        return
    table = output.table("NAME", "ADMIN", "SINCE", "ENABLED")
    for user in users:
        may = f"no, since {user.disabled_at:%Y-%m-%d}" if user.disabled_at else "yes"
        admin = "yes" if user.is_admin else "-"
        table.add_row(user.name, admin, f"{user.created_at:%Y-%m-%d}", may)
    output.print_table(table)


@users_app.command("add")
def add_user(
    name: Name,
    *,
    admin: Annotated[
        bool,
        typer.Option("--admin", help="Make them an admin, who may do everything in this service."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Create a user; holdfast tokens add creates a token for them."""
    with Client.from_settings(read_settings()) as client:
        user = client.identity.add_user(name, is_admin=admin)
    _print_user(user, as_json)
    output.echo(
        f"next: holdfast tokens add laptop --user {name}; holdfast members set PROJECT {name} member"
    )


@users_app.command()
def disable(name: Name, as_json: AsJson = False) -> None:
    """Disable a user and revoke their tokens; their jobs continue."""
    _change(name, as_json, is_disabled=True)


@users_app.command()
def enable(name: Name, as_json: AsJson = False) -> None:
    """Enable a user again; they need new tokens."""
    _change(name, as_json, is_disabled=False)


@users_app.command()
def link(
    name: Name,
    subject: Annotated[
        str, typer.Argument(metavar="SUBJECT", help="Account at the identity provider.")
    ],
    as_json: AsJson = False,
) -> None:
    """Set the account at the identity provider that signs in as a user."""
    with Client.from_settings(read_settings()) as client:
        user = client.identity.change_user(name, subject=subject)
    if as_json:
        output.print_json(user)
    else:
        output.console.print(f"the account {subject} signs in as {name}", markup=False)


@users_app.command()
def promote(
    name: Name,
    *,
    back: Annotated[bool, typer.Option("--back", help="Withdraw the admin role.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a user an admin of the service, or withdraw that role."""
    _change(name, as_json, is_admin=not back)


def _change(name: str, as_json: bool, **change: bool) -> None:
    with Client.from_settings(read_settings()) as client:
        user = client.identity.change_user(
            name, is_admin=change.get("is_admin"), is_disabled=change.get("is_disabled")
        )
    _print_user(user, as_json)


def _print_user(user: UserOut, as_json: bool) -> None:
    if as_json:
        output.print_json(user)
        return
    words = ["an admin" if user.is_admin else "not an admin"]
    words.append("disabled" if user.disabled_at else "enabled")
    output.console.print(f"{user.name}: {', '.join(words)}", markup=False)


def login(
    url: Annotated[
        str | None, typer.Option("--url", help="Address of the service, such as https://...")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option("--token", help="Access token; - reads it from standard input."),
    ] = None,
    sso: Annotated[
        bool,
        typer.Option("--sso", help="Sign in through the identity provider of the service."),
    ] = False,
) -> None:
    """Save the address and token of a service for later commands, after testing the token."""
    settings = read_settings()
    kept = Credentials.read(settings.login_file)
    url = (url or kept.url or settings.url).rstrip("/")
    if sso and token is not None:
        raise BadRequest("--token: not possible with --sso, which gets a token by itself")
    if url.startswith("http://") and not is_here(url):
        output.echo(f"warning: {url} does not use TLS; the token is sent unencrypted")
    text = _sign_in(url) if sso else _token(token)
    with Client(url, text) as client:
        who = client.identity.current_user()
    project = kept.project if kept.url == url else None
    Credentials(url=url, token=text, project=project).write(settings.login_file)
    output.console.print(f"logged in at {url} as {_name(who)}", markup=False)


def logout() -> None:
    """Delete the saved token from this machine; the token stays valid until it is revoked."""
    file = read_settings().login_file
    kept = Credentials.read(file)
    if kept.token is None:
        output.echo("not logged in")
        return
    replace(kept, url=None, token=None, project=None).write(file)
    output.echo(
        "logged out; the token is still valid until you revoke it with holdfast tokens revoke"
    )


def whoami(as_json: AsJson = False) -> None:
    """Show the current user and their permissions."""
    settings = read_settings()
    with Client.from_settings(settings) as client:
        who, url = client.identity.current_user(), client.url
    if as_json:
        output.print_json(who)
        return
    output.console.print(f"{_name(who)} at {url}", markup=False)
    if who.demo_seed is not None:
        output.echo(f"this service is a demonstration (seed {who.demo_seed}) with generated data")
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


def _sign_in(url: str) -> str:
    """Show the address and code of a sign-in, and return its token once it is completed."""
    with Client(url, None) as client:
        started = client.identity.start_sign_in()
        output.echo(f"open {started.verification_uri_complete or started.verification_uri}")
        output.echo(f"and enter or compare the code {started.user_code}")
        pause_s, left_s = max(1, started.interval_s), started.expires_in_s
        while left_s > 0:
            time.sleep(pause_s)
            left_s -= pause_s
            try:
                polled = client.identity.poll_sign_in(started.handle)
            except (Unavailable, TooManyRequests):
                pause_s += SLOW_DOWN_S
                continue
            if polled.token is not None:
                return polled.token.token
            pause_s += SLOW_DOWN_S if polled.slow_down else 0
    raise Unauthenticated("the code has expired; start again with holdfast login --sso")


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
        raise BadRequest(
            "--token: an access token begins with hf_; create one with holdfast tokens add"
        )
    return text

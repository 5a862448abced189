"""Commands about projects, and who is what in them.

Commands about access tokens.

Commands about users, for admins of the service.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from holdfast.api.schemas.identity import NewTokenOut, TokenOut, UserOut
from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.client.credentials import Credentials
from holdfast.client.identity import PeopleClient
from holdfast.errors import NotFound
from holdfast.settings import read_settings

projects_app = typer.Typer(help="Look after projects.", no_args_is_help=True)
members = typer.Typer(help="Look after who is what in a project.", no_args_is_help=True)

Project = Annotated[str, typer.Argument(metavar="PROJECT", help="Name of the project.")]
User = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]


@projects_app.command("list")
def list_projects(as_json: AsJson = False) -> None:
    """List the projects that you are in; all of them for an admin."""
    settings = read_settings()
    with Client.from_settings(settings) as client:
        projects = PeopleClient(client).projects()
    if as_json:
        output.print_json(projects)
        return
    table = output.table("NAME", "YOU ARE", "SINCE", "TAKES JOBS")
    works_in = Credentials.read(settings.login_file).project
    for project in projects:
        takes = f"no, since {project.archived_at:%Y-%m-%d}" if project.archived_at else "yes"
        name = f"{project.name} (in use)" if project.name == works_in else project.name
        table.add_row(name, project.role or "-", f"{project.created_at:%Y-%m-%d}", takes)
    output.print_table(table)


@projects_app.command("add")
def add_project(name: Project, as_json: AsJson = False) -> None:
    """Make a project."""
    with Client.from_settings(read_settings()) as client:
        project = PeopleClient(client).add_project(name)
    if as_json:
        output.print_json(project)
    else:
        output.console.print(f"made project {project.name}", markup=False)


@projects_app.command()
def archive(
    name: Project,
    *,
    back: Annotated[bool, typer.Option("--back", help="Let it take new jobs again.")] = False,
    as_json: AsJson = False,
) -> None:
    """Let a project take no new jobs; those that run go on, and all can be seen."""
    with Client.from_settings(read_settings()) as client:
        project = PeopleClient(client).archive_project(name, is_archived=not back)
    if as_json:
        output.print_json(project)
    else:
        takes = "takes no new jobs" if project.archived_at else "takes new jobs"
        output.console.print(f"project {project.name} {takes}", markup=False)


@projects_app.command()
def use(name: Project) -> None:
    """Let jobs whose file names no project belong to this one from now on."""
    settings = read_settings()
    with Client.from_settings(settings) as client:
        known = {project.name for project in PeopleClient(client).projects()}
    if name not in known:
        yours = ", ".join(sorted(known)) or "none"
        raise NotFound(f"there is no project {name} that you are in; yours are: {yours}")
    replace(Credentials.read(settings.login_file), project=name).write(settings.login_file)
    output.echo(f"jobs belong to project {name} unless their file or --project says otherwise")


@members.command("list")
def list_members(project: Project, as_json: AsJson = False) -> None:
    """List who is in a project."""
    with Client.from_settings(read_settings()) as client:
        inside = PeopleClient(client).members(project)
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
    """Take a user into a project, or give them another role in it."""
    with Client.from_settings(read_settings()) as client:
        member = PeopleClient(client).set_member(project, user, role)
    if as_json:
        output.print_json(member)
    else:
        output.console.print(f"{user} is {member.role} of project {project}", markup=False)


@members.command("remove")
def remove_member(project: Project, user: User) -> None:
    """Take a user out of a project; their jobs stay in it, and go on."""
    with Client.from_settings(read_settings()) as client:
        PeopleClient(client).remove_member(project, user)
    output.echo(f"{user} is not in project {project} any more")


tokens_app = typer.Typer(help="Look after access tokens.", no_args_is_help=True)

Id = Annotated[str, typer.Argument(metavar="ID", help="Id of the token.")]


@tokens_app.command("list")
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


@tokens_app.command("add")
def create_token(
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
    _print_token(made, as_json)


@tokens_app.command()
def rotate(token_id: Id, as_json: AsJson = False) -> None:
    """Make a token instead of another, which goes on for a day, and print it."""
    with Client.from_settings(read_settings()) as client:
        made = PeopleClient(client).rotate_token(token_id)
    _print_token(made, as_json)


@tokens_app.command()
def revoke(token_id: Id, as_json: AsJson = False) -> None:
    """Let a token, and the sessions that began with it, let in nobody any more."""
    with Client.from_settings(read_settings()) as client:
        token = PeopleClient(client).revoke_token(token_id)
    if as_json:
        output.print_json(token)
    else:
        output.console.print(f"token {token.id} is revoked", markup=False)


def _print_token(made: NewTokenOut, as_json: bool) -> None:
    if as_json:
        output.print_json(made)
        return
    typer.echo(made.token)
    output.echo(f"token {made.kept.id}, good {_good(made.kept)}; it cannot be shown again")


def _good(token: TokenOut) -> str:
    if token.revoked_at:
        return f"no, revoked {token.revoked_at:%Y-%m-%d}"
    if token.expires_at is None:
        return "for ever"
    return f"{'until' if token.is_good else 'no, expired'} {token.expires_at:%Y-%m-%d}"


users_app = typer.Typer(help="Look after who may come in.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(metavar="NAME", help="Name of the user.")]


@users_app.command("list")
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


@users_app.command("add")
def add_user(
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
    _print_user(user, as_json)
    output.echo(
        f"next: holdfast tokens add laptop --user {name}; holdfast members set PROJECT {name} member"
    )


@users_app.command()
def disable(name: Name, as_json: AsJson = False) -> None:
    """Keep a user out: all their tokens are revoked. Their jobs go on."""
    _change(name, as_json, is_disabled=True)


@users_app.command()
def enable(name: Name, as_json: AsJson = False) -> None:
    """Let a user in again, with new tokens."""
    _change(name, as_json, is_disabled=False)


@users_app.command()
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
    _print_user(user, as_json)


def _print_user(user: UserOut, as_json: bool) -> None:
    if as_json:
        output.print_json(user)
        return
    words = ["an admin" if user.is_admin else "no admin"]
    words.append("may not come in" if user.disabled_at else "may come in")
    output.console.print(f"{user.name}: {', '.join(words)}", markup=False)

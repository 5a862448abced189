"""Commands about projects, and who is what in them."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.client_people import PeopleClient
from holdfast.errors import NotFound
from holdfast.login import Login
from holdfast.settings import read_settings

app = typer.Typer(help="Look after projects.", no_args_is_help=True)
members = typer.Typer(help="Look after who is what in a project.", no_args_is_help=True)

Project = Annotated[str, typer.Argument(metavar="PROJECT", help="Name of the project.")]
User = Annotated[str, typer.Argument(metavar="USER", help="Name of the user.")]


@app.command("list")
def list_projects(as_json: AsJson = False) -> None:
    """List the projects that you are in; all of them for an admin."""
    settings = read_settings()
    with Client.from_settings(settings) as client:
        projects = PeopleClient(client).projects()
    if as_json:
        output.print_json(projects)
        return
    table = output.table("NAME", "YOU ARE", "SINCE", "TAKES JOBS")
    works_in = Login.read(settings.login_file).project
    for project in projects:
        takes = f"no, since {project.archived_at:%Y-%m-%d}" if project.archived_at else "yes"
        name = f"{project.name} (in use)" if project.name == works_in else project.name
        table.add_row(name, project.role or "-", f"{project.created_at:%Y-%m-%d}", takes)
    output.print_table(table)


@app.command()
def add(name: Project, as_json: AsJson = False) -> None:
    """Make a project."""
    with Client.from_settings(read_settings()) as client:
        project = PeopleClient(client).add_project(name)
    if as_json:
        output.print_json(project)
    else:
        output.console.print(f"made project {project.name}", markup=False)


@app.command()
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


@app.command()
def use(name: Project) -> None:
    """Let jobs whose file names no project belong to this one from now on."""
    settings = read_settings()
    with Client.from_settings(settings) as client:
        known = {project.name for project in PeopleClient(client).projects()}
    if name not in known:
        yours = ", ".join(sorted(known)) or "none"
        raise NotFound(f"there is no project {name} that you are in; yours are: {yours}")
    replace(Login.read(settings.login_file), project=name).write(settings.login_file)
    output.say(f"jobs belong to project {name} unless their file or --project says otherwise")


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
    output.say(f"{user} is not in project {project} any more")

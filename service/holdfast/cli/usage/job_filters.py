"""Options that select jobs, with the same names for lists and for actions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from holdfast.api.schemas.selections import SelectionIn
from holdfast.cli.output import STATES
from holdfast.errors import BadRequest

Status = Annotated[
    list[str] | None,
    typer.Option("--status", "--state", "-s", help="Only this state; repeatable."),
]
Selector = Annotated[
    str | None,
    typer.Option("--selector", "-l", help="Only jobs whose tags match: team=nlp,stage!=dev."),
]
Tags = Annotated[
    list[str] | None,
    typer.Option("--tag", "-t", help="Only with this tag, K=V or K alone; repeatable."),
]
Project = Annotated[str | None, typer.Option("--project", "-p", help="Only this project.")]
Owner = Annotated[str | None, typer.Option("--owner", help="Only this user.")]
Launcher = Annotated[
    list[str] | None,
    typer.Option("--launcher", help="Only this launcher: local, slurm, skypilot; repeatable."),
]
Find = Annotated[
    str | None,
    typer.Option("--find", "--search", help="Only jobs with this text in their name or id."),
]
Since = Annotated[
    str | None, typer.Option("--since", help="Submitted on or after this day: 2026-03-01, 30d.")
]
Until = Annotated[str | None, typer.Option("--until", help="Submitted on or before this day.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Show what would be done to each job, and stop.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation.")]


@dataclass(frozen=True, slots=True)
class ChosenJobs:
    """The jobs that an action selects by filters."""

    selection: SelectionIn | None
    """None without any filter."""
    dry_run: bool
    yes: bool


def job_filters(
    *,
    status: Status = None,
    selector: Selector = None,
    tag: Tags = None,
    project: Project = None,
    owner: Owner = None,
    launcher: Launcher = None,
    find: Find = None,
    since: Since = None,
    until: Until = None,
) -> SelectionIn | None:
    """Return the given filters; None without any."""
    if wrong := [word for word in status or [] if word not in STATES]:
        raise BadRequest(f"--status {wrong[0]}: must be one of {', '.join(STATES)}")
    given = {
        "status": status,
        "selector": selector,
        "tag": tag,
        "project": project,
        "owner": owner,
        "launcher": launcher,
        "find": find,
        "since": since,
        "until": until,
    }
    given = {name: value for name, value in given.items() if value}
    return SelectionIn.model_validate(given) if given else None


def chosen_jobs(
    *,
    status: Status = None,
    selector: Selector = None,
    project: Project = None,
    owner: Owner = None,
    launcher: Launcher = None,
    find: Find = None,
    since: Since = None,
    until: Until = None,
    dry_run: DryRun = False,
    yes: Yes = False,
) -> ChosenJobs:
    """Return the jobs of an action."""
    selection = job_filters(
        status=status,
        selector=selector,
        project=project,
        owner=owner,
        launcher=launcher,
        find=find,
        since=since,
        until=until,
    )
    return ChosenJobs(selection, dry_run, yes)

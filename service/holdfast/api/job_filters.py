"""The filters of lists of jobs, and of actions on a selection: the same names in both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Annotated, Final

from fastapi import Depends, Query
from pydantic import StringConstraints

from holdfast.api.auth.authentication import TheCaller
from holdfast.api.schemas.selections import SelectionIn
from holdfast.api.time_ranges import TheTimeRange, time_range
from holdfast.domain.access.permissions import Caller
from holdfast.domain.events import Outcome
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobs.job import State
from holdfast.domain.jobs.selection import JobFilter, TagCondition, parse_selector, parse_tag
from holdfast.errors import BadRequest

NonEmptyStr = Annotated[str, StringConstraints(min_length=1)]
STATUSES: Final = (*(str(s) for s in State if s is not State.ENDED), *map(str, Outcome))
"""States and outcomes that lists show."""


def tag_conditions(tags: Iterable[str], selector: str | None) -> tuple[TagCondition, ...]:
    """The conditions of both ways to name tags.

    Raises:
        BadRequest: one of them is malformed.
    """
    return *map(parse_tag, tags), *(parse_selector(selector) if selector else ())


def known_statuses(statuses: Sequence[str]) -> tuple[str, ...]:
    """Check the names of states.

    Raises:
        BadRequest: one does not exist.
    """
    if wrong := next((name for name in statuses if name not in STATUSES), None):
        raise BadRequest(
            f"status: {wrong[:100]!r} is not a state; use one of {', '.join(STATUSES)}"
        )
    return tuple(statuses)


def known_launchers(names: Sequence[str]) -> tuple[Engine, ...]:
    """Check the names of launchers.

    Raises:
        BadRequest: one does not exist.
    """
    known = [engine.value for engine in Engine]
    if wrong := next((name for name in names if name not in known), None):
        raise BadRequest(
            f"launcher: {wrong[:100]!r} is not a launcher; use one of {', '.join(known)}"
        )
    return tuple(map(Engine, names))


def _filter(
    caller: TheCaller,
    window: TheTimeRange,
    *,
    status: Annotated[
        list[NonEmptyStr] | None, Query(description="Only jobs in these states.")
    ] = None,
    project: Annotated[NonEmptyStr | None, Query(description="Only jobs of this project.")] = None,
    owner: Annotated[NonEmptyStr | None, Query(description="Only jobs of this user.")] = None,
    launcher: Annotated[
        list[NonEmptyStr] | None,
        Query(description="Only jobs of these launchers: local, slurm, skypilot."),
    ] = None,
    find: Annotated[
        NonEmptyStr | None,
        Query(
            max_length=200,
            description="Only jobs with this text in their name or id, ignoring case.",
        ),
    ] = None,
    tag: Annotated[
        list[NonEmptyStr] | None,
        Query(
            max_length=10,
            description="Only jobs with this tag: name:value, name=value, or a name alone; all of several.",
        ),
    ] = None,
    selector: Annotated[
        NonEmptyStr | None,
        Query(
            max_length=2000,
            description="Only jobs whose tags match, such as team=nlp,stage!=dev,owner in (ada,bob),!done.",
        ),
    ] = None,
) -> JobFilter:
    return JobFilter(
        statuses=known_statuses(status or ()),
        projects=caller.filter_projects(project),
        owner=owner,
        launchers=known_launchers(launcher or ()),
        find=find,
        tags=tag_conditions(tag or (), selector),
        since=window.begins_at,
        until=window.ends_at,
    )


def selected(selection: SelectionIn, caller: Caller, now: datetime) -> JobFilter:
    """The filter of a selection in the body of a request.

    Raises:
        BadRequest: one of its conditions is malformed.
    """
    window = time_range(selection.since, selection.until, now)
    return JobFilter(
        statuses=known_statuses(selection.status),
        projects=caller.filter_projects(selection.project),
        owner=selection.owner,
        launchers=known_launchers(selection.launcher),
        find=selection.find,
        tags=tag_conditions(selection.tag, selection.selector),
        since=window.begins_at,
        until=window.ends_at,
    )


TheFilter = Annotated[JobFilter, Depends(_filter)]
"""The filters in the query."""

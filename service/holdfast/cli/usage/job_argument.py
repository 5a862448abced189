"""The job of a command: an id or a name, resolved to an id and completed by the shell."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Annotated, Final

import typer

from holdfast.api.schemas.jobs import JobOut
from holdfast.client import Client
from holdfast.errors import BadRequest, HoldfastError, NotFound
from holdfast.settings import read_settings

_ID: Final = re.compile("j[0-9a-hjkmnp-tv-z]{12}")
"""The form of an id that the service has made; a job of this name is reached by its id only."""
_PAGE: Final = 200
COMPLETED: Final = 50
"""Number of newest jobs that complete an argument. A higher value makes each Tab slower."""
COMPLETION_TIMEOUT_S: Final = 1.0
"""Timeout of a completion. A lower value completes nothing on a busy service; a higher value blocks the prompt."""


def resolve(client: Client, text: str) -> str:
    """Return the id of a job: that of the live job with this name, else of the newest one.

    Raises:
        NotFound: no job has this id or name.
        BadRequest: several live jobs have this name.
    """
    if _ID.fullmatch(text):
        return text
    found = [job for job in _jobs(client, text) if text in {job.id, job.name}]
    if any(job.id == text for job in found):
        return text
    live = [job.id for job in found if job.ended_at is None]
    if len(live) > 1:
        raise BadRequest(f"{len(live)} live jobs are named {text}; use an id: {', '.join(live)}")
    if not found:
        raise NotFound(f"no job named {text}; holdfast ps lists jobs")
    return live[0] if live else found[0].id


def _jobs(client: Client, text: str) -> Iterator[JobOut]:
    """Yield the jobs with a text in their name or id, newest first."""
    cursor: str | None = None
    while True:
        page = client.jobs(statuses=[], limit=_PAGE, find=text, cursor=cursor)
        yield from page.jobs
        cursor = page.next
        if cursor is None:
            return


def _resolved(ctx: typer.Context, value: str | None) -> str | None:
    """Replace a name by the id."""
    return value and _all_resolved(ctx, [value])[0]


def _all_resolved(ctx: typer.Context, value: list[str]) -> list[str]:
    """Replace names by ids; connects to the service only for a name."""
    if ctx.resilient_parsing or all(map(_ID.fullmatch, value)):
        return value
    with Client.from_settings(read_settings()) as client:
        return [resolve(client, text) for text in value]


def completed_jobs(incomplete: str) -> list[tuple[str, str]]:
    """Return ids and names that begin with a text, newest job first; empty without a service."""
    logging.disable()  # A warning would appear in the prompt.
    try:
        with Client.from_settings(read_settings(), timeout_s=COMPLETION_TIMEOUT_S) as client:
            page = client.jobs(statuses=[], limit=COMPLETED, find=incomplete or None)
    except HoldfastError:
        return []
    words: dict[str, str] = {}
    for job in page.jobs:
        words.setdefault(job.name, f"{job.state}, {job.id}")
        words[job.id] = f"{job.state}, {job.name}"
    return [(word, about) for word, about in words.items() if word.startswith(incomplete)]


JobId = Annotated[
    str,
    typer.Argument(
        metavar="JOB",
        help="Id or name of the job.",
        callback=_resolved,
        autocompletion=completed_jobs,
    ),
]
MaybeJobId = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB",
        help="Id or name of the job, unless options select jobs.",
        callback=_resolved,
        autocompletion=completed_jobs,
        show_default=False,
    ),
]
OtherJobId = Annotated[
    str,
    typer.Argument(
        metavar="OTHER",
        help="Id or name of the job to compare with it.",
        callback=_resolved,
        autocompletion=completed_jobs,
    ),
]
JobIds = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB...",
        help="Ids or names of ended jobs.",
        callback=_all_resolved,
        autocompletion=completed_jobs,
    ),
]
JobOption = Annotated[
    str | None,
    typer.Option(
        "--job",
        metavar="JOB",
        help="Deliveries to the targets in the file of this job, by id or name.",
        callback=_resolved,
        autocompletion=completed_jobs,
    ),
]

"""The job of a command: an id or a name, resolved to an id and completed by the shell."""

from __future__ import annotations

import logging
from typing import Annotated, Final

import typer

from holdfast.client import Client
from holdfast.client.jobs import is_job_id
from holdfast.errors import HoldfastError
from holdfast.settings import read_settings

COMPLETED: Final = 50
"""Number of newest jobs that complete an argument. A higher value makes each Tab slower."""
COMPLETION_TIMEOUT_S: Final = 1.0
"""Timeout of a completion. A lower value completes nothing on a busy service; a higher value blocks the prompt."""


def _resolved(ctx: typer.Context, value: str | None) -> str | None:
    """Replace a name by the id."""
    return value and _all_resolved(ctx, [value])[0]


def _all_resolved(ctx: typer.Context, value: list[str]) -> list[str]:
    """Replace names by ids; connects to the service only for a name."""
    if ctx.resilient_parsing or all(map(is_job_id, value)):
        return value
    with Client.from_settings(read_settings()) as client:
        return [client.jobs.resolve(text) for text in value]


def completed_jobs(incomplete: str) -> list[tuple[str, str]]:
    """Return ids and names that begin with a text, newest job first; empty without a service."""
    logging.disable()  # A warning would appear in the prompt.
    try:
        with Client.from_settings(read_settings(), timeout_s=COMPLETION_TIMEOUT_S) as client:
            page = client.jobs.page(limit=COMPLETED, text=incomplete)
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

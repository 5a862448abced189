"""Removal of ended jobs."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from holdfast.api.removal_schemas import RemovalOut
from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.client import Client
from holdfast.errors import BadRequest
from holdfast.settings import read_settings


def rm(
    job_ids: Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids of ended jobs.")],
    *,
    checkpoints: Annotated[
        bool, typer.Option("--checkpoints", help="Remove their checkpoints from the store as well.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Remove ended jobs with their events, metrics and logs; their costs stay in all sums."""
    if not yes:
        _ask(job_ids, checkpoints=checkpoints)
    with Client.from_settings(read_settings()) as client:
        removed = [client.remove(job_id, checkpoints=checkpoints) for job_id in job_ids]
    if as_json:
        output.print_json(removed)
        return
    for removal in removed:
        output.console.print(_sentence(removal), markup=False)


def _ask(job_ids: list[str], *, checkpoints: bool) -> None:
    if not sys.stdin.isatty():
        raise BadRequest("nothing was removed, as it cannot be undone; add --yes if you mean it")
    what = "with their checkpoints" if checkpoints else "and keep their checkpoints"
    typer.confirm(f"Remove {', '.join(job_ids)} {what}? This cannot be undone.", abort=True)


def _sentence(removal: RemovalOut) -> str:
    sentence = f"job {removal.job_id} is removed"
    if removal.checkpoints and removal.removes_checkpoints:
        sentence += f", its checkpoints in {removal.checkpoints} " + (
            "as well" if removal.done_at else "before long"
        )
    elif removal.checkpoints:
        sentence += f"; its checkpoints stay in {removal.checkpoints}"
    return sentence + (f" (files are left: {removal.trouble})" if removal.trouble else "")

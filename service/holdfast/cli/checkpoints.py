"""The command `checkpoints`: every save of a job, its result, and the retention policy."""

from __future__ import annotations

from typing import Annotated, Final

import typer
from rich.table import Table

from holdfast.api.schemas.checkpoints import (
    CheckpointOut,
    CheckpointPage,
    RetentionOut,
    RetentionPolicyOut,
)
from holdfast.cli import output
from holdfast.cli.output import AsJson, age, span, timestamp
from holdfast.cli.usage.job_argument import JobId
from holdfast.client import Client
from holdfast.settings import read_settings

SHORT: Final = 6
"""Significant digits of a metric in a table; `--json` prints all."""


def checkpoints(
    job_id: JobId,
    *,
    state: Annotated[
        list[str] | None, typer.Option("--state", "-s", help="Only this state; repeatable.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=1, max=1000, help="Maximum number of checkpoints.")
    ] = 50,
    as_json: AsJson = False,
) -> None:
    """List the checkpoints of a job and their states, newest first."""
    with Client.from_settings(read_settings()) as client:
        page = client.jobs.checkpoint_page(job_id, states=state or [], limit=limit)
    if as_json:
        output.print_json(page.checkpoints)
    else:
        _print(page, limit)


def _print(page: CheckpointPage, limit: int) -> None:
    best = page.tidying.keep.best if page.tidying else None
    metric = best.metric if best else None
    if page.checkpoints:
        output.print_table(_table(page.checkpoints, metric))
    else:
        output.echo(
            "no checkpoints" if page.tidying else "no checkpoints: the job has no checkpoint store"
        )
    if page.next:
        output.echo(f"only the newest {limit} are shown; raise --limit to see more")
    if page.tidying:
        output.echo(f"retention: {describe_retention(page.tidying.keep)}")
    for note in page.notes:
        output.echo(f"note: {note}")
    if trouble := retention_failure(page.tidying):
        output.echo(f"! old checkpoints are not deleted {trouble}")


def _table(items: list[CheckpointOut], metric: str | None) -> Table:
    numbers = ("STEP", "AGE", "SIZE", "STALL", "UPLOAD", "ATTEMPT")
    measured = (metric.upper(),) if metric else ()
    names = ("STEP", "STATE", *numbers[1:], "RESTORED BY", *measured, "NAME", "WHY")
    table = output.table(*names, right=(*numbers, *measured))
    for item in items:
        table.add_row(
            f"{item.step:,}",
            output.state("superseded" if item.superseded else item.state),
            age(item.taken_at or item.at),
            "-" if item.size_bytes is None else output.size(item.size_bytes),
            "-" if item.stall_ms is None else span(item.stall_ms),
            "-" if item.upload_ms is None else span(item.upload_ms),
            str(item.attempt),
            ", ".join(map(str, item.restored_by)) or "-",
            *((_value(item, metric),) if metric else ()),
            item.checkpoint or "-",
            _reason(item),
        )
    return table


def _reason(item: CheckpointOut) -> str:
    return f"{item.detail} ({timestamp(item.removed_at)})" if item.removed_at else item.detail


def _value(item: CheckpointOut, metric: str) -> str:
    logged = item.metrics.get(metric)
    if logged is None:
        return "-"
    return "nan" if logged.value is None else f"{logged.value:.{SHORT}g}"


def describe_retention(keep: RetentionPolicyOut) -> str:
    """Describe a retention policy in words."""
    words = [f"the last {keep.last}"]
    if keep.every_steps:
        words.append(f"one of every {keep.every_steps:,} steps")
    if best := keep.best:
        which = "lowest" if best.mode == "min" else "highest"
        words.append(
            f"the {best.count if best.count > 1 else 'one'} with the {which} {best.metric}"
        )
    return "; ".join(words)


def retention_failure(tidying: RetentionOut | None) -> str:
    """Describe since when and why old checkpoints are not deleted; empty if deletion works."""
    if not tidying or not tidying.trouble or not tidying.since:
        return ""
    return f"since {timestamp(tidying.since)}: {tidying.trouble}"

"""The command `metrics`: metrics of a job, drawn in the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

import typer

from holdfast.api.schemas.metrics import BucketOut, SeriesOut
from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.cli.usage.job_argument import JobId
from holdfast.client import Client
from holdfast.settings import read_settings

BARS: Final = "▁▂▃▄▅▆▇█"
WIDE, NARROW = 72, 32
"""Width of a single curve, and of one in a table.

A higher value wraps in a terminal of 80 columns.
"""
SHORT: Final = 6
"""Significant digits; `--json` prints all."""
MOST: Final = 50
"""Maximum number of curves in a table, equal to the service's limit for one request."""


def metrics(
    job_id: JobId,
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="Series to show; default: all.")
    ] = None,
    *,
    x: Annotated[str, typer.Option("--x", help="step or time.")] = "step",
    points: Annotated[
        int | None, typer.Option("--points", min=1, max=5000, help="Maximum points per curve.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show the metrics of a job: one curve over all attempts, without rolled-back steps."""
    with Client.from_settings(read_settings()) as client:
        curves = client.diagnostics
        names = [item.name for item in curves.series(job_id).series]
        wanted = [each for each in names if name in {None, each}]
        count = points or (500 if as_json else NARROW if name is None else WIDE)
        page = curves.series(job_id, wanted[:MOST], points=count, x=x) if wanted else None
    drawn = page.series if page else []
    if as_json:
        output.print_json(drawn)
    elif name is None:
        _print_all(drawn, len(wanted) - len(drawn))
    elif drawn:
        _print_one(drawn[0])
    if name is not None and not drawn:
        there_are = f"available: {', '.join(names)}" if names else "no metric has been logged yet"
        output.echo(f"job {job_id} has no series {name}; {there_are}")


def _print_all(items: Sequence[SeriesOut], left_out: int) -> None:
    if not items:
        output.echo("no points yet; log some with run.log(loss=...) in the training script")
        return
    numbers = ("RECENT", "LOW", "HIGH", "POINTS", "STEP")
    table = output.table("NAME", "CURVE", *numbers, right=numbers)
    for item in items:
        kept = _retained_buckets(item)
        table.add_row(
            item.name, spark(kept), *_extent(kept), f"{item.points:,}", f"{item.last_step:,}"
        )
    output.print_table(table)
    if left_out:
        output.echo(f"{left_out} more; name one to see it")


def _print_one(item: SeriesOut) -> None:
    kept = _retained_buckets(item)
    lately, low, high = _extent(kept)
    attempts = len({bucket.attempt for bucket in item.buckets or ()})
    output.console.print(spark(kept), markup=False)
    output.console.print(
        f"{item.name}: recent {lately}, from {low} to {high}; {item.points:,} points of {attempts} "
        f"attempt{'s' * (attempts != 1)}, up to step {item.last_step:,}",
        markup=False,
    )
    if gone := [bucket for bucket in item.buckets or () if bucket.lost]:
        count = sum(bucket.points + bucket.not_finite for bucket in gone)
        output.console.print(f"not drawn: {count:,} points of lost work")
    if odd := sum(bucket.not_finite for bucket in kept):
        output.console.print(f"! {odd:,} points are not finite")


def _retained_buckets(item: SeriesOut) -> list[BucketOut]:
    return [bucket for bucket in item.buckets or () if not bucket.lost]


def _extent(kept: Sequence[BucketOut]) -> tuple[str, str, str]:
    """Format the mean of the newest bucket, the minimum and the maximum."""
    means = [bucket.mean for bucket in kept if bucket.mean is not None]
    lows = [bucket.min for bucket in kept if bucket.min is not None]
    highs = [bucket.max for bucket in kept if bucket.max is not None]
    if not (means and lows and highs):
        return "-", "-", "-"
    return _short(means[-1]), _short(min(lows)), _short(max(highs))


def _short(value: float) -> str:
    return f"{value:.{SHORT}g}"


def spark(buckets: Sequence[BucketOut]) -> str:
    """Draw the mean of each bucket as one line between the minimum and maximum.

    A dot marks non-finite buckets.
    """
    means = [bucket.mean for bucket in buckets]
    finite = [mean for mean in means if mean is not None]
    if not finite:
        return ""
    low, high = min(finite), max(finite)
    # Halved, as the difference of the two may overflow a float.
    height = high / 2 - low / 2
    return "".join(
        "·" if mean is None else BARS[_level(mean / 2 - low / 2, height)] for mean in means
    )


def _level(above: float, height: float) -> int:
    return round(above / height * (len(BARS) - 1)) if height else 0

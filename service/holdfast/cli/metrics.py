"""Metrics of a job in the terminal: `metrics`, and rates and GPUs in other commands."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Final

import typer

from holdfast.api.schemas.diagnostics import DiffOut
from holdfast.api.schemas.metrics import BucketOut, GpuOut, GpusOut, NodeGpusOut, SeriesOut
from holdfast.api.schemas.throughput import EtaOut, RatesOut, ThroughputOut
from holdfast.cli import output
from holdfast.cli.output import AsJson
from holdfast.cli.usage.job_argument import JobId
from holdfast.client import Client, Refused
from holdfast.clock import SystemClock
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


_UNITS: Final = (("m", 60.0, 90 * 60), ("h", 3600.0, 48 * 3600), ("d", 86400.0, math.inf))
"""Units of a band, their seconds, and the length up to which they are used."""


def ends_in(eta: EtaOut | None) -> str:
    """Format the time until the expected end, as `3.2 h (2.9-4.1 h)`; empty if it is unknown."""
    if eta is None or eta.p10 is None or eta.p50 is None or eta.p90 is None:
        return ""
    now = SystemClock().now()
    low, middle, high = (
        max(0.0, (each - now).total_seconds()) for each in (eta.p10, eta.p50, eta.p90)
    )
    name, unit_s = next((name, unit_s) for name, unit_s, most_s in _UNITS if middle < most_s)
    digits = 0 if middle >= 10 * unit_s else 1
    low, middle, high = (round(each / unit_s, digits) for each in (low, middle, high))
    return f"{middle:.{digits}f} {name} ({low:.{digits}f}-{high:.{digits}f} {name})"


def per_second(rate: float) -> str:
    """Format a rate with three digits."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.3g}"


def rates(found: RatesOut) -> str:
    """Format the rates of training on one line."""
    parts = [f"{per_second(found.steps_per_s)} steps/s"]
    if found.samples_per_s:
        parts.append(f"{per_second(found.samples_per_s)} samples/s")
    if found.tokens_per_s:
        parts.append(f"{per_second(found.tokens_per_s)} tokens/s")
    if found.mfu is not None:
        parts.append(f"MFU {found.mfu:.0%}")
    if found.stalled and found.stalled >= 0.01:
        parts.append(f"stalled {found.stalled:.0%} of the time")
    return " · ".join(parts)


def step_parts(found: RatesOut) -> str:
    """Format the time of a step and its measured parts on one line."""
    named = {
        "data": found.data_s,
        "compute": found.compute_s,
        "communication": found.communication_s,
        "saving": found.saving_s,
        "rest": found.rest_s,
    }
    parts = [f"{name} {each:.3g} s" for name, each in named.items() if each is not None]
    return f"{1 / found.steps_per_s:.3g} s: {' · '.join(parts)}" if parts else ""


def throughput(client: Client, job_id: str) -> ThroughputOut | None:
    """Return the throughput of a job; None from an older service."""
    try:
        return client.diagnostics.throughput(job_id)
    except Refused:
        return None


def speed_rows(speed: ThroughputOut | None) -> dict[str, str | None]:
    """Describe how fast a job trains, and when it ends."""
    if speed is None:
        return {}
    shown = speed.newest or speed.mean
    means = []
    if speed.newest and speed.mean:
        means.append(f"mean {per_second(speed.mean.steps_per_s)} steps/s")
    if speed.wall_steps_per_s:
        means.append(f"{per_second(speed.wall_steps_per_s)} steps/s by the clock")
    eta, ends = speed.eta, None
    if eta.p50:
        ends = f"in {ends_in(eta)}, {output.timestamp(eta.p50)}"
        ends += f", with {eta.interruptions:.1f} more interruptions" * bool(eta.interruptions)
        ends += ", as planned" * eta.is_planned
    return {
        "speed": " · ".join([*([rates(shown)] if shown else []), *means]),
        "step time": step_parts(shown) if shown else None,
        "ends": ends or (f"unknown: {eta.reason}" if eta.reason != "it has ended" else None),
    }


RATES: Final = {
    "steps_per_s": "steps/s",
    "samples_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
    "mfu": "MFU",
    "data_s": "data s/step",
    "compute_s": "compute s/step",
    "communication_s": "communication s/step",
    "saving_s": "saving s/step",
    "rest_s": "rest s/step",
    "stalled": "share stalled",
}
"""Names of mean rates in a comparison."""


def print_rates(response: DiffOut) -> None:
    """Print what both runs measured while training."""
    if response.rates_before is None or response.rates_after is None:
        return
    before, after = response.rates_before.model_dump(), response.rates_after.model_dump()
    table = output.table("MEAN WHILE TRAINING", "BEFORE", "AFTER", right=("BEFORE", "AFTER"))
    for key, name in RATES.items():
        if before[key] is not None or after[key] is not None:
            table.add_row(
                name, *("-" if one is None else f"{one:.4g}" for one in (before[key], after[key]))
            )
    output.print_table(table)


MAX_NODES: Final = 8
"""Nodes whose GPUs are listed. A higher value fills the screen for large jobs; a lower value hides some."""
_GIB: Final = 2**30


def gpus_of(client: Client, job_id: str) -> GpusOut | None:
    """Return the GPUs of a job; None from an older service."""
    try:
        return client.diagnostics.gpus(job_id)
    except Refused:
        return None


def gpu_rows(found: GpusOut | None) -> dict[str, str]:
    """Describe the GPUs of a job; empty without readings."""
    if found is None or not found.nodes:
        return {}
    lines = [_node_line(node) for node in found.nodes[:MAX_NODES]]
    if more := len(found.nodes) - MAX_NODES:
        lines += [f"and {more} more nodes"] * (more > 0)
    faults = [
        f"GPU {gpu.gpu} of {node.host} (node {node.node}) {gpu.detail}"
        for node in found.nodes
        for gpu in node.gpus
        if gpu.detail
    ]
    indent = "\n" + " " * 14
    return {"GPUs": indent.join(lines), "GPU faults": indent.join(faults)}


def _node_line(node: NodeGpusOut) -> str:
    gpus = node.gpus
    used = _values(gpus, lambda gpu: gpu.memory_used_bytes)
    whole = _values(gpus, lambda gpu: gpu.memory_total_bytes)
    parts = [f"{len(gpus)} x {gpus[0].name or 'GPU'}" if gpus else "no GPU"]
    if busy := _values(gpus, lambda gpu: gpu.utilization):
        parts.append(f"{sum(busy) / len(busy):.0%} busy")
    if used and whole:
        parts.append(f"{max(used) / _GIB:.0f} of {max(whole) / _GIB:.0f} GiB")
    if heat := _values(gpus, lambda gpu: gpu.temperature_c):
        parts.append(f"up to {max(heat):.0f} °C")
    if power := _values(gpus, lambda gpu: gpu.power_w):
        parts.append(f"{sum(power):,.0f} W")
    return f"{node.host} (node {node.node}): {' · '.join(parts)}"


def _values(gpus: Sequence[GpuOut], value: Callable[[GpuOut], float | None]) -> list[float]:
    return [found for gpu in gpus if (found := value(gpu)) is not None]

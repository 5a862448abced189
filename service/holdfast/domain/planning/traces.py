"""Recorded availability and prices of spot nodes, from JSON and CSV. Pure.

A trace has one value for each tick of `gap_seconds`: the number of nodes that could be had, or null where it is unknown. The JSON format is that of
https://github.com/skypilot-org/spot-traces; the CSV format is a column of times and one column of counts for each zone.
"""

from __future__ import annotations

import csv
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from holdfast.domain.planning.places import is_zone_id, zone_region
from holdfast.errors import BadRequest

Flags: TypeAlias = NDArray[np.bool_]
Numbers: TypeAlias = NDArray[np.float64]

MAX_BYTES: Final = 64 * 2**20
"""Size of a file of traces. A lower value refuses long recordings; a higher value lets a wrong file fill the memory."""
MAX_GAP_S: Final = 7 * 86400.0
"""Length of a tick. A lower value refuses sparse recordings; a higher value accepts a mistaken unit."""
MAX_TICKS: Final = 2_000_000
"""Ticks of a trace. A lower value refuses long recordings; a higher value lets one wrong time in a CSV fill the memory."""
TIME_TOLERANCE: Final = 0.25
"""Deviation of a time from its tick, in ticks. A lower value refuses recordings of a busy machine; a higher value accepts times without a pattern."""
MIN_DATE_S: Final = 631152000.0
"""Seconds from which a time is a date: the year 1990. A lower value takes long recordings from 0 for dates."""


@dataclass(frozen=True, slots=True)
class Trace:
    """The availability of one place over time."""

    name: str
    gap_s: float
    """Length of a tick in seconds."""
    available: Flags
    """Whether the nodes could be had in each tick; False where it is unknown."""
    known: Flags
    """Whether that is known."""
    counts: Numbers | None = None
    """How many nodes could be had, 0 where that is unknown; None: 1 where they were available."""

    @property
    def availability(self) -> float | None:
        """The share of known ticks in which the nodes could be had; None if nothing is known."""
        known = int(self.known.sum())
        return float(self.available.sum() / known) if known else None

    @property
    def region(self) -> str:
        """The region of the zone that the name begins with, or the whole name."""
        return zone_region(self.name) or self.name


def parse_json(name: str, text: str, gang: int = 1) -> Trace:
    """Parse a trace. `gang`: the number of nodes that are needed at once.

    Raises:
        BadRequest: It is no trace.
    """
    body = _object(name, text)
    metadata, data = body.get("metadata"), body.get("data")
    if not isinstance(metadata, dict) or "gap_seconds" not in metadata:
        raise BadRequest(
            f"{name}: metadata.gap_seconds is missing; write the seconds between two values of data"
        )
    gap = metadata["gap_seconds"]
    if not _is_number(gap) or not 0 < gap < MAX_GAP_S:
        raise BadRequest(
            f"{name}: metadata.gap_seconds is {gap!r}; write a number of seconds above 0 and below a week"
        )
    if not isinstance(data, list) or not data:
        raise BadRequest(f"{name}: data is empty; write one count for each tick")
    return _trace(name, float(gap), data, gang)


def parse_csv(name: str, text: str, gang: int = 1) -> list[Trace]:
    """Parse a table of counts: a column of times, then one column for each zone.

    Times that are missing in between are unknown.

    Raises:
        BadRequest: It is no such table.
    """
    rows = [row for row in csv.reader(text.splitlines()) if row]
    if len(rows) < 3 or len(rows[0]) < 2:
        raise BadRequest(f"{name}: write a header, and at least two lines of a time and counts")
    header, lines = rows[0], rows[1:]
    for number, line in enumerate(lines, 2):
        if len(line) != len(header):
            raise BadRequest(
                f"{name}: line {number} has {len(line)} values; the header has {len(header)}"
            )
    gap, ticks = _ticks(
        name, [_time(name, number, line[0]) for number, line in enumerate(lines, 2)]
    )
    traces = []
    for column, zone in enumerate(header[1:], 1):
        data: list[object] = [None] * (ticks[-1] + 1)
        for tick, line in zip(ticks, lines, strict=True):
            data[tick] = _count(name, zone, line[column])
        traces.append(_trace(zone.strip(), gap, data, gang))
    return traces


def metadata_of(name: str, text: str) -> Mapping[str, Any]:
    """The metadata of a trace that `parse_json` accepts."""
    metadata: Mapping[str, Any] = _object(name, text)["metadata"]
    return metadata


def first_time(name: str, text: str) -> datetime | None:
    """The first time of a table that `parse_csv` accepts; None if its times have no date."""
    line = [row for row in csv.reader(text.splitlines()) if row][1]
    seconds = _time(name, 2, line[0])
    return datetime.fromtimestamp(seconds, UTC) if seconds >= MIN_DATE_S else None


def parse_prices(text: str, traces: Sequence[Trace], source: str) -> dict[str, Numbers]:
    """Parse the prices of traces: USD per hour for each tick, by the name of the trace.

    Raises:
        BadRequest: A trace has no prices, another number of them, or one that is no price.
    """
    body = _object(source, text)
    found = {}
    for trace in traces:
        if trace.name not in body:
            raise BadRequest(
                f"{source}: no prices for {trace.name}; it has {', '.join(body) or 'none'}"
            )
        prices = _numbers(body[trace.name])
        if prices is None or not np.isfinite(prices).all() or (prices <= 0).any():
            raise BadRequest(f"{source}: {trace.name}: each price must be a number of USD above 0")
        if len(prices) != len(trace.available):
            raise BadRequest(
                f"{source}: {trace.name} has {len(prices)} prices; its trace has {len(trace.available)} ticks"
            )
        found[trace.name] = prices
    return found


def check_together(traces: Sequence[Trace], *, together: bool) -> None:
    """Check that traces can be replayed in one run.

    Raises:
        BadRequest: Two have one name, or other gaps, or `together` other lengths.
    """
    if not traces:
        raise BadRequest("no trace was found; name files that end with .json or .csv")
    for name, count in Counter(trace.name for trace in traces).items():
        if count > 1:
            raise BadRequest(f"{name}: {count} traces have this name; give each file its own")
        if is_zone_id(name):
            raise BadRequest(
                f"{name} is the id of a zone; name the zone, such as us-east-1a, which differs between accounts"
            )
    first = traces[0]
    for trace in traces:
        if trace.gap_s != first.gap_s:
            raise BadRequest(
                f"{first.name} has ticks of {first.gap_s:g} s, {trace.name} of {trace.gap_s:g} s; run them one after the other"
            )
        if together and len(trace.available) != len(first.available):
            raise BadRequest(
                f"{first.name} has {len(first.available)} ticks, {trace.name} has {len(trace.available)}; "
                "zones that are replayed together must cover the same time"
            )


def _object(name: str, text: str) -> Mapping[str, Any]:
    try:
        # NaN and Infinity, which are no JSON, become words that are refused as values.
        body = json.loads(text, parse_constant=str)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"{name}: not JSON: {error}") from error
    if not isinstance(body, dict):
        raise BadRequest(f"{name}: not a JSON object")
    return body


def _trace(name: str, gap_s: float, data: Sequence[object], gang: int) -> Trace:
    if len(data) > MAX_TICKS:
        raise BadRequest(f"{name}: {len(data)} ticks are too many; a trace has at most {MAX_TICKS}")
    known = np.array([value is not None for value in data])
    counts = _numbers([0 if value is None else value for value in data])
    if counts is None or (counts < 0).any() or (np.floor(counts) != counts).any():
        raise BadRequest(
            f"{name}: data must be counts of nodes (0, 1, 2, ...), or null where one is unknown"
        )
    return Trace(name, gap_s, (counts >= gang) & known, known, counts)


def _numbers(values: object) -> Numbers | None:
    """A list of numbers as an array; None if it is none."""
    if not isinstance(values, list) or not all(map(_is_number, values)):
        return None
    try:
        return np.array(values, np.float64)
    except OverflowError:
        return None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(name: str, zone: str, text: str) -> float | None:
    if not text.strip():
        return None
    try:
        count = float(text)
    except ValueError:
        count = math.nan
    if not math.isfinite(count):
        raise BadRequest(f"{name}: {zone}: {text!r} is not a count of nodes")
    return count


def _time(name: str, number: int, text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = _utc_s(text.strip())
    if not math.isfinite(seconds):
        raise BadRequest(
            f"{name}: line {number}: {text!r} is not a time; write 2026-03-01T12:00:00Z, or seconds"
        )
    return seconds


def _utc_s(text: str) -> float:
    """Seconds of a time, which is of UTC if it names no other zone; NaN if it is none."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return math.nan
    return (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()


def _ticks(name: str, times: Sequence[float]) -> tuple[float, list[int]]:
    """The gap of times in whole seconds where it is one, and the tick of each."""
    steps = np.diff(times)
    if (steps <= 0).any():
        line = int(np.argmax(steps <= 0)) + 3
        raise BadRequest(f"{name}: line {line} is not later than the one before; sort by time")
    gap = float(np.median(steps))
    gap = float(round(gap)) if gap >= 1 else gap
    if (times[-1] - times[0]) / gap > MAX_TICKS:
        raise BadRequest(f"{name}: the times cover more than {MAX_TICKS} ticks of {gap:g} s")
    ticks = [0]
    for step in steps:
        count = step / gap
        if abs(count - round(count)) > TIME_TOLERANCE or round(count) < 1:
            raise BadRequest(f"{name}: its times are not at regular distances of {gap:g} s")
        ticks.append(ticks[-1] + round(count))
    return gap, ticks

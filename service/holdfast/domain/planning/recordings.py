"""Recordings: traces with a place and a time, as they are imported and exported. Pure.

A recording is sent as runs of ticks, which are much shorter than the ticks themselves.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias

import numpy as np

from holdfast.domain.jobfile.places import infra_name
from holdfast.domain.jobfile.resource_options import CLOUDS
from holdfast.domain.planning.observations import MAX_RUNS, PlaceObservation
from holdfast.domain.planning.place_history import runs_of
from holdfast.domain.planning.places import is_zone_id, named_zone
from holdfast.domain.planning.traces import MAX_GAP_S, MAX_TICKS, Trace
from holdfast.errors import BadRequest

Run: TypeAlias = tuple[bool | None, int]
"""Whether nodes were available, None if that is unknown, and the number of ticks."""

UNDATED_AGE: Final = timedelta(days=1)
"""Time since the end of a recording without a time, at its import. A lower value takes its last state for the present one."""
MAX_NAME: Final = 100
"""Length of names of recordings, places and hardware. A higher value breaks tables."""
_NAME: Final = re.compile(r"[a-z0-9][a-z0-9._-]*")
_PLACE: Final = re.compile(r"[a-z0-9-]+(/[a-z0-9_.-]+)*")
_HARDWARE: Final = re.compile(r"[a-z0-9][a-z0-9.,:_-]*|")
_OWN_CLOUDS: Final = ("local", "slurm")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recording:
    """A trace of one place."""

    name: str
    """Unique among the imported recordings."""
    place: str
    """As `PlaceObservation.place`."""
    hardware: str = ""
    """What the nodes are; empty for any."""
    start: datetime | None = None
    """Begin of the first tick; None if the file does not say when it was recorded."""
    gap_s: float
    runs: Sequence[Run]

    @property
    def ticks(self) -> int:
        """Its length."""
        return sum(ticks for _, ticks in self.runs)

    @property
    def sha256(self) -> str:
        """Digest of all but its name, so that a copy of a file is the same recording."""
        start = self.start and self.start.astimezone(UTC).isoformat()
        content = [self.place, self.hardware, start, self.gap_s, [*map(list, self.runs)]]
        return hashlib.sha256(json.dumps(content).encode()).hexdigest()

    def trace(self) -> Trace:
        """Its ticks."""
        states = np.repeat(
            [-1 if up is None else int(up) for up, _ in self.runs],
            [ticks for _, ticks in self.runs],
        )
        return Trace(self.name, self.gap_s, states == 1, states != -1)

    def observations(self, now: datetime) -> list[PlaceObservation]:
        """Its known ticks; a recording without a time has ended a day before `now`."""
        undated = now - UNDATED_AGE - timedelta(seconds=self.gap_s * self.ticks)
        return runs_of(self.trace(), self.place, self.hardware, self.start or undated)

    def file(self) -> dict[str, Any]:
        """The content of its file, which `holdfast simulate` reads."""
        trace = self.trace()
        known = zip(trace.available.tolist(), trace.known.tolist(), strict=True)
        metadata = {
            "gap_seconds": self.gap_s,
            "place": self.place,
            "hardware": self.hardware,
            "start": self.start and self.start.astimezone(UTC).isoformat(),
        }
        data = [int(up) if is_known else None for up, is_known in known]
        return {"metadata": metadata, "data": data}


def recording_of(
    trace: Trace, *, name: str, metadata: Mapping[str, Any], start: datetime | None, place: str = ""
) -> Recording:
    """The recording of a parsed trace, whose place is given, in its metadata, or in its name.

    Raises:
        BadRequest: it has no place, or is too long.
    """
    zone, kind = named_zone(trace.name.lower())
    place = place or str(metadata.get("place") or "") or zone
    if not place:
        raise BadRequest(
            f"{trace.name} names no zone; name its place with --place, such as --place aws/us-east-1/us-east-1a"
        )
    recording = Recording(
        name=name.lower(),
        place=infra_name(place),
        hardware=str(metadata.get("hardware", kind) or "").lower(),
        start=_start(trace.name, metadata) or start,
        gap_s=trace.gap_s,
        runs=runs_in(trace),
    )
    check_recording(recording)
    return recording


def runs_in(trace: Trace) -> list[Run]:
    """The ticks of a trace as runs."""
    states = np.where(trace.known, trace.available.astype(np.int8), -1)
    begins = np.flatnonzero(np.diff(states, prepend=states[:1] - 1)).tolist()
    lengths = np.diff([*begins, len(states)]).tolist()
    found = ((int(states[begin]), ticks) for begin, ticks in zip(begins, lengths, strict=True))
    return [(None if state < 0 else bool(state), ticks) for state, ticks in found]


def check_recording(recording: Recording) -> None:
    """Check a recording before it is stored.

    Raises:
        BadRequest: a value is wrong.
    """
    name = recording.name
    if not _fits(_NAME, name) or not name:
        raise BadRequest(
            f"name: {name!r} is no name of a recording; use at most {MAX_NAME} letters, digits, '-', '_' and '.'"
        )
    cloud = recording.place.partition("/")[0]
    if not _fits(_PLACE, recording.place) or cloud not in (*CLOUDS, *_OWN_CLOUDS):
        raise BadRequest(
            f"place: {recording.place!r} is no place; write one as infra of a job file, such as aws/us-east-1/us-east-1a"
        )
    if any(map(is_zone_id, recording.place.split("/"))):
        raise BadRequest(
            f"place: {recording.place} has the id of a zone; name the zone, such as us-east-1a, which differs between accounts"
        )
    if not _fits(_HARDWARE, recording.hardware):
        raise BadRequest(
            f"hardware: {recording.hardware!r} is no kind of node; write accelerators or an instance type, such as a100:8"
        )
    if not 0 < recording.gap_s < MAX_GAP_S:
        raise BadRequest(
            f"gap_seconds: {recording.gap_s} is no length of a tick; write seconds above 0 and below a week"
        )
    if len(recording.runs) > MAX_RUNS or recording.ticks > MAX_TICKS:
        raise BadRequest(
            f"runs: {name} changes {len(recording.runs)} times in {recording.ticks} ticks; a recording has at most "
            f"{MAX_RUNS} changes and {MAX_TICKS} ticks, so split it"
        )
    if not any(up is not None and ticks > 0 for up, ticks in recording.runs):
        raise BadRequest(f"runs: {name} has no known tick; import one that does")
    _check_time(recording)


def _check_time(recording: Recording) -> None:
    try:
        end = recording.start and recording.start + timedelta(
            seconds=recording.gap_s * recording.ticks
        )
    except OverflowError:
        end = datetime.max.replace(tzinfo=UTC)
    if (
        recording.start
        and end
        and not (
            datetime(1990, 1, 1, tzinfo=UTC) < recording.start
            and end < datetime(2200, 1, 1, tzinfo=UTC)
        )
    ):
        raise BadRequest(
            f"start: {recording.start:%Y-%m-%d} is no time of a recording; write the begin of its first tick, or leave it out"
        )


def _fits(pattern: re.Pattern[str], text: str) -> bool:
    return len(text) <= MAX_NAME and pattern.fullmatch(text) is not None


def _start(name: str, metadata: Mapping[str, Any]) -> datetime | None:
    text = metadata.get("start")
    if not text:
        return None
    try:
        start = datetime.fromisoformat(str(text))
    except ValueError as error:
        raise BadRequest(
            f"{name}: metadata.start is {text!r}; write a time such as 2026-03-01T00:00:00Z"
        ) from error
    return start if start.tzinfo else start.replace(tzinfo=UTC)

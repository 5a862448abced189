"""What happened to a launch: lines that are appended and never changed, and the sighting that follows from them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, Final, assert_never

from holdfast_worker.protocol.reports import Json

from holdfast.domain.events import Cause, Outcome
from holdfast.domain.jobs.observation import (
    Denial,
    LaunchResult,
    LaunchStatus,
    Observation,
    Placement,
)


class LaunchEntryKind(StrEnum):
    """Kinds of lines; the body of each is described at its value."""

    BEGUN = "begun"
    """`{}`: a supervisor has taken charge. Nothing runs before this line, and nobody begins after it."""
    DENIED = "denied"
    """`{zone, detail}`"""
    PLACED = "placed"
    """`{zone, nodes, micros_per_hour, on_demand_micros_per_hour}`: written before the nodes are started."""
    LOST = "lost"
    """`{cause, detail}`: written after all of the placement is gone."""
    ENDED = "ended"
    """`{outcome, exit_code | null, detail}`: likewise."""
    FORGOTTEN = "forgotten"
    """`{}`: the supervisor was found dead, and what it had left was swept away."""


OVER: Final = frozenset({LaunchEntryKind.ENDED, LaunchEntryKind.FORGOTTEN})


@dataclass(frozen=True, slots=True)
class LaunchEntry:
    """One thing that happened."""

    at: datetime
    what: LaunchEntryKind
    body: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaunchLog:
    """The lines of one launch. Only the holder of the launch's lock may append."""

    path: Path

    def append(self, line: LaunchEntry) -> None:
        """Add a line and have it on the disk: an attempt number must not be given twice, even after a power cut."""
        raw = {"at": line.at.isoformat(), "what": line.what, **line.body}
        with self.path.open("a+b") as file:
            if file.tell() and not _whole(file):
                file.write(b"\n")  # A writer died within a line; readers skip it.
            file.write(json.dumps(raw).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> list[LaunchEntry]:
        """All lines, oldest first; none if nothing has begun."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return []
        return [line for raw in text.split("\n") if (line := _parse(raw))]


def begun(lines: Sequence[LaunchEntry]) -> bool:
    """True once a supervisor has taken charge, whatever became of it."""
    return bool(lines)


def over(lines: Sequence[LaunchEntry]) -> bool:
    """True once nothing more can happen."""
    return bool(lines) and lines[-1].what in OVER


def sight(lines: Sequence[LaunchEntry]) -> Observation:
    """The launch as its history tells it; there must be a first line."""
    standing, since, ending = LaunchStatus.WAITING, lines[0].at, None
    trail: list[Placement] = []
    denials: list[Denial] = []
    for line in lines:
        match line.what:
            case LaunchEntryKind.BEGUN:
                pass
            case LaunchEntryKind.DENIED:
                denials.append(
                    Denial(at=line.at, zone=_str(line, "zone"), detail=_str(line, "detail"))
                )
            case LaunchEntryKind.PLACED:
                trail.append(_placement(line))
                standing, since = LaunchStatus.UP, line.at
            case LaunchEntryKind.LOST:
                cause = Cause(_str(line, "cause"))
                trail[-1] = replace(
                    trail[-1], lost_at=line.at, cause=cause, detail=_str(line, "detail")
                )
                standing, since = LaunchStatus.WAITING, line.at
            case LaunchEntryKind.ENDED:
                ending = _ending(line)
                standing, since = LaunchStatus.ENDED, line.at
            case LaunchEntryKind.FORGOTTEN:
                standing, since = LaunchStatus.FORGOTTEN, line.at
            case _:
                assert_never(line.what)
    return Observation(
        standing=standing,
        since=since,
        placements=len(trail),
        trail=tuple(trail),
        denials=tuple(denials),
        ending=ending,
    )


def _whole(file: BinaryIO) -> bool:
    """True when the last line has been written to its end."""
    file.seek(-1, os.SEEK_END)
    return file.read(1) == b"\n"


def _placement(line: LaunchEntry) -> Placement:
    return Placement(
        ready_at=line.at,
        zone=_str(line, "zone"),
        nodes=_int(line, "nodes"),
        micros_per_hour=_int(line, "micros_per_hour"),
        on_demand_micros_per_hour=_int(line, "on_demand_micros_per_hour"),
        simulated=True,
        instance_type="local",
    )


def _ending(line: LaunchEntry) -> LaunchResult:
    return LaunchResult(
        at=line.at,
        outcome=Outcome(_str(line, "outcome")),
        exit_code=None if line.body["exit_code"] is None else _int(line, "exit_code"),
        detail=_str(line, "detail"),
    )


def _parse(raw: str) -> LaunchEntry | None:
    """The line, or None for one that a dying writer has torn."""
    try:
        body = json.loads(raw)
    except json.JSONDecodeError:
        return None
    return LaunchEntry(
        datetime.fromisoformat(body.pop("at")), LaunchEntryKind(body.pop("what")), body
    )


def _str(line: LaunchEntry, name: str) -> str:
    value = line.body[name]
    assert isinstance(value, str)
    return value


def _int(line: LaunchEntry, name: str) -> int:
    value = line.body[name]
    assert isinstance(value, int)
    return value

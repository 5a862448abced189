"""The append-only log of a launch, and the observation derived from it."""

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
    NodeChange,
    Observation,
    Placement,
)


class LaunchEntryKind(StrEnum):
    """Kinds of log entries; each value documents its body."""

    BEGUN = "begun"
    """`{}`: a supervisor has started.
    No process runs before this entry, and no second supervisor starts after it."""
    DENIED = "denied"
    """`{zone, detail}`"""
    PLACED = "placed"
    """`{zone, nodes, micros_per_hour, on_demand_micros_per_hour, is_spot}`: written before the start."""
    NODE_LOST = "node_lost"
    """`{node, nodes, micros_per_hour, on_demand_micros_per_hour, cause, detail}`: the nodes that remain, which wait."""
    NODE_REPLACED = "node_replaced"
    """`{node, nodes, micros_per_hour, on_demand_micros_per_hour}`: written before its start."""
    LOST = "lost"
    """`{cause, detail}`: written after all processes of the placement have ended."""
    ENDED = "ended"
    """`{outcome, exit_code | null, detail}`: written after all of its processes have ended."""
    FORGOTTEN = "forgotten"
    """`{}`: the supervisor was found dead, and its remaining processes were killed."""


FINAL_KINDS: Final = frozenset({LaunchEntryKind.ENDED, LaunchEntryKind.FORGOTTEN})


@dataclass(frozen=True, slots=True)
class LaunchEntry:
    """Entry of a launch log."""

    at: datetime
    kind: LaunchEntryKind
    body: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LaunchLog:
    """The log of one launch. Only the holder of the launch's lock may append."""

    path: Path

    def append(self, line: LaunchEntry) -> None:
        """Append an entry durably.

        An attempt number must not be used twice, even after a power failure.
        """
        raw = {"at": line.at.isoformat(), "what": line.kind, **line.body}
        with self.path.open("a+b") as file:
            if file.tell() and not _ends_with_newline(file):
                file.write(b"\n")  # A writer died while writing a line; readers skip it.
            file.write(json.dumps(raw).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())

    def read(self) -> list[LaunchEntry]:
        """Return all entries, oldest first; empty if the launch has not started."""
        try:
            text = self.path.read_text()
        except FileNotFoundError:
            return []
        return [line for raw in text.split("\n") if (line := _parse(raw))]


def has_started(lines: Sequence[LaunchEntry]) -> bool:
    """Whether a supervisor has started."""
    return bool(lines)


def has_ended(lines: Sequence[LaunchEntry]) -> bool:
    """Whether the launch has ended, so that no further entry follows."""
    return bool(lines) and lines[-1].kind in FINAL_KINDS


def observe(lines: Sequence[LaunchEntry]) -> Observation:
    """Derive the observation of a launch from its log, which must not be empty."""
    status, since, ending = LaunchStatus.WAITING, lines[0].at, None
    trail: list[Placement] = []
    denials: list[Denial] = []
    for line in lines:
        match line.kind:
            case LaunchEntryKind.BEGUN:
                pass
            case LaunchEntryKind.DENIED:
                denials.append(
                    Denial(at=line.at, zone=_str(line, "zone"), detail=_str(line, "detail"))
                )
            case LaunchEntryKind.PLACED:
                trail.append(_placement(line))
                status, since = LaunchStatus.UP, line.at
            case LaunchEntryKind.NODE_LOST | LaunchEntryKind.NODE_REPLACED:
                changes = (*trail[-1].node_changes, _node_change(line))
                trail[-1] = replace(trail[-1], node_changes=changes)
            case LaunchEntryKind.LOST:
                cause = Cause(_str(line, "cause"))
                trail[-1] = replace(
                    trail[-1], lost_at=line.at, cause=cause, detail=_str(line, "detail")
                )
                status, since = LaunchStatus.WAITING, line.at
            case LaunchEntryKind.ENDED:
                ending = _ending(line)
                status, since = LaunchStatus.ENDED, line.at
            case LaunchEntryKind.FORGOTTEN:
                status, since = LaunchStatus.FORGOTTEN, line.at
            case _:
                assert_never(line.kind)
    return Observation(
        status=status,
        since=since,
        placements=len(trail),
        recent_placements=tuple(trail),
        denials=tuple(denials),
        result=ending,
    )


def _ends_with_newline(file: BinaryIO) -> bool:
    """Whether the last line is complete."""
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
        is_spot=_is_spot(line),
    )


def _node_change(line: LaunchEntry) -> NodeChange:
    is_loss = line.kind is LaunchEntryKind.NODE_LOST
    return NodeChange(
        at=line.at,
        node=_int(line, "node"),
        nodes=_int(line, "nodes"),
        micros_per_hour=_int(line, "micros_per_hour"),
        on_demand_micros_per_hour=_int(line, "on_demand_micros_per_hour"),
        cause=Cause(_str(line, "cause")) if is_loss else None,
        detail=_str(line, "detail") if is_loss else "",
    )


def _ending(line: LaunchEntry) -> LaunchResult:
    return LaunchResult(
        at=line.at,
        outcome=Outcome(_str(line, "outcome")),
        exit_code=None if line.body["exit_code"] is None else _int(line, "exit_code"),
        detail=_str(line, "detail"),
    )


def _parse(raw: str) -> LaunchEntry | None:
    """Parse a line; None for one that a dying writer truncated."""
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


def _is_spot(line: LaunchEntry) -> bool | None:
    """Whether nodes are spot nodes; None in a log of an earlier version."""
    value = line.body.get("is_spot")
    assert value is None or isinstance(value, bool)
    return value


def _int(line: LaunchEntry, name: str) -> int:
    value = line.body[name]
    assert isinstance(value, int)
    return value

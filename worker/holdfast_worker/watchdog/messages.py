"""What the wrappers of a run write to each other, as JSON and back. Pure.

A letter may come from anybody who found the port; what does not read as one is none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from holdfast_worker.protocol.reports import Json
from holdfast_worker.watchdog.failure_cause import LONGEST_DETAIL, FailureCause
from holdfast_worker.watchdog.hang_attribution import Finding
from holdfast_worker.watchdog.heartbeat import Heartbeat, Phase

LONGEST_TEXT: Final = 2 * LONGEST_DETAIL
"""Characters of a text. Shorter cuts a sentence, longer fills logs with what a stranger sent."""
BIGGEST: Final = 2**53
"""Of a number: what a float holds exactly."""


@dataclass(frozen=True, slots=True)
class RankPositions:
    """Where the ranks of a node are."""

    pulses: tuple[Heartbeat, ...]


@dataclass(frozen=True, slots=True)
class CauseReported:
    """A cause that a node knows of."""

    cause: FailureCause


@dataclass(frozen=True, slots=True)
class InspectRequest:
    """That every node is to find out what its ranks do."""


@dataclass(frozen=True, slots=True)
class InspectReply:
    """What a node found out about its ranks."""

    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True)
class StopAll:
    """That all ranks of all nodes end now, and why."""

    cause: FailureCause


@dataclass(frozen=True, slots=True)
class NodeExited:
    """That a node has ended by itself, with this exit code."""

    exit_code: int


Letter: TypeAlias = (
    RankPositions | CauseReported | InspectRequest | InspectReply | StopAll | NodeExited
)


def write(letter: Letter, now_s: float) -> dict[str, Json]:
    """A letter as JSON. Moments become ages, as clocks differ."""
    match letter:
        case RankPositions(pulses):
            return {"pulses": [_pulse(pulse, now_s) for pulse in pulses]}
        case CauseReported(cause):
            return {"told": _cause(cause)}
        case InspectRequest():
            return {"ask": True}
        case InspectReply(findings):
            return {"found": [_finding(finding) for finding in findings]}
        case StopAll(cause):
            return {"end": _cause(cause)}
        case NodeExited(code):
            return {"bye": code}


def read(words: Mapping[str, Json], now_s: float) -> Letter:
    """The letter that somebody wrote.

    Raises:
        ValueError: it is none.
    """
    match words:
        case {"pulses": list(pulses)}:
            return RankPositions(tuple(_read_pulse(pulse, now_s) for pulse in pulses))
        case {"told": cause}:
            return CauseReported(_read_cause(cause))
        case {"ask": True}:
            return InspectRequest()
        case {"found": list(findings)}:
            return InspectReply(tuple(_read_finding(finding) for finding in findings))
        case {"end": cause}:
            return StopAll(_read_cause(cause))
        case {"bye": code}:
            return NodeExited(_whole(code))
    raise ValueError(f"not a letter: {sorted(words)[:3]}")


def _pulse(pulse: Heartbeat, now_s: float) -> Json:
    age_s = max(0.0, now_s - pulse.since_s)
    numbers = (pulse.rank, pulse.step, pulse.steps_here, pulse.agreements)
    return [*numbers, int(pulse.phase), pulse.is_waiting, round(age_s, 3)]


def _read_pulse(raw: Json, now_s: float) -> Heartbeat:
    match raw:
        case [
            rank,
            step,
            steps_here,
            agreements,
            phase,
            bool(is_waiting),
            int() | float() as age_s,
        ]:
            if not 0 <= age_s < BIGGEST:
                raise ValueError("not a pulse: it has no age")
            return Heartbeat(
                rank=_whole(rank),
                phase=Phase(_whole(phase)),
                is_waiting=is_waiting,
                step=_whole(step),
                steps_here=_whole(steps_here),
                agreements=_whole(agreements),
                since_s=now_s - age_s,
            )
    raise ValueError("not a pulse")


def _cause(cause: FailureCause) -> Json:
    return [cause.exit_code, cause.step, cause.detail, cause.is_echo, cause.is_death]


def _read_cause(raw: Json) -> FailureCause:
    match raw:
        case [code, step, str(detail), bool(is_echo), bool(is_death)]:
            return FailureCause(
                _whole(code), _whole(step), detail[:LONGEST_TEXT], is_echo, is_death
            )
    raise ValueError("not a cause")


def _finding(finding: Finding) -> Json:
    collectives: dict[str, Json] = dict(finding.collectives)
    return [finding.rank, finding.is_stopped, finding.place, finding.is_in_torch, collectives]


def _read_finding(raw: Json) -> Finding:
    match raw:
        case [rank, bool(is_stopped), str(place), bool(is_in_torch), dict(collectives)]:
            return Finding(
                rank=_whole(rank),
                is_stopped=is_stopped,
                place=place[:LONGEST_TEXT],
                is_in_torch=is_in_torch,
                collectives={group: _whole(begun) for group, begun in collectives.items()},
            )
    raise ValueError("not a finding")


def _whole(raw: Json) -> int:
    if not isinstance(raw, int) or not 0 <= raw < BIGGEST:
        raise ValueError(f"{str(raw)[:20]} is no number to count with")
    return int(raw)

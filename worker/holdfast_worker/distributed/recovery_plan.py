"""The plan of an in-process recovery, from the positions of all ranks. Pure.

Collectives have numbers, which are the same on all ranks. If a rank is lost, some survivors may have completed a collective that failed
on others: they hand out its result. A collective that failed on all survivors is repeated, and a new rank takes part in it. The new
rank begins with the state that the furthest survivor had at the start of its step, and repeats that step.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum


class Place(StrEnum):
    """Where a rank is in its loop."""

    OUTSIDE = "outside"
    """Before the first step boundary or after the last step."""
    BOUNDARY = "boundary"
    """Between two steps: in a vote, or in the start of a save."""
    STEP = "step"
    """In the script, within a step."""
    NEW = "new"
    """In a new process, with nothing but its initial state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPosition:
    """The position of a rank when it waits for a new process group."""

    place: Place
    step: int = 0
    """Number of completed steps."""
    entry: int = 0
    """Number of collectives before the current boundary or step."""
    completed: frozenset[int] = frozenset()
    """Recent collectives whose results this rank still has."""
    changed: frozenset[int] = frozenset()
    """Recent collectives whose results this rank has changed since then."""
    failed: frozenset[int] = frozenset()
    """Collectives that this rank has begun and not completed."""
    obstacle: str = ""
    """Why a new rank cannot start from this rank's state; empty if it can."""
    holds: frozenset[int] = frozenset()
    """Ranks whose own state this rank has a copy of, as of its last boundary."""
    waited_s: float = 0.0
    """Time since this rank noticed the loss."""

    def dump(self) -> str:
        """As JSON."""
        return json.dumps(
            {
                name: sorted(value) if isinstance(value, frozenset) else value
                for name, value in asdict(self).items()
            }
        )

    @classmethod
    def parse(cls, text: str | bytes) -> RankPosition:
        """Parse what `dump` returned."""
        raw = json.loads(text)
        sets = {
            name: frozenset(raw.pop(name)) for name in ("completed", "changed", "failed", "holds")
        }
        return cls(**{**raw, **sets, "place": Place(raw["place"])})

    def lacks(self, number: int) -> bool:
        """Whether a collective that another rank has completed failed on this one, or has not begun.

        A rank that sends a broadcast may complete it before others begin it.
        """
        is_known = number < self.entry or number in self.completed | self.changed
        return number in self.failed or not is_known

    @property
    def order(self) -> tuple[int, bool]:
        """Sort key that is higher for a rank that is further."""
        return self.step, self.place is Place.STEP


class NotRecoverable(Exception):
    """The ranks cannot continue in their processes; the message says why."""


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """What the ranks do in a new process group before they continue."""

    source: int
    """The survivor whose state new ranks receive."""
    place: Place
    """Where new ranks start: at the start of the boundary, or of the step after it."""
    step: int
    entry: int
    """Number of collectives before that."""
    results: Mapping[int, int] = field(default_factory=dict)
    """Collectives whose results are handed out, in order, with the rank that has each."""
    holders: Mapping[int, int] = field(default_factory=dict)
    """New ranks, with the rank that has a copy of the state that was theirs alone."""

    @property
    def restarts_boundary(self) -> bool:
        """Whether survivors in the boundary begin it again."""
        return self.place is Place.BOUNDARY

    def gives(self, number: int, to: RankPosition) -> bool:
        """Whether a rank at a position receives a result that is handed out."""
        return number >= self.entry if to.place is Place.NEW else to.lacks(number)


def plan_recovery(positions: Mapping[int, RankPosition]) -> RecoveryPlan:
    """The plan for ranks at these positions.

    Raises:
        NotRecoverable: the ranks have to start again from a checkpoint.
    """
    survivors = {r: p for r, p in positions.items() if p.place is not Place.NEW}
    new = sorted(positions.keys() - survivors.keys())
    if not survivors:
        raise NotRecoverable("no rank has survived")
    for rank, position in sorted(survivors.items()):
        if position.place is Place.OUTSIDE:
            raise NotRecoverable(f"rank {rank} was outside of its training loop")
    order = max(position.order for position in survivors.values())
    furthest = {r: p for r, p in survivors.items() if p.order == order}
    source = next((r for r, p in sorted(furthest.items()) if not p.obstacle), None)
    if source is None and new:
        raise NotRecoverable(next(p.obstacle for _, p in sorted(furthest.items())))
    source = min(furthest) if source is None else source
    at = survivors[source]
    results = _results(survivors, at, has_new=bool(new))
    return RecoveryPlan(source, at.place, at.step, at.entry, results, _holders(new, furthest))


def _results(
    survivors: Mapping[int, RankPosition], at: RankPosition, *, has_new: bool
) -> dict[int, int]:
    """Which rank hands out the result of each collective that another rank lacks."""
    known = {number for p in survivors.values() for number in p.completed | p.changed}
    wanted = {number for position in survivors.values() for number in position.failed}
    wanted |= {number for number in known if any(p.lacks(number) for p in survivors.values())}
    if at.place is Place.BOUNDARY:
        wanted = {number for number in wanted if number < at.entry}
    elif has_new:
        wanted |= {number for number in known if number >= at.entry}
    results = {}
    for number in sorted(wanted):
        owners = [rank for rank, p in survivors.items() if number in p.completed]
        if owners:
            results[number] = min(owners)
        elif number < at.entry or any(number in p.changed for p in survivors.values()):
            raise NotRecoverable(f"no rank has the result of collective {number} any more")
    return results


def _holders(new: list[int], furthest: Mapping[int, RankPosition]) -> dict[int, int]:
    chosen = {}
    for rank in new:
        holders = [r for r, position in furthest.items() if rank in position.holds]
        if not holders:
            raise NotRecoverable(f"no rank has a copy of the state of rank {rank}")
        chosen[rank] = min(holders)
    return chosen

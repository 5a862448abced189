"""What the logs of a run say of its steps: which batch each rank was given, and what had been logged. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast_worker.protocol.environment import WITNESS

_MARK: Final = f"holdfast: {WITNESS}"


@dataclass(frozen=True, slots=True)
class RankStep:
    """A step of a rank."""

    step: int
    rank: int


@dataclass(slots=True)
class StepLogs:
    """All that was said of one run. What was done again has been said twice, and has to be the same both times."""

    batches: dict[RankStep, set[str]] = field(default_factory=dict)
    """Digests by step and rank; more than one where a step was given something else the second time."""
    values: dict[tuple[RankStep, str], set[float | None]] = field(default_factory=dict)
    """The same of numbers that had been logged, by their names."""

    def hear(self, log: Iterable[str]) -> None:
        """Take the lines of a log of one rank, of any attempt. A line that was cut off by a kill is none."""
        for line in log:
            _, mark, said = line.partition(_MARK)
            try:
                told = json.loads(said) if mark else None
                if told is None:
                    continue
                place = RankStep(told["step"], told["rank"])
                batch, logged = str(told["batch"]), dict(told["logged"])
            except (ValueError, KeyError, TypeError):
                continue
            self.batches.setdefault(place, set()).add(batch)
            for name, value in logged.items():
                self.values.setdefault((place, name), set()).add(value)


@dataclass(frozen=True, slots=True)
class StepComparison:
    """Two runs side by side."""

    batches: int
    other_batches: int
    values: int
    other_values: int
    first_other: str
    """Where they part, in words; empty where they do not."""


def side_by_side(one: StepLogs, other: StepLogs) -> StepComparison:
    """What both runs say of the same steps. A step of which one alone speaks is other; a number of which one alone speaks is not."""
    steps = sorted(one.batches.keys() | other.batches.keys(), key=lambda p: (p.step, p.rank))
    parted = [at for at in steps if _differ(one.batches, other.batches, at)]
    numbers = one.values.keys() & other.values.keys()
    uneven = sorted(
        (at for at in numbers if _differ(one.values, other.values, at)),
        key=lambda at: (at[0].step, at[0].rank, at[1]),
    )
    first = ""
    if parted:
        first = f"rank {parted[0].rank} was given another batch at step {parted[0].step}"
    elif uneven:
        place, name = uneven[0]
        first = f"{name} of rank {place.rank} was another after step {place.step}"
    return StepComparison(len(steps), len(parted), len(numbers), len(uneven), first)


def _differ(one: Mapping, other: Mapping, at: object) -> bool:  # type: ignore[type-arg]  # of one kind each
    both = one.get(at, set()) | other.get(at, set())
    return len(both) != 1 or at not in one or at not in other

"""Steps in the logs of a run: the batch of each rank, and logged values. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast_worker.protocol.environment import BATCH_TRACE_PREFIX

_MARK: Final = f"holdfast: {BATCH_TRACE_PREFIX}"


@dataclass(frozen=True, slots=True)
class RankStep:
    """A step of a rank."""

    step: int
    rank: int


@dataclass(slots=True)
class StepLogs:
    """Batches and values in the logs of one run. Repeated steps are logged twice and must agree."""

    batches: dict[RankStep, set[str]] = field(default_factory=dict)
    """Digests by step and rank; more than one if a repeated step received a different batch."""
    values: dict[tuple[RankStep, str], set[float | None]] = field(default_factory=dict)
    """Logged numbers by step, rank and name; more than one if a repeated step differs."""

    def parse(self, log: Iterable[str]) -> None:
        """Parse the log lines of a rank in any attempt; ignores lines truncated by a kill."""
        for line in log:
            _, mark, content = line.partition(_MARK)
            try:
                entry = json.loads(content) if mark else None
                if entry is None:
                    continue
                place = RankStep(entry["step"], entry["rank"])
                batch, logged = str(entry["batch"]), dict(entry["logged"])
            except (ValueError, KeyError, TypeError):
                continue
            self.batches.setdefault(place, set()).add(batch)
            for name, value in logged.items():
                self.values.setdefault((place, name), set()).add(value)


@dataclass(frozen=True, slots=True)
class StepComparison:
    """Comparison of two runs step by step."""

    batches: int
    other_batches: int
    values: int
    other_values: int
    first_difference: str
    """Description of the first difference; empty without one."""


def compare_steps(one: StepLogs, other: StepLogs) -> StepComparison:
    """Compare the steps of both runs.

    A step in only one run is a difference; a number in only one run is not.
    """
    steps = sorted(one.batches.keys() | other.batches.keys(), key=lambda p: (p.step, p.rank))
    parted = [at for at in steps if _differ(one.batches, other.batches, at)]
    numbers = one.values.keys() & other.values.keys()
    uneven = sorted(
        (at for at in numbers if _differ(one.values, other.values, at)),
        key=lambda at: (at[0].step, at[0].rank, at[1]),
    )
    first = ""
    if parted:
        first = f"rank {parted[0].rank} received a different batch at step {parted[0].step}"
    elif uneven:
        place, name = uneven[0]
        first = f"{name} of rank {place.rank} differs after step {place.step}"
    return StepComparison(len(steps), len(parted), len(numbers), len(uneven), first)


def _differ(one: Mapping, other: Mapping, at: object) -> bool:  # type: ignore[type-arg]  # of one kind each
    both = one.get(at, set()) | other.get(at, set())
    return len(both) != 1 or at not in one or at not in other

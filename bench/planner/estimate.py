"""Estimates the usual chances of a change by class of age, `USUAL_RETURN` and `USUAL_LOSS`.

Each place has a multiplier of them. It is estimated together with the chances, so that places that never change do not pass for old age:
from the chances follow the multipliers, (changes + PRIOR) / (expected + PRIOR), and from these the chances, until both settle.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np
from holdfast.domain.planning.beliefs import AGE_LIMITS_S, CHANCE_TICK_S, PRIOR
from holdfast.domain.planning.traces import Numbers, Trace, parse_csv, parse_json

ROUNDS: Final = 1000
SETTLED: Final = 1e-9
"""Relative change of a chance at which the estimate ends."""
LEAST_SHARE: Final = 0.03
"""Share of time in either state below which a zone says nothing of correlation."""


def read_places(folder: Path, gangs: Sequence[int]) -> Iterator[Trace]:
    """The traces of a folder, each once for each number of nodes needed at once."""
    files = [folder] if folder.is_file() else sorted(folder.rglob("*.[jc]s*"))
    for gang in gangs:
        for file in files:
            if file.suffix == ".csv":
                yield from parse_csv(file.name, file.read_text(), gang)
            else:
                yield parse_json(file.stem, file.read_text(), gang)


def count_changes(trace: Trace) -> tuple[Numbers, Numbers]:
    """Changes, and time in units of `CHANCE_TICK_S`: (not available or available, class of age)."""
    changes = np.zeros((2, len(AGE_LIMITS_S) + 1))
    time = changes.copy()
    before: bool | None = None
    age_s = 0.0
    for up, known in zip(trace.available.tolist(), trace.known.tolist(), strict=True):
        if not known:
            age_s += trace.gap_s if before is not None else 0.0
            continue
        if before is not None:
            at = int(before), int(np.searchsorted(AGE_LIMITS_S, age_s, side="right"))
            time[at] += trace.gap_s / CHANCE_TICK_S
            changes[at] += up != before
            age_s = age_s + trace.gap_s if up == before else 0.0
        before = up
    return changes, time


def estimate(traces: Sequence[Trace]) -> Numbers:
    """Chances of a change within `CHANCE_TICK_S`: (not available or available, class of age)."""
    counted = [count_changes(trace) for trace in traces]
    changes = np.array([each for each, _ in counted])
    time = np.array([each for _, each in counted])
    chances = changes.sum(0) / time.sum(0)
    for _ in range(ROUNDS):
        multipliers = (changes.sum(2) + PRIOR) / ((chances * time).sum(2) + PRIOR)
        before = chances
        chances = changes.sum(0) / (multipliers[:, :, None] * time).sum(0)
        if np.allclose(chances, before, rtol=SETTLED, atol=0):
            break
    return chances


def mean_correlation(traces: Sequence[Trace]) -> tuple[int, float]:
    """The number of pairs of zones of one region, and the mean correlation of their states.

    Several numbers of nodes in the same pair count once. A number is that of the traces between two of the same name.
    """
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for group in _groups(traces):
        for first, second in combinations(group, 2):
            if (first.region, first.gap_s) != (second.region, second.gap_s):
                continue
            ticks = min(len(first.available), len(second.available))
            known = first.known[:ticks] & second.known[:ticks]
            up = np.stack([each.available[:ticks][known] for each in (first, second)])
            share = up.mean(axis=1)
            if (share >= LEAST_SHARE).all() and (share <= 1 - LEAST_SHARE).all():
                found[first.name, second.name].append(float(np.corrcoef(up)[0, 1]))
    means = [float(np.mean(each)) for each in found.values()]
    return len(means), float(np.mean(means)) if means else np.nan


def _groups(traces: Sequence[Trace]) -> Iterator[list[Trace]]:
    """Traces of different places, in the order in which they were read."""
    group: list[Trace] = []
    for trace in traces:
        if any(trace.name == each.name for each in group):
            yield group
            group = []
        group.append(trace)
    yield group

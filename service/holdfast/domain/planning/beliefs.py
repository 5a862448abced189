"""How long spot nodes of a place last and how soon they return, from what was seen. Pure.

A place that has changed a short time ago is likely to change again: the chance falls with the time since the last change by a factor of ten and more,
and how it falls is much the same everywhere. What differs between places is how often they change at all. So the usual chances by age
are constants, and a place has two multipliers of them, one for losses and one for returns, from its own history:
(changes seen + PRIOR) / (changes expected + PRIOR), with weights that halve every week.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from holdfast.domain.planning.situation import Beliefs, Indices
from holdfast.domain.planning.traces import Flags, Numbers, Trace

AGE_LIMITS_S: Final = (1800.0, 7200.0, 21600.0)
"""Upper ends of all classes of age but the last."""
CHANCE_TICK_S: Final = 600.0
"""The time for which the chances below hold."""
USUAL_RETURN: Final = (0.361, 0.137, 0.0426, 0.0111)
USUAL_LOSS: Final = (0.242, 0.0947, 0.0321, 0.0133)
"""Chance of a change within ten minutes by class of age.

Estimated together with a multiplier for each place, so that places that never change do not pass for old age, from H100 nodes of ten
zones of Google Cloud (October 2025), A100 nodes of six (SkyServe's traces), and held V100 and CPU nodes of AWS and Google Cloud (2023).
`bench/planner` repeats the estimate.
"""
PRIOR: Final = 4.0
"""Changes that weigh as much as a place's own history.
A lower value believes a coincidence; a higher value learns about a place too late."""
HALF_LIFE_S: Final = 7 * 86400.0
"""Age at which an observation counts half.
A lower value forgets what a place is like; a higher value believes in a market that has changed."""
MAX_CHANCE: Final = 0.95


def age_class(age_s: Numbers) -> Indices:
    """The class of each age."""
    return np.searchsorted(np.array(AGE_LIMITS_S), age_s, side="right")


def chances(usual: Sequence[float], step_s: float) -> Numbers:
    """Chances of a change within a step, by class of age, from those of ten minutes."""
    return 1 - (1 - np.array(usual)) ** (step_s / CHANCE_TICK_S)


@dataclass(frozen=True, slots=True)
class BeliefTable:
    """What the ticks before show in each tick, (markets, places, ticks)."""

    age_s: Numbers
    loss: Numbers
    returns: Numbers

    def at(self, market: Indices, tick: Indices) -> Beliefs:
        """What is believed at the beginning of a tick, which is seen."""
        return Beliefs(
            age_s=self.age_s[market, :, tick],
            loss=self.loss[market, :, tick],
            returns=self.returns[market, :, tick],
        )


def beliefs_over(trace: Trace) -> tuple[Numbers, Numbers, Numbers]:
    """Age of the state, and multipliers of losses and of returns, at each tick of a trace."""
    tracker = Tracker(trace.gap_s)
    ticks = len(trace.available)
    found = np.empty((3, ticks))
    for tick, (up, known) in enumerate(
        zip(trace.available.tolist(), trace.known.tolist(), strict=True)
    ):
        if known:
            tracker.see(up=up)
        else:
            tracker.miss()
        found[:, tick] = tracker.age_s, tracker.loss, tracker.returns
    return found[0], found[1], found[2]


class Tracker:
    """Follows one place from tick to tick."""

    def __init__(self, tick_s: float) -> None:
        self._tick_s = tick_s
        self._fade = 0.5 ** (tick_s / HALF_LIFE_S)
        self._chances = [chances(usual, tick_s).tolist() for usual in (USUAL_RETURN, USUAL_LOSS)]
        self._seen = [0.0, 0.0]
        self._expected = [0.0, 0.0]
        self._up: bool | None = None
        self.age_s = 0.0

    @property
    def returns(self) -> float:
        """Multiplier of returns."""
        return (self._seen[0] + PRIOR) / (self._expected[0] + PRIOR)

    @property
    def loss(self) -> float:
        """Multiplier of losses."""
        return (self._seen[1] + PRIOR) / (self._expected[1] + PRIOR)

    def see(self, *, up: bool) -> None:
        """See whether spot nodes are available, one tick after the last time."""
        before, self._up = self._up, up
        if before is None:
            return
        self._age_observations()
        state = int(before)
        self._expected[state] += self._chances[state][_class_of(self.age_s)]
        if up != before:
            self._seen[state] += 1
            self.age_s = 0.0
        else:
            self.age_s += self._tick_s

    def miss(self) -> None:
        """Pass a tick of which nothing is known."""
        self._age_observations()
        if self._up is not None:
            self.age_s += self._tick_s

    def _age_observations(self) -> None:
        for values in (self._seen, self._expected):
            values[0] *= self._fade
            values[1] *= self._fade


def _class_of(age_s: float) -> int:
    return sum(age_s >= limit for limit in AGE_LIMITS_S)


def table_of(markets: Sequence[Sequence[Trace]]) -> BeliefTable:
    """The beliefs about the places of markets, whose traces may have different lengths."""
    places = len(markets[0])
    ticks = max(len(trace.available) for traces in markets for trace in traces)
    found = np.zeros((3, len(markets), places, ticks))
    found[1:] = 1.0
    for market, traces in enumerate(markets):
        for place, trace in enumerate(traces):
            found[:, market, place, : len(trace.available)] = beliefs_over(trace)
    return BeliefTable(found[0], found[1], found[2])


def padded(markets: Sequence[Sequence[Trace]]) -> Flags:
    """The availability of markets, (markets, places, ticks); False after the end of a trace."""
    ticks = max(len(trace.available) for traces in markets for trace in traces)
    found = np.zeros((len(markets), len(markets[0]), ticks), np.bool_)
    for market, traces in enumerate(markets):
        for place, trace in enumerate(traces):
            found[market, place, : len(trace.available)] = trace.available
    return found

"""Samples of spot markets that continue what is known of places. Pure.

Each place changes with the usual chances by the age of its state times its multipliers (`beliefs.py`), as in the tables of the policies. A place that was last seen a while ago has
changed since by the same chances; one that was never seen is drawn from all times. Places of one region change together more often than by chance: each step
compares a normal variate with the quantile of its chance, and the variates of a region have a common part (a Gaussian copula). So each place by itself
changes as it would alone.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from statistics import NormalDist
from typing import Final

import numpy as np

from holdfast.domain.events.planning import PlaceState
from holdfast.domain.planning.beliefs import (
    CHANCE_TICK_S,
    MAX_CHANCE,
    USUAL_LOSS,
    USUAL_RETURN,
    BeliefTable,
    age_class,
    chances,
)
from holdfast.domain.planning.replay import RecordedMarkets
from holdfast.domain.planning.situation import Indices
from holdfast.domain.planning.traces import Flags, Numbers

STALE_S: Final = 86400.0
"""Age of an observation from which on it says nothing about now.
A lower value forgets what a calm place is like; a higher value takes longer."""
LONGEST_S: Final = 14 * 86400.0
"""Age up to which states that were never seen are drawn.
A lower value takes old states for young ones; a higher value takes longer."""
OWN_PART: Final = 0.12
"""The part of a place's variates in steps of ten minutes that it does not share with its region.
A lower value promises nothing of a second place; a higher value too much. With it, the states of two usual places correlate with about .35, the mean of
eight pairs of zones in the recordings from which the usual chances come; `bench/planner` repeats the estimate."""
MIN_CHANCE: Final = 1e-12
"""The least chance of a change, which has a quantile."""


@dataclass(frozen=True, slots=True)
class _Life:
    """How states of a place end, and how often each is met, for steps of one length."""

    change: Numbers
    """Chances of a change within a step, (not available or available, class of age)."""
    share: float
    """Share of the time in which spot nodes are available."""
    ages: Numbers
    """Chances of ages up to each step, (not available or available, steps)."""

    @classmethod
    def of(cls, place: PlaceState, step_s: float) -> _Life:
        usual = np.stack([chances(USUAL_RETURN, step_s), chances(USUAL_LOSS, step_s)])
        change = np.clip(usual * [[place.returns], [place.loss]], MIN_CHANCE, MAX_CHANCE)
        at = age_class(np.arange(0.0, LONGEST_S, step_s))
        lasts = np.cumprod(1 - change[:, at], axis=1)
        # The first step of a state is certain.
        lasts = np.concatenate([np.ones((2, 1)), lasts[:, :-1]], axis=1)
        mean = lasts.sum(axis=1)
        share = float(mean[1] / mean.sum()) if place.spot_usd_per_hour is not None else 0.0
        return cls(change, share, np.cumsum(lasts, axis=1) / mean[:, None])


def spot_share(place: PlaceState, step_s: float) -> float:
    """The share of the time in which spot nodes are available in a place in the long run."""
    return _Life.of(place, step_s).share


def own_part(step_s: float) -> float:
    """The part of variates that a place does not share with its region, for steps of one length.

    Changes of two places fall into the same step less often when steps are short, so that short steps need a larger common part for states that correlate as much.
    """
    return min(1.0, OWN_PART * math.sqrt(step_s / CHANCE_TICK_S))


def sample_markets(
    places: Sequence[PlaceState], at: datetime, *, tick_s: float, ticks: int, runs: int, seed: int
) -> RecordedMarkets:
    """Markets of these places from a moment on.

    Places without spot nodes never have some.
    """
    random = np.random.default_rng(seed)
    lives = [_Life.of(place, tick_s) for place in places]
    up, age = _now(places, lives, at, tick_s=tick_s, runs=runs, random=random)
    region = _regions(places)
    chain = _Chain(np.stack([life.change for life in lives]), region, tick_s, up, age)
    stale = np.array([_stale_steps(place, at, tick_s) for place in places])
    for step in range(int(stale.max()), 0, -1):
        chain.step(random, stale >= step)
    available = np.empty((runs, len(places), ticks), np.bool_)
    ages = np.empty((runs, len(places), ticks))
    for tick in range(ticks):
        available[:, :, tick], ages[:, :, tick] = chain.up, chain.age
        chain.step(random)
    available &= np.array([each.spot_usd_per_hour is not None for each in places])[:, None]
    shape = available.shape

    def constant(values: Sequence[float]) -> Numbers:
        return np.broadcast_to(np.array(values)[:, None], shape)

    return RecordedMarkets(
        gap_s=tick_s,
        available=available,
        price=constant([each.spot_usd_per_hour or 0.0 for each in places]),
        region=np.broadcast_to(region, shape[:2]),
        beliefs=BeliefTable(
            ages,
            constant([each.loss for each in places]),
            constant([each.returns for each in places]),
        ),
    )


class _Chain:
    """States of places in all runs, and their ages, (runs, places)."""

    def __init__(
        self, change: Numbers, region: Indices, step_s: float, up: Flags, age: Numbers
    ) -> None:
        bound = [NormalDist().inv_cdf(each) for each in change.ravel().tolist()]
        self._bound = np.array(bound).reshape(change.shape)
        self._region, self._step_s = region, step_s
        self._own = own_part(step_s)
        self._place = np.arange(up.shape[1])
        self.up, self.age = up, age

    def step(self, random: np.random.Generator, places: Flags | None = None) -> None:
        """Pass a step in all places, or in some."""
        shape = self.up.shape
        common = random.standard_normal((shape[0], int(self._region.max()) + 1))
        variate = common[:, self._region] * (1 - self._own) ** 0.5
        variate += random.standard_normal(shape) * self._own**0.5
        bound = self._bound[self._place, self.up.astype(np.intp), age_class(self.age)]
        # A low variate loses spot nodes, a high one returns them.
        changes = np.where(self.up, variate, -variate) < bound
        age = np.where(changes, 0.0, self.age + self._step_s)
        if places is not None:
            changes &= places
            age = np.where(places, age, self.age)
        self.up, self.age = self.up ^ changes, age


def _regions(places: Sequence[PlaceState]) -> Indices:
    """A number for the region of each place."""
    names = [*dict.fromkeys(each.region for each in places)]
    return np.array([names.index(each.region) for each in places])


def _now(
    places: Sequence[PlaceState],
    lives: Sequence[_Life],
    at: datetime,
    *,
    tick_s: float,
    runs: int,
    random: np.random.Generator,
) -> tuple[Flags, Numbers]:
    """The state of places when they were last seen, and its age; drawn where that says nothing."""
    up = np.empty((runs, len(places)), np.bool_)
    age = np.empty((runs, len(places)))
    for number, (place, life) in enumerate(zip(places, lives, strict=True)):
        if _is_known(place, at):
            up[:, number] = bool(place.is_available)
            unseen_s = _unseen_s(place, at)
            age[:, number] = max(0.0, place.age_s - unseen_s)
            continue
        up[:, number] = drawn = random.random(runs) < life.share
        chance = random.random(runs)
        for state in (False, True):
            rows = drawn == state
            age[rows, number] = np.searchsorted(life.ages[int(state)], chance[rows]) * tick_s
    return up, age


def _unseen_s(place: PlaceState, at: datetime) -> float:
    return max(0.0, (at - place.seen_at).total_seconds()) if place.seen_at else 0.0


def _is_known(place: PlaceState, at: datetime) -> bool:
    return place.is_available is not None and _unseen_s(place, at) <= STALE_S


def _stale_steps(place: PlaceState, at: datetime, tick_s: float) -> int:
    return int(_unseen_s(place, at) / tick_s) if _is_known(place, at) else 0

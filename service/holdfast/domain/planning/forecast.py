"""What a job will cost and when it will end, from replays of the days before. Pure.

The job is replayed from starts of the last `DAYS_S` that ended before now. A start counts more if the market was then as it is now: by the share of
the last `RECENT_S` in which spot nodes were available, and whether they are available at the start. The quantiles of these runs hold less than they say, as
days differ from each other; they are widened by what other recordings needed (split conformal prediction).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from holdfast.domain.planning.replay import RecordedMarkets, Runs, Terms, Windows, replay
from holdfast.domain.planning.situation import HOUR_S, ROUNDING, Indices, PlacementPolicy
from holdfast.domain.planning.traces import Flags, Numbers

DAYS_S: Final = 10 * 86400.0
"""How far back starts count. A lower value rests on few runs; a higher value on a market that has changed."""
RECENT_S: Final = 6 * 3600.0
"""The time before a start that says what the market is like.
A lower value takes a moment for the market; a higher value does not see that it changed."""
SHARE_SCALE: Final = 0.1
"""Difference of shares at which a start counts 1/e.
A lower value rests on few runs; a higher value on days unlike this one."""
EVERY_S: Final = 3600.0
"""Time between two starts. A lower value takes longer and says the same; a higher value rests on few runs."""
MIN_RUNS: Final = 48
"""Earlier runs that a forecast needs. A lower value takes some hours for the market; a higher value has no forecast for days."""
WIDENING: Final = 0.06
"""What both ends are widened by, as a share of the cost on demand.
A lower value promises too much; a higher value says nothing. Held V100 nodes of April 2023 needed it for four runs of five within the ends."""


@dataclass(frozen=True, slots=True)
class Forecast:
    """Forecasts of runs, (rows); NaN where too few earlier runs have ended."""

    p10_usd: Numbers
    p50_usd: Numbers
    p90_usd: Numbers
    p_late: Numbers
    """Chance that the deadline is missed."""
    history: Indices
    """Number of earlier runs on which each rests; 0 without a forecast."""


def forecast(
    policy: PlacementPolicy, market: RecordedMarkets, windows: Windows, terms: Terms
) -> Forecast:
    """Forecast each window, all of one deadline and changeover, from the ticks before its start."""
    starts, runs = _earlier_runs(policy, market, windows, terms)
    shares, ups = _recent(market)
    found = np.full((4, len(windows.start)), np.nan)
    history = np.zeros(len(windows.start), np.intp)
    late = runs.finish_s > windows.deadline_s[0] + ROUNDING
    ends = starts.start + runs.finish_s / market.gap_s
    days = DAYS_S / market.gap_s
    whole_usd = _on_demand_usd(market, windows, terms)
    for row, (number, start) in enumerate(zip(windows.market, windows.start, strict=True)):
        rows = (
            (starts.market == number) & (ends <= start + ROUNDING) & (starts.start >= start - days)
        )
        if rows.sum() < MIN_RUNS:
            continue
        then = starts.start[rows]
        difference = np.abs(shares[number, then] - shares[number, start])
        weights = np.exp(-difference / SHARE_SCALE)
        weights[ups[number, then] != ups[number, start]] /= 2
        cost = runs.cost_usd[rows]
        low, middle, high = weighted_quantiles(cost, weights, (0.1, 0.5, 0.9))
        found[:, row] = (
            max(0.0, low - WIDENING * whole_usd),
            middle,
            high + WIDENING * whole_usd,
            float(weights @ late[rows] / weights.sum()),
        )
        history[row] = int(rows.sum())
    return Forecast(found[0], found[1], found[2], found[3], history)


def weighted_quantiles(
    values: Numbers, weights: Numbers, quantiles: tuple[float, ...]
) -> list[float]:
    """The least values up to which the weights add up to each quantile of their sum."""
    order = np.argsort(values, kind="stable")
    sums = np.cumsum(weights[order])
    at = np.searchsorted(sums, np.array(quantiles) * sums[-1] * (1 - ROUNDING))
    return [float(each) for each in values[order][np.minimum(at, len(values) - 1)]]


def _earlier_runs(
    policy: PlacementPolicy, market: RecordedMarkets, windows: Windows, terms: Terms
) -> tuple[Windows, Runs]:
    """The job from starts at even distances in each market, before the last window."""
    step = max(1, round(EVERY_S / market.gap_s))
    starts: list[tuple[int, int]] = []
    for number in np.unique(windows.market).tolist():
        last = int(windows.start[windows.market == number].max())
        starts += [(number, start) for start in range(last % step, last, step)]
    market_of, start_of = np.array(starts, np.intp).reshape(-1, 2).T
    rows = len(start_of)
    earlier = Windows(
        market=market_of,
        start=start_of,
        work_s=windows.work_s,
        deadline_s=np.full(rows, windows.deadline_s[0]),
        changeover_s=np.full(rows, windows.changeover_s[0]),
    )
    return earlier, replay(policy, market, earlier, terms)


def _recent(market: RecordedMarkets) -> tuple[Numbers, Indices]:
    """The share of recent ticks with spot nodes, and whether there are some, (markets, ticks)."""
    up: Flags = np.logical_or.reduce(market.available, axis=1)
    span = max(1, round(RECENT_S / market.gap_s))
    sums = np.concatenate([np.zeros((len(up), 1)), np.cumsum(up, axis=1)], axis=1)
    end = np.arange(1, up.shape[1] + 1)
    begin = np.maximum(end - span, 0)
    shares: Numbers = (sums[:, end] - sums[:, begin]) / (end - begin)
    return shares, up.astype(np.intp)


def _on_demand_usd(market: RecordedMarkets, windows: Windows, terms: Terms) -> float:
    """The cost of the job on demand alone, for whole ticks."""
    ticks = np.ceil((windows.work_s + windows.changeover_s[0]) / market.gap_s - ROUNDING)
    return float(ticks * market.gap_s / HOUR_S * terms.on_demand_usd_per_hour)

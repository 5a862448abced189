"""Compares policies in zones of three regions with the least cost, in recorded windows and in markets that are sampled from the model of `holdfast`.

In its own model, with multipliers that it knows, the policy is close to the best that exists without foresight. What it costs there above the least cost is
the price of not knowing the future, which no policy avoids.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import numpy as np
from holdfast.domain.events.planning import PlaceState
from holdfast.domain.planning.beliefs import padded, table_of
from holdfast.domain.planning.market_samples import sample_markets
from holdfast.domain.planning.optimum import replay_optimum
from holdfast.domain.planning.policies import Threshold, UniformProgress
from holdfast.domain.planning.replay import RecordedMarkets, Terms, Windows, replay
from holdfast.domain.planning.situation import HOUR_S, Indices
from holdfast.domain.planning.survival import Survival
from holdfast.domain.planning.traces import Numbers, Trace

from planner.estimate import read_places

RECORDINGS: Final = Path(__file__).parents[2] / "tests" / "data" / "spot_traces" / "aws_2023_02_15"
ZONES: Final = (
    ("us-east-1a_v100_1", "us-east-2b_v100_1", "us-west-2a_v100_1"),
    ("us-east-1f_v100_1", "us-east-2b_v100_1", "us-west-2b_v100_1"),
)
WORK_S, DEADLINE_S, CHANGEOVER_S = 40 * HOUR_S, 44 * HOUR_S, 720.0
TERMS: Final = Terms(on_demand_usd_per_hour=3.06, egress_usd=1.0)
"""Fifty gigabytes at 0.02 USD."""
AT: Final = datetime(2026, 3, 1, tzinfo=UTC)


def shares_of_least_cost(windows: int) -> Iterator[tuple[str, dict[str, float]]]:
    """The mean cost of each policy as a share of the least cost, for each set of zones and kind of market."""
    traces = {trace.name: trace for trace in read_places(RECORDINGS, [1])}
    prices = json.loads(RECORDINGS.with_name(f"{RECORDINGS.name}_prices.json").read_text())
    for names in ZONES:
        zones = [traces[name] for name in names]
        recorded = _recorded(zones, np.array([[prices[name] for name in names]]))
        room = recorded.available.shape[2] - int(np.ceil(DEADLINE_S / recorded.gap_s))
        starts = np.linspace(0, room, windows).astype(np.intp)
        where = ", ".join(name.partition("_")[0] for name in names)
        yield f"{where}: recorded", _shares(recorded, np.zeros(windows, np.intp), starts)
        sampled = _sampled(zones, recorded, windows)
        starts = np.zeros(windows, np.intp)
        yield f"{where}: sampled", _shares(sampled, np.arange(windows), starts)


def _recorded(zones: Sequence[Trace], price: Numbers) -> RecordedMarkets:
    regions = sorted({zone.region for zone in zones})
    return RecordedMarkets(
        gap_s=zones[0].gap_s,
        available=padded([zones]),
        price=price,
        region=np.array([[regions.index(zone.region) for zone in zones]]),
        beliefs=table_of([zones]),
    )


def _sampled(zones: Sequence[Trace], recorded: RecordedMarkets, runs: int) -> RecordedMarkets:
    """Markets with the mean price and multipliers of recorded ones."""
    found = recorded.beliefs
    places = [
        PlaceState(
            name=zone.name,
            region=zone.region,
            spot_usd_per_hour=float(recorded.price[0, number].mean()),
            loss=float(found.loss[0, number].mean()),
            returns=float(found.returns[0, number].mean()),
        )
        for number, zone in enumerate(zones)
    ]
    ticks = int(np.ceil(DEADLINE_S / recorded.gap_s)) + 1
    return sample_markets(places, AT, tick_s=recorded.gap_s, ticks=ticks, runs=runs, seed=1)


def _shares(market: RecordedMarkets, number: Indices, start: Indices) -> dict[str, float]:
    windows = Windows(
        market=number,
        start=start,
        work_s=WORK_S,
        deadline_s=np.full(len(start), DEADLINE_S),
        changeover_s=np.full(len(start), CHANGEOVER_S),
    )
    least_usd = float(replay_optimum(market, windows, TERMS).cost_usd.mean())
    return {
        policy.name: float(replay(policy, market, windows, TERMS).cost_usd.mean()) / least_usd
        for policy in (UniformProgress(), Threshold(), Survival())
    }

"""Measures forecasts of a job: CPU time of its three alternatives, cold and warm, and of a small one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

from holdfast.domain.events.planning import MarketState, PlaceState
from holdfast.domain.planning.outlook import JobOutlook, alternatives, forecast
from holdfast.domain.planning.survival import Survival

NOW = datetime(2026, 3, 1, tzinfo=UTC)
WORK_S, DEADLINE_H = 48 * 3600.0, 60
FEW_RUNS = 64


def outlook_times(places: int, *, sees_all: bool) -> Iterator[tuple[str, float]]:
    """CPU time of forecasts of a job of 48 h with the policy `holdfast`."""
    job = JobOutlook(
        now=NOW,
        submitted_at=NOW,
        deadline_at=NOW + timedelta(hours=DEADLINE_H),
        remaining_s=WORK_S,
        work_s=WORK_S,
        margin_s=600.0,
        lost_work_s=1800.0,
    )
    market = MarketState(
        at=NOW,
        places=tuple(place_of(number) for number in range(places)),
        tick_s=60.0,
        changeover_s=360.0,
        sees_all=sees_all,
    )
    policy = Survival()
    for state in ("cold", "warm"):
        began_s = time.process_time()
        alternatives(job, market, policy)
        yield f"three forecasts, {state}", time.process_time() - began_s
    began_s = time.process_time()
    forecast(job, market, policy, runs=FEW_RUNS)
    yield f"one of {FEW_RUNS} runs, warm", time.process_time() - began_s


def place_of(number: int) -> PlaceState:
    """A place of a forecast, with both kinds of nodes."""
    return PlaceState(
        name=f"zone-{number}",
        region="region",
        spot_usd_per_hour=1.0 + 0.1 * number,
        on_demand_usd_per_hour=3.0,
        is_available=(True, False, None)[number % 3],
        seen_at=NOW,
        age_s=7200.0,
    )

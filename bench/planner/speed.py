"""Measures replays: job-hours, from start to end of each run, for each second of CPU time."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
from holdfast.domain.planning.backtest import POLICIES
from holdfast.domain.planning.beliefs import padded, table_of
from holdfast.domain.planning.replay import HOUR_S, RecordedMarkets, Terms, Windows, replay
from holdfast.domain.planning.traces import Trace

WORK_S, DEADLINE_S, CHANGEOVER_S = 48 * HOUR_S, 60 * HOUR_S, 72.0
TERMS = Terms(on_demand_usd_per_hour=3.06)
SPOT_USD = 0.9731


def measured(traces: Sequence[Trace], rows: int) -> Iterator[tuple[str, float, float]]:
    """Each policy with its job-hours per second of CPU time, and that time; `holdfast` twice."""
    places = [[trace] for trace in traces]
    available = padded(places)
    market = RecordedMarkets(
        gap_s=traces[0].gap_s,
        available=available,
        price=np.full(available.shape, SPOT_USD),
        region=np.zeros(available.shape[:2], np.intp),
        beliefs=table_of(places),
    )
    random = np.random.default_rng(0)
    room = min(len(trace.available) for trace in traces) - int(DEADLINE_S / traces[0].gap_s)
    windows = Windows(
        market=random.integers(0, len(traces), rows),
        start=random.integers(0, room, rows),
        work_s=WORK_S,
        deadline_s=np.full(rows, DEADLINE_S),
        changeover_s=np.full(rows, CHANGEOVER_S),
    )
    for name, kind in POLICIES.items():
        if kind is None:
            continue
        policy = kind()
        for state in ("cold tables", "warm tables") if name == "holdfast" else ("",):
            began_s = time.process_time()
            runs = replay(policy, market, windows, TERMS)
            cpu_s = time.process_time() - began_s
            assert (runs.finish_s <= DEADLINE_S).all(), name
            yield f"{name} {state}".strip(), float(runs.finish_s.sum()) / HOUR_S / cpu_s, cpu_s

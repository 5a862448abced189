"""The places of a recorded market as a policy sees them at a moment. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

import numpy as np

from holdfast.domain.events.planning import PlaceState
from holdfast.domain.planning.beliefs import beliefs_over
from holdfast.domain.planning.traces import Numbers, Trace
from holdfast.domain.simulation.recorded_market import MarketRecording, RecordedZone
from holdfast.domain.simulation.spot_market import PLACE_PREFIX, MarketParameters

MICROS: Final = 1_000_000


def recording_of(
    traces: Sequence[Trace], prices: Mapping[str, Numbers] | None, start: datetime
) -> MarketRecording:
    """The market of traces from `start` on.

    They cover the same time. `prices` are in USD per hour of each tick, by name of the trace.
    """
    zones = []
    for trace in traces:
        counts = trace.available if trace.counts is None else trace.counts
        micros = np.rint(prices[trace.name] * MICROS).astype(np.int64).tolist() if prices else ()
        known = zip(counts.tolist(), trace.known.tolist(), strict=True)
        zones.append(
            RecordedZone(
                name=trace.name,
                region=trace.region,
                counts=tuple(int(count) if is_known else None for count, is_known in known),
                micros=tuple(micros),
            )
        )
    return MarketRecording(start=start, gap_s=traces[0].gap_s, zones=tuple(zones))


@dataclass(frozen=True, slots=True)
class _History:
    """What the ticks up to each tick of a zone show, for launches of a size."""

    age_s: Numbers
    loss: Numbers
    returns: Numbers
    observations: Numbers


class PlaceHistory:
    """The states of all zones of a recorded market at any moment."""

    def __init__(self, recording: MarketRecording, market: MarketParameters) -> None:
        """`market` has the prices that the recording lacks."""
        self.tick_s = recording.gap_s
        self._recording = recording
        self._market = market
        self._histories: dict[int, Sequence[_History]] = {}
        """By number of nodes; computed when needed. Computing one twice is harmless."""

    def states(self, at: datetime, nodes: int = 1) -> tuple[PlaceState, ...]:
        """The state of each zone at a moment, for launches of `nodes` nodes.

        Prices are those of one node.
        """
        if nodes not in self._histories:
            self._histories[nodes] = [
                _history(zone, self._recording.gap_s, nodes) for zone in self._recording.zones
            ]
        tick = self._recording.tick(at)
        histories = self._histories[nodes]
        return tuple(
            self._state(zone, history, tick, at, nodes)
            for zone, history in zip(self._recording.zones, histories, strict=True)
        )

    def _state(
        self, zone: RecordedZone, history: _History, tick: int, at: datetime, nodes: int
    ) -> PlaceState:
        # After the end of the recording nothing more is seen.
        seen = min(tick, self._recording.ticks - 1)
        micros = self._recording.micros(zone, tick)
        return PlaceState(
            name=PLACE_PREFIX + zone.name,
            region=zone.region,
            spot_usd_per_hour=(self._market.spot_micros if micros is None else micros) / MICROS,
            on_demand_usd_per_hour=self._market.on_demand_micros / MICROS,
            priced_at=at,
            is_available=self._recording.is_available(zone, tick, nodes),
            seen_at=at,
            age_s=float(history.age_s[seen]),
            loss=float(history.loss[seen]),
            returns=float(history.returns[seen]),
            observations=int(history.observations[seen]),
        )


def _history(zone: RecordedZone, gap_s: float, nodes: int) -> _History:
    known = np.array([count is not None for count in zone.counts])
    counts = np.array([count or 0 for count in zone.counts])
    trace = Trace(zone.name, gap_s, known & (counts >= nodes), known)
    return _History(*beliefs_over(trace), np.cumsum(known))

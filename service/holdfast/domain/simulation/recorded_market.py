"""A recorded spot market that is replayed from a moment on. Pure, standard library only.

Time goes in ticks of the recording. Spot nodes are placed in a tick in which there are enough of them, and are lost at the beginning of the first tick in
which there are not. After the end of the recording, and in unknown ticks, there are none.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedZone:
    """A zone of a recording."""

    name: str
    region: str
    counts: tuple[int | None, ...]
    """Spot nodes that could be had in each tick; None where that is unknown."""
    micros: tuple[int, ...] = ()
    """Price of a spot node in each tick, in micro-dollars per hour; empty: the market's usual price."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MarketRecording:
    """The recorded zones of a market, and when their first tick begins."""

    start: datetime
    gap_s: float
    """Length of a tick in seconds."""
    zones: tuple[RecordedZone, ...]
    """At least one; all have as many ticks."""

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> MarketRecording:
        """Parse the fields of a recording that was stored as JSON."""
        zones = [
            RecordedZone(
                name=zone["name"],
                region=zone["region"],
                counts=tuple(zone["counts"]),
                micros=tuple(zone["micros"]),
            )
            for zone in raw["zones"]
        ]
        return cls(
            start=datetime.fromisoformat(raw["start"]), gap_s=raw["gap_s"], zones=tuple(zones)
        )

    @property
    def ticks(self) -> int:
        """Number of recorded ticks."""
        return len(self.zones[0].counts)

    def tick(self, at: datetime) -> int:
        """The tick at a moment; the first one before the start."""
        return max(0, (at - self.start) // timedelta(seconds=self.gap_s))

    def begin(self, tick: int) -> datetime:
        """When a tick begins."""
        return self.start + tick * timedelta(seconds=self.gap_s)

    def zone(self, name: str) -> RecordedZone:
        """The zone of a name, which must be of this recording."""
        return next(zone for zone in self.zones if zone.name == name)

    def is_available(self, zone: RecordedZone, tick: int, nodes: int) -> bool:
        """Whether as many spot nodes can be had in a tick."""
        count = zone.counts[tick] if tick < self.ticks else None
        return count is not None and count >= nodes

    def micros(self, zone: RecordedZone, tick: int) -> int | None:
        """Recorded price of a spot node in a tick; None for the market's usual price.

        After the end of the recording, the last price holds.
        """
        return zone.micros[min(tick, self.ticks - 1)] if zone.micros else None

    def lost_at(self, zone: RecordedZone, at: datetime, nodes: int) -> datetime:
        """When spot nodes that stand at a moment are lost.

        That moment itself if there are none in its tick.
        """
        first = self.tick(at)
        if not self.is_available(zone, first, nodes):
            return at
        lost = next(
            tick
            for tick in range(first + 1, self.ticks + 1)
            if not self.is_available(zone, tick, nodes)
        )
        return self.begin(lost)

    def retry_at(self, at: datetime) -> datetime | None:
        """When a denied request for spot nodes is repeated; None after the end of the recording."""
        tick = self.tick(at)
        return self.begin(tick + 1) if tick < self.ticks else None

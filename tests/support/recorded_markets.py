"""Recorded markets for tests of launchers."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from holdfast.clock import SIMULATION_START
from holdfast.domain.simulation.recorded_market import MarketRecording, RecordedZone


def zone_of(name: str, text: str, micros: tuple[int, ...] = ()) -> RecordedZone:
    """A zone of one character for each tick: the number of nodes, or ? if it is unknown."""
    counts = tuple(None if sign == "?" else int(sign) for sign in text)
    return RecordedZone(name=name, region=name, counts=counts, micros=micros)


def recording_of_zones(
    *zones: RecordedZone, gap_s: float = 600.0, start: datetime = SIMULATION_START
) -> MarketRecording:
    """The recording of some zones."""
    return MarketRecording(start=start, gap_s=gap_s, zones=zones)


def asks_for(*zones: str, use_spot: bool = True) -> dict[str, Any]:
    """The part of a task that names zones, in order of preference."""
    options = [{"infra": f"local/{zone}", "use_spot": use_spot} for zone in zones]
    return {"resources": {"ordered": options}}

"""Simulated spot weather: what a market does to one launch, told by a seed.

Every answer depends on the seed, the key and the numbers asked about, never on what was asked before, so that a
restarted service, a second replica and a test all see the same weather. Used by the local launcher (real processes)
and the simulated cloud (none); its prices are marked as simulated wherever they are shown.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

ZONES: Final = ("local-a", "local-b", "local-c")


@dataclass(frozen=True, kw_only=True, slots=True)
class MarketParameters:
    """Figures of a market. All times in seconds, prices in micro-dollars per node-hour."""

    seed: int = 0
    provision_s: float = 1.0
    """Mean time from asking until nodes stand; one draw lies between a half and one and a half of it."""
    denial_rate: float = 0.0
    """Chance that a zone denies a request; drawn again for every try."""
    mtbf_s: float = 0.0
    """Mean lifetime of a placement; 0 means that the market never takes one."""
    zone_hazards: tuple[float, ...] = ()
    """How many times as often as `mtbf_s` says each of `zones` takes nodes, all above 0; empty: none differs."""
    hour_hazards: tuple[float, ...] = ()
    """The same of each hour of the day in UTC, 24 of them; empty: none differs."""
    notice_s: float = 120.0
    no_notice_rate: float = 0.0
    """Chance that a preemption comes without its notice."""
    spot_micros: int = 1_150_000
    on_demand_micros: int = 3_670_000
    spread: float = 0.2
    """How far a zone's spot price lies from the mean, at most, as a share of it."""
    zones: tuple[str, ...] = ZONES
    is_spot: bool = True
    """Whether the market may take what it gives."""

    def met_by(self, task: Mapping[str, Any]) -> MarketParameters:
        """This market as a rendered task meets it: without spot, nothing is denied or taken, at the price of that."""
        if (task.get("resources") or {}).get("use_spot", True):
            return self
        calm = replace(self, denial_rate=0.0, mtbf_s=0.0, spread=0.0, is_spot=False)
        return replace(calm, spot_micros=self.on_demand_micros)


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """What the market does with one try to get nodes."""

    zone: str
    wait_s: float
    """Until the answer."""
    denied: bool
    micros_per_node_hour: int
    """The climate's spot price, give or take its spread, by zone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lifetime:
    """How long a placement may stand."""

    lifetime_s: float | None
    """None: the market leaves it alone."""
    notice_s: float
    """Warning before the end; 0 means none."""


@dataclass(frozen=True, slots=True)
class SpotMarket:
    """The market as seen by one launch key."""

    climate: MarketParameters
    key: str

    def offer(self, placement: int, attempt: int) -> Offer:
        """The answer to try number `attempt` (from 0) for placement number `placement` (from 1)."""
        draw = self._draw("offer", placement, attempt)
        zone = self.climate.zones[draw.randrange(len(self.climate.zones))]
        return Offer(
            zone=zone,
            wait_s=self.climate.provision_s * draw.uniform(0.5, 1.5),
            denied=draw.random() < self.climate.denial_rate,
            micros_per_node_hour=self._price(zone),
        )

    def fate(
        self, placement: int, zone: str | None = None, ready_at: datetime | None = None
    ) -> Lifetime:
        """How placement number `placement` (from 1) ends if the program does not end before.

        Where it stands and since when matter in a climate whose zones or hours differ, and there alone.
        """
        climate, draw = self.climate, self._draw("fate", placement)
        lifetime_s = draw.expovariate(1 / climate.mtbf_s) if climate.mtbf_s else None
        silent = draw.random() < climate.no_notice_rate
        if lifetime_s is not None and zone in climate.zones and climate.zone_hazards:
            lifetime_s /= climate.zone_hazards[climate.zones.index(zone)]
        if lifetime_s is not None and ready_at is not None and climate.hour_hazards:
            lifetime_s = _through_the_day(lifetime_s, ready_at, climate.hour_hazards)
        return Lifetime(lifetime_s=lifetime_s, notice_s=0.0 if silent else climate.notice_s)

    def _price(self, zone: str) -> int:
        draw = random.Random(f"{self.climate.seed}/price/{zone}")
        spread = self.climate.spread
        return round(self.climate.spot_micros * draw.uniform(1 - spread, 1 + spread))

    def _draw(self, *what: str | int) -> random.Random:
        return random.Random("/".join(map(str, (self.climate.seed, self.key, *what))))


def _through_the_day(lifetime_s: float, since: datetime, hazards: tuple[float, ...]) -> float:
    """A lifetime in a steady climate as it is where time wears nodes faster in some hours than in others."""
    hour_s, day_s = 3600.0, 3600.0 * sum(hazards)
    whole_days, left_s = divmod(lifetime_s, day_s)
    begin = since - timedelta(
        minutes=since.minute, seconds=since.second, microseconds=since.microsecond
    )
    passed_s, at_s = 24 * hour_s * whole_days, (since - begin).total_seconds()
    for hour in range(25):
        hazard = hazards[(begin.hour + hour) % 24]
        stays_s = hour_s - at_s
        if left_s <= hazard * stays_s:
            break
        left_s, passed_s, at_s = left_s - hazard * stays_s, passed_s + stays_s, 0.0
    return passed_s + left_s / hazard

"""Simulated spot market for one launch, determined by a seed.

Answers depend only on the seed, the key and the arguments, so that a restarted service, a second replica and a test observe the
same market. The local launcher (real processes) and the simulated cloud (none) use it; its prices are marked as simulated.
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
    """Parameters of a market. Times are in seconds, prices in micro-dollars per node-hour."""

    seed: int = 0
    provision_s: float = 1.0
    """Mean time from request to ready nodes; each draw lies between 0.5 and 1.5 times the mean."""
    denial_rate: float = 0.0
    """Probability that a zone denies a request; drawn for each attempt."""
    mtbf_s: float = 0.0
    """Mean lifetime of a placement; 0 disables preemptions."""
    zone_hazards: tuple[float, ...] = ()
    """Preemption rate of each zone relative to `mtbf_s`, all above 0; empty for no difference."""
    hour_hazards: tuple[float, ...] = ()
    """Preemption rate of each of the 24 hours in UTC relative to `mtbf_s`; empty for no difference."""
    notice_s: float = 120.0
    no_notice_rate: float = 0.0
    """Probability that a preemption comes without notice."""
    spot_micros: int = 1_150_000
    on_demand_micros: int = 3_670_000
    spread: float = 0.2
    """Maximum deviation of a zone's spot price from the mean, as a share."""
    zones: tuple[str, ...] = ZONES
    is_spot: bool = True
    """Whether nodes can be preempted."""

    def for_task(self, task: Mapping[str, Any]) -> MarketParameters:
        """The market for a rendered task.

        On-demand nodes are never denied or preempted and cost the on-demand price.
        """
        if (task.get("resources") or {}).get("use_spot", True):
            return self
        calm = replace(self, denial_rate=0.0, mtbf_s=0.0, spread=0.0, is_spot=False)
        return replace(calm, spot_micros=self.on_demand_micros)


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """The market's answer to one request for nodes."""

    zone: str
    wait_s: float
    """Seconds until the answer."""
    denied: bool
    micros_per_node_hour: int
    """The market's spot price of the zone, including its spread."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lifetime:
    """Lifetime of a placement."""

    lifetime_s: float | None
    """Seconds until the preemption; None without one."""
    notice_s: float
    """Notice before the preemption; 0 for none."""


@dataclass(frozen=True, slots=True)
class SpotMarket:
    """The market as seen by one launch key."""

    parameters: MarketParameters
    key: str

    def offer(self, placement: int, attempt: int, *, replacements: int = 0) -> Offer:
        """The answer to request `attempt` (from 0) for placement `placement` (from 1).

        `replacements`: number of the node that is replaced within the placement (from 1); 0: the request is for all nodes.
        """
        draw = self._random("offer", placement, attempt, *_numbered(replacements))
        zone = self.parameters.zones[draw.randrange(len(self.parameters.zones))]
        return Offer(
            zone=zone,
            wait_s=self.parameters.provision_s * draw.uniform(0.5, 1.5),
            denied=draw.random() < self.parameters.denial_rate,
            micros_per_node_hour=self._price(zone),
        )

    def lifetime(
        self,
        placement: int,
        zone: str | None = None,
        ready_at: datetime | None = None,
        *,
        replacements: int = 0,
    ) -> Lifetime:
        """End of placement `placement` (from 1) if the program does not end earlier.

        `replacements`: number of nodes that were replaced in it; the lifetime then begins with the last replacement. Zone and start time matter only in markets whose zones or hours differ.
        """
        climate, draw = self.parameters, self._random("fate", placement, *_numbered(replacements))
        lifetime_s = draw.expovariate(1 / climate.mtbf_s) if climate.mtbf_s else None
        silent = draw.random() < climate.no_notice_rate
        if lifetime_s is not None and zone in climate.zones and climate.zone_hazards:
            lifetime_s /= climate.zone_hazards[climate.zones.index(zone)]
        if lifetime_s is not None and ready_at is not None and climate.hour_hazards:
            lifetime_s = _scale_by_hour(lifetime_s, ready_at, climate.hour_hazards)
        return Lifetime(lifetime_s=lifetime_s, notice_s=0.0 if silent else climate.notice_s)

    def _price(self, zone: str) -> int:
        draw = random.Random(f"{self.parameters.seed}/price/{zone}")
        spread = self.parameters.spread
        return round(self.parameters.spot_micros * draw.uniform(1 - spread, 1 + spread))

    def _random(self, *what: str | int) -> random.Random:
        return random.Random("/".join(map(str, (self.parameters.seed, self.key, *what))))


def _numbered(replacements: int) -> tuple[int, ...]:
    """What distinguishes draws for single nodes from those for all nodes."""
    return (replacements,) if replacements else ()


def _scale_by_hour(lifetime_s: float, since: datetime, hazards: tuple[float, ...]) -> float:
    """Scale a lifetime by the hourly preemption rates."""
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

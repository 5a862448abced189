"""Simulated spot market for one launch, determined by a seed.

Answers depend only on the parameters, the key and the arguments, so that a restarted service, a second replica and a test observe the
same market. The local launcher (real processes) and the simulated cloud (none) use it; its prices are marked as simulated.
Spot nodes come and go by chance, or as in a recording. A launch may name the zones that it wants, as places `local/<zone>`.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from holdfast.domain.simulation.recorded_market import MarketRecording, RecordedZone
from holdfast.errors import LaunchRefused

PLACE_PREFIX: Final = "local/"
"""What the names of places begin with; the name of a zone follows."""
ZONES: Final = ("local-a", "local-b", "local-c")


@dataclass(frozen=True, kw_only=True, slots=True)
class MarketParameters:
    """Parameters of a market. Times are in seconds, prices in micro-dollars per node-hour."""

    seed: int = 0
    provision_s: float = 1.0
    """Mean time from request to ready nodes; each draw lies between 0.5 and 1.5 times the mean. Exact in a recorded market."""
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
    on_demand_denial_rate: float = 0.0
    """Probability that a request for on-demand nodes is denied."""
    on_demand_wait_s: float = 0.0
    """Time for which on-demand nodes are awaited, before `provision_s`."""
    recording: MarketRecording | None = None
    """Where and when spot nodes are available; None: by chance. It replaces the zones, the rates of denials and of
    preemptions, and the spread of prices."""
    places: tuple[str, ...] = ()
    """Zones that a launch wants, in order of preference; empty: any."""

    @classmethod
    def parse(cls, raw: Mapping[str, Any]) -> MarketParameters:
        """Parse parameters that were stored as JSON."""
        recording = raw["recording"] and MarketRecording.parse(raw["recording"])
        lists = {name: tuple(value) for name, value in raw.items() if isinstance(value, list)}
        return cls(**{**raw, **lists, "recording": recording})

    @property
    def zone_names(self) -> tuple[str, ...]:
        """Names of all zones."""
        return tuple(zone.name for zone in self.recording.zones) if self.recording else self.zones

    def for_task(self, task: Mapping[str, Any]) -> MarketParameters:
        """The market for a rendered task.

        On-demand nodes are never preempted and cost the on-demand price.

        Raises:
            LaunchRefused: It names a zone that this market does not have, or both spot and on-demand nodes.
        """
        resources = task.get("resources") or {}
        options = [each for each in resources.get("ordered") or () if _is_place(each)]
        usual = resources.get("use_spot", True)
        takes_spot = {each.get("use_spot", usual) for each in options} or {usual}
        if len(takes_spot) > 1:
            raise LaunchRefused(
                "resources.ordered names spot and on-demand nodes; use_spot must be the same in all of them"
            )
        wanted = replace(self, places=self._zones_of(options)) if options else self
        if takes_spot.pop():
            return wanted
        return replace(
            wanted,
            denial_rate=self.on_demand_denial_rate,
            mtbf_s=0.0,
            spread=0.0,
            is_spot=False,
            spot_micros=self.on_demand_micros,
        )

    def _zones_of(self, options: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
        known = {name.lower(): name for name in self.zone_names}
        asked = [str(each["infra"]).removeprefix(PLACE_PREFIX).lower() for each in options]
        for name in asked:
            if name not in known:
                raise LaunchRefused(
                    f"infra {PLACE_PREFIX}{name} is no zone of this market; it has {', '.join(known)}"
                )
        return tuple(known[name] for name in asked)


def _is_place(option: Mapping[str, Any]) -> bool:
    return str(option.get("infra") or "").startswith(PLACE_PREFIX)


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """The market's answer to one request for nodes."""

    zone: str
    wait_s: float
    """Seconds until the answer."""
    denied: bool
    micros_per_node_hour: int
    """Price of a node there, including its spread."""
    passed: tuple[str, ...] = ()
    """Zones that denied the request at once, before this one was asked."""
    retry_s: float = 0.0
    """Seconds from a denial until the next request; infinite if all later ones would be denied, too."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Lifetime:
    """Lifetime of a placement."""

    lifetime_s: float | None
    """Seconds until the preemption; None without one."""
    notice_s: float
    """Notice before the preemption; 0 for none."""
    takes_all: bool = False
    """Whether all nodes are preempted together; otherwise one of them."""


@dataclass(frozen=True, slots=True)
class SpotMarket:
    """The market as seen by one launch key."""

    parameters: MarketParameters
    key: str
    nodes: int = 1
    """Nodes that are requested together."""

    def offer(
        self, placement: int, attempt: int, *, at: datetime | None = None, replacements: int = 0
    ) -> Offer:
        """The answer to request `attempt` (from 0) for placement `placement` (from 1).

        `at`: when the request is made, which matters in a recorded market only.
        `replacements`: number of the node that is replaced within the placement (from 1); 0: the request is for all nodes.
        """
        climate = self.parameters
        draw = self._random("offer", placement, attempt, *_numbered(replacements))
        if climate.recording:
            assert at is not None, "a recorded market depends on the time"
            return self._recorded_offer(climate.recording, at, draw)
        zone = climate.zones[draw.randrange(len(climate.zones))]
        if climate.places:
            zone = climate.places[attempt % len(climate.places)]
        return Offer(
            zone=zone,
            wait_s=self._wait_s(climate.provision_s * draw.uniform(0.5, 1.5)),
            denied=draw.random() < climate.denial_rate,
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

        `replacements`: number of nodes that were replaced in it; the lifetime then begins with the last replacement. Zone and start time matter only in
        recorded markets, and in those whose zones or hours differ.
        """
        climate, draw = self.parameters, self._random("fate", placement, *_numbered(replacements))
        lifetime_s = draw.expovariate(1 / climate.mtbf_s) if climate.mtbf_s else None
        silent = draw.random() < climate.no_notice_rate
        if climate.recording:
            return self._recorded_lifetime(climate.recording, zone, ready_at, silent=silent)
        if lifetime_s is not None and zone in climate.zones and climate.zone_hazards:
            lifetime_s /= climate.zone_hazards[climate.zones.index(zone)]
        if lifetime_s is not None and ready_at is not None and climate.hour_hazards:
            lifetime_s = _scale_by_hour(lifetime_s, ready_at, climate.hour_hazards)
        return Lifetime(lifetime_s=lifetime_s, notice_s=0.0 if silent else climate.notice_s)

    def within(self, zone: str) -> SpotMarket:
        """The market for nodes that replace others of a placement in `zone`.

        In a recorded market, they come from the same zone.
        """
        if not self.parameters.recording:
            return self
        return replace(self, parameters=replace(self.parameters, places=(zone,)), nodes=1)

    def _recorded_offer(
        self, recording: MarketRecording, at: datetime, draw: random.Random
    ) -> Offer:
        tick, passed = recording.tick(at), list[str]()
        for zone in self._wanted(recording, tick):
            if self.parameters.is_spot:
                lasts_s = (recording.lost_at(zone, at, self.nodes) - at).total_seconds()
                # A launch whose program leaves on the notice would get nodes there again.
                is_granted = lasts_s > self._notice_s(recording)
            else:
                is_granted = draw.random() >= self.parameters.denial_rate
            if is_granted:
                return replace(self._grant(recording, zone, at), passed=tuple(passed))
            passed.append(zone.name)
        # On-demand nodes do not depend on the recording.
        retry_at = recording.retry_at(at)
        if retry_at is None and not self.parameters.is_spot:
            retry_at = recording.begin(tick + 1)
        return Offer(
            zone=passed.pop(),
            wait_s=0.0,
            denied=True,
            micros_per_node_hour=self.parameters.spot_micros,
            passed=tuple(passed),
            retry_s=(retry_at - at).total_seconds() if retry_at else math.inf,
        )

    def _wanted(self, recording: MarketRecording, tick: int) -> Sequence[RecordedZone]:
        """The zones that the launch wants, in order; the cheapest first if it names none."""
        if self.parameters.places:
            return [recording.zone(name) for name in self.parameters.places]
        usual = self.parameters.spot_micros
        return sorted(recording.zones, key=lambda zone: recording.micros(zone, tick) or usual)

    def _grant(self, recording: MarketRecording, zone: RecordedZone, at: datetime) -> Offer:
        """An offer of a zone; a denial after all if its nodes go before they are ready."""
        climate = self.parameters
        micros = recording.micros(zone, recording.tick(at)) if climate.is_spot else None
        wait_s, lasts_s = self._wait_s(climate.provision_s), math.inf
        if climate.is_spot:
            lasts_s = (recording.lost_at(zone, at, self.nodes) - at).total_seconds()
        return Offer(
            zone=zone.name,
            wait_s=min(wait_s, lasts_s),
            denied=lasts_s <= wait_s,
            micros_per_node_hour=climate.spot_micros if micros is None else micros,
        )

    def _notice_s(self, recording: MarketRecording) -> float:
        """Notice before a loss, at most half a tick, so that nodes that last one tick can be used."""
        return min(self.parameters.notice_s, recording.gap_s / 2)

    def _recorded_lifetime(
        self,
        recording: MarketRecording,
        zone: str | None,
        ready_at: datetime | None,
        *,
        silent: bool,
    ) -> Lifetime:
        climate = self.parameters
        if not climate.is_spot:
            return Lifetime(lifetime_s=None, notice_s=0.0)
        assert zone is not None, "a recorded market depends on the zone"
        assert ready_at is not None, "a recorded market depends on the time"
        lost_at = recording.lost_at(recording.zone(zone), ready_at, self.nodes)
        return Lifetime(
            lifetime_s=(lost_at - ready_at).total_seconds(),
            notice_s=0.0 if silent else self._notice_s(recording),
            takes_all=True,
        )

    def _wait_s(self, provision_s: float) -> float:
        wait_s = 0.0 if self.parameters.is_spot else self.parameters.on_demand_wait_s
        return wait_s + provision_s

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

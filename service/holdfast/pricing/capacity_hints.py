"""Hints of providers about spot capacity: AWS, Google Cloud and Azure.

AWS scores how likely it is that all nodes are placed in one zone, and names the ten best zones of all regions. One request for an
instance type and a number of nodes serves all places. Scores of fewer than three instance types are low, and a job has one, so that a score says how a
place compares with others and little more. Google Cloud and Azure are asked about each region or zone. Blocking: call it from a thread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.domain.planning.places import zone_region
from holdfast.ports import CapacityHint, CapacityHints, Clock
from holdfast.pricing.aws import AwsSpot, ZoneScore, connect
from holdfast.pricing.azure import AzureScores
from holdfast.pricing.cloud_identity import Environment
from holdfast.pricing.gcp import GoogleAdvice

SOURCE: Final = "AWS spot placement score"
GOOGLE_SOURCE: Final = "Google Cloud capacity advice"
AZURE_SOURCE: Final = "Azure spot placement score"
BEST_SCORE: Final = 10


def open_capacity_hints(
    providers: Sequence[str] | None, clock: Clock, environment: Environment
) -> CapacityHints | None:
    """Open the hints of providers; None without one."""
    opened: dict[str, CapacityHints] = {}
    for provider in providers or ():
        match provider:
            case "aws":
                opened["aws"] = AwsCapacityHints(AwsSpot(clock, connect))
            case "gcp":
                opened["gcp"] = GoogleCapacityHints(GoogleAdvice(clock, environment))
            case "azure":
                opened["azure"] = AzureCapacityHints(AzureScores(clock, environment))
    return CloudCapacityHints(opened) if opened else None


@dataclass(frozen=True, slots=True)
class CloudCapacityHints:
    """Hints of several clouds, each about its own places."""

    clouds: Mapping[str, CapacityHints]

    def score(
        self, place: str, instance_type: str | None, nodes: int, at: datetime
    ) -> CapacityHint | None:
        """The hint of the cloud of a place."""
        for cloud, hints in self.clouds.items():
            if place.partition("#")[0].partition("/")[0] == cloud:
                return hints.score(place, instance_type, nodes, at)
        return None


@dataclass(frozen=True, slots=True)
class AwsCapacityHints:
    """Spot placement scores of AWS."""

    spot: AwsSpot

    def score(
        self, place: str, instance_type: str | None, nodes: int, at: datetime
    ) -> CapacityHint | None:
        """The best score within a place, as a share of the best one possible.

        It is the newest one, whatever the moment: AWS keeps no history.
        """
        del at
        cloud, region, zone = _parts(place)
        if cloud != "aws" or not instance_type:
            return None
        found = [
            score
            for score in self.spot.zone_scores(instance_type, nodes)
            if region in {"", score.region}
        ]
        if zone and found:
            found = self._in_zone(zone, region, found)
        best = max(found, key=lambda score: score.score, default=None)
        if best is None:
            return None
        return CapacityHint(probability=best.score / BEST_SCORE, source=SOURCE, as_of=best.as_of)

    def _in_zone(self, zone: str, region: str, scores: list[ZoneScore]) -> list[ZoneScore]:
        """Scores of a zone; those of its region if AWS does not tell which id the zone has.

        The ids of zones are the same for all accounts, their names are not.
        """
        names = self.spot.zone_names(region)
        if zone not in names.values():
            return scores
        return [score for score in scores if names.get(score.zone_id) == zone]


@dataclass(frozen=True, slots=True)
class GoogleCapacityHints:
    """Capacity advice of Google Cloud."""

    advice: GoogleAdvice

    def score(
        self, place: str, instance_type: str | None, nodes: int, at: datetime
    ) -> CapacityHint | None:
        """The obtainability in a zone, or in the best zone of a region, with its preemptions."""
        del at
        cloud, region, zone = _parts(place)
        if cloud != "gcp" or not instance_type or not region:
            return None
        advice = self.advice.capacity(region, zone, instance_type, nodes)
        if advice is None:
            return None
        return CapacityHint(
            probability=advice.obtainability,
            source=GOOGLE_SOURCE,
            as_of=advice.as_of,
            uptime_s=advice.uptime_s,
            preemption_rate=self.advice.preemption_rate(region, zone, instance_type),
        )


@dataclass(frozen=True, slots=True)
class AzureCapacityHints:
    """Spot placement scores of Azure."""

    spot: AzureScores

    def score(
        self, place: str, instance_type: str | None, nodes: int, at: datetime
    ) -> CapacityHint | None:
        """The score of a zone, or of a region that names none."""
        del at
        cloud, region, zone = _parts(place)
        if cloud != "azure" or not instance_type or not region:
            return None
        zone = zone.removeprefix(f"{region}-")
        for score in self.spot.scores(region, instance_type, nodes, in_zones=bool(zone)):
            if score.zone == zone:
                return CapacityHint(
                    probability=score.probability, source=AZURE_SOURCE, as_of=score.as_of
                )
        return None


def _parts(place: str) -> tuple[str, str, str]:
    """The cloud, region and zone of a place, empty where it names none."""
    cloud, region, zone, *_ = (*place.partition("#")[0].split("/"), "", "")
    region = zone_region(zone) or region
    return cloud, "" if region == "*" else region, "" if zone == "*" else zone

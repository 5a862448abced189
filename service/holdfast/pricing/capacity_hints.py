"""Hints of providers about spot capacity: AWS's spot placement scores.

AWS scores how likely it is that all nodes are placed in one zone, and names the ten best zones of all regions. One request for an
instance type and a number of nodes serves all places. Scores of fewer than three instance types are low, and a job has one, so that a score says how a
place compares with others and little more. Blocking: call it from a thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

from holdfast.domain.planning.places import zone_region
from holdfast.ports import CapacityHint, CapacityHints, Clock
from holdfast.pricing.aws import AwsSpot, ZoneScore, connect

SOURCE: Final = "AWS spot placement score"
BEST_SCORE: Final = 10


def open_capacity_hints(provider: Literal["aws"] | None, clock: Clock) -> CapacityHints | None:
    """Open the hints of a provider; None without one."""
    return AwsCapacityHints(AwsSpot(clock, connect)) if provider else None


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
        cloud, region, zone, *_ = (*place.partition("#")[0].split("/"), "", "")
        if cloud != "aws" or not instance_type:
            return None
        region = zone_region(zone) or region
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

"""AWS's spot market through boto3: price history, and scores of how likely a placement is.

AWS keeps ninety days of prices. For a time span it returns every change in it and the last one before it, which is the price at
its start. Blocking: call it from a thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final, Protocol

from holdfast.domain.pricing.quotes import (
    PricePoint,
    PriceQuery,
    Quote,
    QuoteSource,
    price_at,
    price_points_within,
)
from holdfast.ports import Clock
from holdfast.pricing.provider_cache import AnswerCache, ProviderUnavailable

PRODUCT: Final = "Linux/UNIX"
MICROS: Final = 1_000_000
CACHE_TTL: Final = timedelta(minutes=10)
"""How long a response is cached.
AWS changes a price a few times a day. A lower value makes more calls; a higher value uses older prices."""
ZONES_TTL: Final = timedelta(days=1)
CONNECT_S: Final = 3
READ_S: Final = 10
"""Read timeout in seconds.
With a higher value, a placement waits longer for its price; with a lower value, a slow response is discarded in
favor of the catalog's price."""
SOURCE: Final = "AWS spot price history"
SCORES_TTL: Final = timedelta(hours=4)
"""How long scores of placements are cached.
A lower value asks about fewer kinds of nodes within the daily limit; a higher value uses older scores."""
SCORES_RETRY: Final = timedelta(hours=1)
"""Time without scores after a failed request for them, which may count against a limit of AWS.
A lower value uses up the daily limit; a higher value misses scores for longer."""
SCORE_REQUESTS: Final = 48
"""Requests for scores in a day.
AWS limits new combinations of instance type and number for each account and day. A lower value leaves kinds of nodes without scores; with a
higher value, AWS refuses those of other programs of the account."""
ANY_REGION: Final = "us-east-1"
"""The region that is asked for the scores of all."""
_REGION: Final = re.compile(r"[a-z]{2}(-[a-z]+)+-\d{1,2}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Ec2(Protocol):
    """Client for one AWS region."""

    def spot_changes(
        self, instance_types: Sequence[str], since: datetime, until: datetime
    ) -> Iterable[Mapping[str, Any]]:
        """Return the entries of all pages of `describe_spot_price_history`."""
        ...

    def zones(self) -> Iterable[Mapping[str, Any]]:
        """Return the entries of `describe_availability_zones`."""
        ...

    def zone_scores(self, instance_type: str, nodes: int) -> Iterable[Mapping[str, Any]]:
        """Return the entries of `get_spot_placement_scores` for all nodes in one zone."""
        ...


class AwsUnavailable(ProviderUnavailable):
    """AWS was not asked or did not respond, for the given reason."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ZoneScore:
    """AWS's score of a placement in one zone."""

    region: str
    zone_id: str
    score: int
    """From 1 to 10."""
    as_of: datetime
    """When AWS was asked."""


@dataclass
class AwsSpot:
    """The AWS spot market, as far as this service has access."""

    clock: Clock
    connect: Callable[[str], Ec2]
    _cache: AnswerCache = field(init=False)

    def __post_init__(self) -> None:
        self._cache = AnswerCache(
            self.clock, "AWS's spot market", per_day=SCORE_REQUESTS, what="placement scores"
        )

    def quotes(self, region: str, instance_type: str, at: datetime) -> tuple[Quote, ...]:
        """Return the spot price of each zone of a region at a moment; empty without data from AWS."""
        quotes = []
        for zone, changes in self._by_zone(region, instance_type, at, at).items():
            if (change := price_at(changes, at)) is None:
                continue
            quotes.append(
                Quote(
                    cloud="aws",
                    region=region,
                    zone=zone,
                    instance_type=instance_type,
                    accelerator=None,
                    count=0,
                    on_demand_micros_per_hour=None,
                    spot_micros_per_hour=change.micros_per_hour,
                    as_of=at,
                    source=SOURCE,
                    tier=QuoteSource.LIVE,
                )
            )
        return tuple(quotes)

    def history(
        self, query: PriceQuery, since: datetime, until: datetime
    ) -> tuple[PricePoint, ...]:
        """Return a zone's price at the start and its changes in the span; empty without data."""
        if not (query.region and query.zone and query.instance_type and query.is_spot):
            return ()
        by_zone = self._by_zone(query.region, query.instance_type, since, until)
        return price_points_within(by_zone.get(query.zone, ()), since, until)

    def zone_names(self, region: str) -> Mapping[str, str]:
        """Return the account's zone names by zone id; empty without data from AWS."""

        def ask() -> Mapping[str, str]:
            zones = self.connect(region).zones()
            return {str(zone["ZoneId"]): str(zone["ZoneName"]) for zone in zones}

        return self._cache.get(("zones", region), ZONES_TTL, ask, retry=CACHE_TTL) or {}

    def zone_scores(self, instance_type: str, nodes: int) -> tuple[ZoneScore, ...]:
        """Return the best zones of all regions for so many nodes; empty without data from AWS."""

        def ask() -> tuple[ZoneScore, ...]:
            ec2, now = self.connect(ANY_REGION), self.clock.now()
            self._cache.count_question()
            return _scores(ec2.zone_scores(instance_type, nodes), now)

        key = ("scores", instance_type, str(nodes))
        return self._cache.get(key, SCORES_TTL, ask, retry=SCORES_RETRY) or ()

    def _by_zone(
        self, region: str, instance_type: str, since: datetime, until: datetime
    ) -> Mapping[str, tuple[PricePoint, ...]]:
        # Times are rounded, so that queries within the same minutes share one cache entry; newer data arrives with the
        # next one.
        begin, end = _rounded(since), min(_rounded(until) + CACHE_TTL, max(self.clock.now(), until))

        def ask() -> Mapping[str, tuple[PricePoint, ...]]:
            entries = self.connect(region).spot_changes([instance_type], begin, end)
            return _changes(entries, instance_type)

        times = (begin.isoformat(), _rounded(until).isoformat())
        key = ("prices", region, instance_type, *times)
        return self._cache.get(key, CACHE_TTL, ask, retry=CACHE_TTL) or {}


def _rounded(moment: datetime) -> datetime:
    """Round down to ten minutes."""
    return moment - (moment - _EPOCH) % CACHE_TTL


def _changes(
    entries: Iterable[Mapping[str, Any]], instance_type: str
) -> dict[str, tuple[PricePoint, ...]]:
    """Return the price changes of an instance type by zone.

    Malformed entries and entries without a price are skipped.
    """
    by_zone: dict[str, list[PricePoint]] = {}
    for entry in entries:
        product = str(entry.get("ProductDescription", ""))
        # For accounts with EC2-Classic, AWS appends (Amazon VPC) to the same product.
        if entry.get("InstanceType") != instance_type or not product.startswith(PRODUCT):
            continue
        try:
            micros = round(float(entry["SpotPrice"]) * MICROS)
        except (KeyError, ValueError, OverflowError):
            continue
        at = entry.get("Timestamp")
        if micros > 0 and isinstance(at, datetime) and at.tzinfo:
            zone = str(entry.get("AvailabilityZone", ""))
            by_zone.setdefault(zone, []).append(PricePoint(at=at, micros_per_hour=micros))
    return {zone: tuple(changes) for zone, changes in by_zone.items()}


def _scores(entries: Iterable[Mapping[str, Any]], now: datetime) -> tuple[ZoneScore, ...]:
    """Return the scores of zones; malformed entries are skipped."""
    return tuple(
        ZoneScore(
            region=str(entry["Region"]),
            zone_id=str(entry["AvailabilityZoneId"]),
            score=entry["Score"],
            as_of=now,
        )
        for entry in entries
        if entry.keys() >= {"Region", "AvailabilityZoneId"} and entry.get("Score") in range(1, 11)
    )


def connect(region: str) -> Ec2:
    """Connect to EC2 in a region, with the credentials that boto3 finds.

    Raises:
        AwsUnavailable: boto3, credentials or the region are missing.
    """
    if not _REGION.fullmatch(region):  # The region becomes part of a host name.
        raise AwsUnavailable(f"{region!r} is not an AWS region")
    try:
        from boto3 import Session  # noqa: PLC0415 - imported only when needed
        from botocore.config import Config  # noqa: PLC0415
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
        from botocore.parsers import ResponseParserError  # noqa: PLC0415
    except ModuleNotFoundError:
        raise AwsUnavailable("boto3 is not installed here", is_quiet=True) from None
    config = Config(
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        retries={"mode": "standard", "max_attempts": 2},
    )
    try:
        session = Session(region_name=region)
        if session.get_credentials() is None:
            raise AwsUnavailable("this service has no AWS credentials", is_quiet=True)
        client: Any = session.client("ec2", config=config)
    except (BotoCoreError, ValueError) as error:
        raise AwsUnavailable(str(error)) from error
    # A proxy's page instead of a response raises ResponseParserError, which is not a BotoCoreError.
    return _Boto(client, (BotoCoreError, ClientError, ResponseParserError))


@dataclass(frozen=True)
class _Boto:
    """EC2 client through boto3."""

    client: Any
    failures: tuple[type[Exception], ...]

    def spot_changes(
        self, instance_types: Sequence[str], since: datetime, until: datetime
    ) -> Iterator[Mapping[str, Any]]:
        pages = self.client.get_paginator("describe_spot_price_history").paginate(
            InstanceTypes=list(instance_types),
            ProductDescriptions=[PRODUCT, f"{PRODUCT} (Amazon VPC)"],
            StartTime=since,
            EndTime=until,
        )
        try:
            for page in pages:
                yield from page["SpotPriceHistory"]
        except self.failures as error:
            raise AwsUnavailable(str(error)) from error

    def zones(self) -> Iterator[Mapping[str, Any]]:
        try:
            yield from self.client.describe_availability_zones()["AvailabilityZones"]
        except self.failures as error:
            raise AwsUnavailable(str(error)) from error

    def zone_scores(self, instance_type: str, nodes: int) -> Iterator[Mapping[str, Any]]:
        pages = self.client.get_paginator("get_spot_placement_scores").paginate(
            InstanceTypes=[instance_type],
            TargetCapacity=nodes,
            TargetCapacityUnitType="units",
            SingleAvailabilityZone=True,
        )
        try:
            for page in pages:
                yield from page["SpotPlacementScores"]
        except self.failures as error:
            raise AwsUnavailable(str(error)) from error

"""Spot prices of AWS as AWS tells them now: the service's door to boto3 for EC2.

AWS keeps ninety days of them. Asked for a span of time, it tells every change in it, and the last one before it, which
is what was paid when it began. Blocking: call it from a thread.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from threading import Lock
from typing import Any, Final, Protocol, TypeVar

from holdfast.domain.pricing.quotes import Change, PriceQuery, Quote, QuoteSource, price_at, within
from holdfast.ports import Clock

log = logging.getLogger(__name__)

T = TypeVar("T")

PRODUCT: Final = "Linux/UNIX"
MICROS: Final = 1_000_000
KEEP: Final = timedelta(minutes=10)
"""How long an answer holds. AWS changes a price a few times a day. Shorter: more calls; longer: an old price is told."""
KEEP_ZONES: Final = timedelta(days=1)
CONNECT_S: Final = 3
READ_S: Final = 10
"""Longer: a placement waits for its price; shorter: a slow answer is taken for none, and the catalog's price is told."""
SOURCE: Final = "AWS spot price history"
_REGION: Final = re.compile(r"[a-z]{2}(-[a-z]+)+-\d{1,2}")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Ec2(Protocol):
    """What is asked of AWS in one region."""

    def spot_changes(
        self, instance_types: Sequence[str], since: datetime, until: datetime
    ) -> Iterable[Mapping[str, Any]]:
        """Entries of `describe_spot_price_history`, those of all pages."""
        ...

    def zones(self) -> Iterable[Mapping[str, Any]]:
        """Entries of `describe_availability_zones`."""
        ...


class PriceUnavailable(Exception):
    """AWS was not asked, or has not answered; why, in words."""

    def __init__(self, why: str, *, is_quiet: bool = False) -> None:
        super().__init__(why)
        self.is_quiet = is_quiet
        """Whether that is as it should be: nobody has given this service keys."""


@dataclass(frozen=True, slots=True)
class _Kept:
    until: datetime
    value: Any
    """None: there was no answer, and none is asked for before `until`."""


@dataclass
class AwsSpot:
    """The spot market of AWS, as far as this service may see it."""

    clock: Clock
    connect: Callable[[str], Ec2]
    _kept: dict[tuple[str, ...], _Kept] = field(default_factory=dict)
    _said: set[str] = field(default_factory=set)
    _alone: Lock = field(default_factory=Lock)

    def quotes(self, region: str, instance_type: str, at: datetime) -> tuple[Quote, ...]:
        """The spot price of each zone of a region at a moment; nothing where AWS does not say."""
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

    def history(self, wanted: PriceQuery, since: datetime, until: datetime) -> tuple[Change, ...]:
        """The price of one zone when the time begins, and every change in it; nothing where AWS does not say."""
        if not (wanted.region and wanted.zone and wanted.instance_type and wanted.is_spot):
            return ()
        told = self._by_zone(wanted.region, wanted.instance_type, since, until)
        return within(told.get(wanted.zone, ()), since, until)

    def zone_names(self, region: str) -> Mapping[str, str]:
        """The names of zones by their ids, as this account has them; nothing where AWS does not say."""

        def ask() -> Mapping[str, str]:
            zones = self.connect(region).zones()
            return {str(zone["ZoneId"]): str(zone["ZoneName"]) for zone in zones}

        return self._keep(("zones", region), KEEP_ZONES, ask) or {}

    def _by_zone(
        self, region: str, instance_type: str, since: datetime, until: datetime
    ) -> Mapping[str, tuple[Change, ...]]:
        # Two questions within the same minutes are one, which covers both; what is new comes with the next.
        begin, end = _rounded(since), min(_rounded(until) + KEEP, max(self.clock.now(), until))

        def ask() -> Mapping[str, tuple[Change, ...]]:
            entries = self.connect(region).spot_changes([instance_type], begin, end)
            return _changes(entries, instance_type)

        times = (begin.isoformat(), _rounded(until).isoformat())
        return self._keep(("prices", region, instance_type, *times), KEEP, ask) or {}

    def _keep(self, key: tuple[str, ...], keep: timedelta, ask: Callable[[], T]) -> T | None:
        """What was told, for a while; None where nothing was, and that, too, only holds for a while."""
        now = self.clock.now()
        with self._alone:
            for other in [key for key, kept in self._kept.items() if kept.until <= now]:
                del self._kept[other]
            if known := self._kept.get(key):
                value: T | None = known.value
                return value
        try:
            answer: T | None = ask()
        except PriceUnavailable as reason:
            answer, keep = None, KEEP
            self._say(reason)
        with self._alone:
            self._kept[key] = _Kept(now + keep, answer)
        return answer

    def _say(self, reason: PriceUnavailable) -> None:
        """Each reason once: without keys, that is how it stays."""
        if str(reason) not in self._said:
            self._said.add(str(reason))
            level = logging.INFO if reason.is_quiet else logging.WARNING
            log.log(level, "spot prices of AWS are not asked for: %s", reason)


def _rounded(moment: datetime) -> datetime:
    """The last full ten minutes."""
    return moment - (moment - _EPOCH) % KEEP


def _changes(
    entries: Iterable[Mapping[str, Any]], instance_type: str
) -> dict[str, tuple[Change, ...]]:
    """The changes of a type by zone; an entry that is odd, or has no price, is left out."""
    told: dict[str, list[Change]] = {}
    for entry in entries:
        product = str(entry.get("ProductDescription", ""))
        # Of accounts that still have EC2-Classic, AWS tells the same product with the words (Amazon VPC).
        if entry.get("InstanceType") != instance_type or not product.startswith(PRODUCT):
            continue
        try:
            micros = round(float(entry["SpotPrice"]) * MICROS)
        except (KeyError, ValueError, OverflowError):
            continue
        at = entry.get("Timestamp")
        if micros > 0 and isinstance(at, datetime) and at.tzinfo:
            zone = str(entry.get("AvailabilityZone", ""))
            told.setdefault(zone, []).append(Change(at=at, micros_per_hour=micros))
    return {zone: tuple(changes) for zone, changes in told.items()}


def connect(region: str) -> Ec2:
    """A connection to EC2 in a region, with the keys that boto3 finds.

    Raises:
        NotTold: there is no boto3, there are no keys, or there is no such region.
    """
    if not _REGION.fullmatch(region):  # It becomes a part of a host's name.
        raise PriceUnavailable(f"{region!r} is no region of AWS")
    try:
        from boto3 import Session  # noqa: PLC0415 - only who asks for it needs it
        from botocore.config import Config  # noqa: PLC0415
        from botocore.exceptions import BotoCoreError, ClientError  # noqa: PLC0415
        from botocore.parsers import ResponseParserError  # noqa: PLC0415
    except ModuleNotFoundError:
        raise PriceUnavailable("boto3 is not installed here", is_quiet=True) from None
    config = Config(
        connect_timeout=CONNECT_S,
        read_timeout=READ_S,
        retries={"mode": "standard", "max_attempts": 2},
    )
    try:
        session = Session(region_name=region)
        if session.get_credentials() is None:
            raise PriceUnavailable("this service has no keys of AWS", is_quiet=True)
        client: Any = session.client("ec2", config=config)
    except (BotoCoreError, ValueError) as error:
        raise PriceUnavailable(str(error)) from error
    # The last one is what a proxy's page instead of an answer leads to, and no kind of the first.
    return _Boto(client, (BotoCoreError, ClientError, ResponseParserError))


@dataclass(frozen=True)
class _Boto:
    """EC2 over boto3."""

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
            raise PriceUnavailable(str(error)) from error

    def zones(self) -> Iterator[Mapping[str, Any]]:
        try:
            yield from self.client.describe_availability_zones()["AvailabilityZones"]
        except self.failures as error:
            raise PriceUnavailable(str(error)) from error

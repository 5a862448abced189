"""Charges of a job beside its nodes: storage, requests, egress and disks. Pure.

Each line is a quantity times the price of a unit, as integers, rounded down once. The lines add up to `Charges.micros`, and with the
nodes to the whole bill. What has no known price has a line without an amount, so that it is seen. The parts of a line state by
attempt, zone and day what it counts, for totals over jobs.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from enum import StrEnum
from typing import Any, Final, NamedTuple

from holdfast_worker.protocol.object_stores import FILES, OWN_SERVER
from holdfast_worker.protocol.store_usage import NO_USAGE, StoreUsage

from holdfast.domain.billing.allocation import day_of, split_by_day
from holdfast.domain.billing.bill import AttemptBill, Bill
from holdfast.domain.billing.rate import MS_PER_HOUR, to_ms
from holdfast.domain.charges.resource_prices import ELSEWHERE, ResourcePrices
from holdfast.domain.charges.store_usage import DatedUsage, JobStoreUsage
from holdfast.domain.events import Event, Submitted
from holdfast.domain.jobfile.spec import Engine, JobPart, JobSpec
from holdfast.domain.planning.places import zone_region

GIB: Final = 2**30
MS_PER_MONTH: Final = 730 * MS_PER_HOUR
"""A month as clouds publish prices for it."""
ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")
"""Variables with which a job names an S3 server of its own."""
_COUNTERS: Final = {"put": "puts", "get": "gets", "list": "lists", "delete": "deletes"}


DEFAULT_SIZE_GIB: Final = 256
"""What SkyPilot 0.14.1 asks for without `disk_size`."""
DEFAULT_TIER: Final = "medium"
"""What it asks for without `disk_tier`."""
_SIZE: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmgtp]?)i?b?\+?", re.IGNORECASE)
_POWERS: Final = {"k": -2, "m": -1, "": 0, "g": 0, "t": 1, "p": 2}


class Category(StrEnum):
    """What a charge is for."""

    STORAGE = "storage"
    REQUESTS = "requests"
    EGRESS = "egress"
    DISKS = "disks"


class Unit(StrEnum):
    """What a price is for."""

    GIB_MONTH = "GiB-month"
    REQUESTS = "1000 requests"
    GIB = "GiB"
    DISK_MONTH = "disk-month"


PER: Final = {
    Unit.GIB_MONTH: GIB * MS_PER_MONTH,
    Unit.REQUESTS: 1000,
    Unit.GIB: GIB,
    Unit.DISK_MONTH: MS_PER_MONTH,
}
"""The quantity of a unit: byte-milliseconds, requests, bytes, or milliseconds of disks."""


@dataclass(frozen=True, slots=True)
class DiskSpec:
    """Size and kind of the disk of a node."""

    size_gib: int = DEFAULT_SIZE_GIB
    tier: str = DEFAULT_TIER


@dataclass(frozen=True, slots=True)
class ChargePart:
    """What a line counts of one attempt in one zone on one day."""

    attempt: int
    """0: of no attempt, as stored checkpoints and requests of the service."""
    zone: str
    """Zone of the nodes; empty without an attempt."""
    day: date
    quantity: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Charge:
    """One line of a bill beside the nodes."""

    category: Category
    item: str
    """What was used, in words."""
    place: str
    """Where, or from where to where; empty if unknown."""
    parts: Sequence[ChargePart]
    """In the order of time, as far as known."""
    unit: Unit
    unit_micros: int | None
    """Price of a unit; None if unknown."""

    @property
    def quantity(self) -> int:
        """In the smallest unit; see `PER`."""
        return sum(part.quantity for part in self.parts)

    @property
    def micros(self) -> int:
        """The amount; 0 without a price."""
        return self.quantity * (self.unit_micros or 0) // PER[self.unit]

    @property
    def units(self) -> str:
        """The quantity as a decimal number of units, rounded down to a millionth."""
        whole, rest = divmod(self.quantity * 1_000_000 // PER[self.unit], 1_000_000)
        return f"{whole}.{rest:06d}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Charges:
    """All charges of a job beside its nodes."""

    until: datetime
    store_place: str
    """Where its store is; empty without a store, and if unknown."""
    lines: tuple[Charge, ...]
    prices_source: str
    prices_as_of: str
    warning: str = ""
    """That its nodes and its store are in different places, and what that costs; empty otherwise."""

    @property
    def micros(self) -> int:
        """The sum of all lines."""
        return sum(line.micros for line in self.lines)

    @property
    def has_unpriced(self) -> bool:
        """Whether something was used for which no price is known."""
        return any(line.unit_micros is None for line in self.lines)


@dataclass(frozen=True, slots=True)
class KnownStore:
    """What the service knows of a store beside the events of the job."""

    requests: StoreUsage = NO_USAGE
    """Its own requests for the job."""
    dated: tuple[DatedUsage, ...] = ()
    """Those among them whose day is known, in order."""
    place: str = ""
    """Where the store said that it is; empty if unknown."""


UNKNOWN_STORE: Final = KnownStore()


def compute_charges(
    account: Bill,
    events: Iterable[Event],
    prices: ResourcePrices,
    now: datetime,
    known: KnownStore = UNKNOWN_STORE,
) -> Charges:
    """The charges of a job beside its bill, which was computed from the same events.

    Stored checkpoints cost until `now`, also after the end of the job. `known`: what the service itself knows of the store.
    """
    return ChargeBasis.from_events(events).charges(account, prices, now, known)


@dataclass(frozen=True, slots=True)
class ChargeBasis:
    """What the events of a job say about its charges."""

    submitted: Submitted
    spec: JobSpec
    usage: JobStoreUsage

    @classmethod
    def from_events(cls, events: Iterable[Event]) -> ChargeBasis:
        """Collect it from all events of a job, in their order."""
        facts = tuple(events)
        submission = _submitted(facts)
        return cls(
            submission, JobSpec.from_stored(submission.spec), JobStoreUsage.from_events(facts)
        )

    def charges(
        self, account: Bill, prices: ResourcePrices, now: datetime, known: KnownStore
    ) -> Charges:
        """The charges beside a bill, which was computed from the same events."""
        usage, spec = self.usage, self.spec
        place = store_place(spec, prices, usage.place, known.place)
        nodes = {item.attempt: attempt_region(spec, item) for item in account.attempts}
        zones = {item.attempt: item.zone for item in account.attempts}
        # The events may be of a clock that is ahead.
        until_ms = max(to_ms(now), usage.changed_ms)
        lines = [
            *_storage(usage, place, prices, until_ms),
            *_requests("nodes", usage.reported, zones, place, prices),
            *_requests("the service", self._visits(known), {}, place, prices),
            *_egress(usage, place, nodes, zones, prices),
            *disk_charges(DiskRates(spec, prices), account.attempts),
        ]
        return Charges(
            until=now,
            store_place=place,
            lines=tuple(line for line in lines if line.quantity),
            prices_source=prices.source,
            prices_as_of=prices.as_of,
            warning=placement_warning(
                place, next(reversed(nodes.values()), ""), usage.newest_bytes, prices
            ),
        )

    def _visits(self, known: KnownStore) -> Iterator[DatedUsage]:
        """Requests of the service by day; those of unknown days count for the day of the submission."""
        undated = known.requests - _total(known.dated)
        yield DatedUsage(0, day_of(to_ms(self.submitted.at)), undated)
        yield from known.dated


def store_url(events: Iterable[Event]) -> str:
    """The checkpoint store of a job; empty if it has none."""
    checkpoint = (_submitted(events).spec.get("holdfast") or {}).get("checkpoint") or {}
    return str(checkpoint.get("store", ""))


def _submitted(events: Iterable[Event]) -> Submitted:
    return next(fact for fact in events if isinstance(fact, Submitted))


def store_place(spec: JobSpec, prices: ResourcePrices, reported: str = "", known: str = "") -> str:
    """Where the store of a job is, by a price file, its workers or the store, in this order.

    `known` is what a bucket of this name said, which may be another one than that of a job with a server of its own.
    """
    if (checkpoint := spec.holdfast.checkpoint) is None:
        return ""
    if named := prices.store_place(checkpoint.store) or reported:
        return named
    scheme = checkpoint.store.partition("://")[0]
    if scheme == "s3" and any(spec.envs.get(name) for name in ENDPOINTS):
        return OWN_SERVER
    return known or {"file": FILES, "s3": "aws", "gs": "gcp", "az": "azure"}.get(scheme, "")


def attempt_region(spec: JobSpec, item: AttemptBill) -> str:
    """Cloud and region of all nodes of an attempt; empty if they are in several, or unknown."""
    if spec.engine is not Engine.SKYPILOT:
        return ELSEWHERE
    regions = {
        region_of(stay.placed.zone, stay.placed.cloud or item.cloud)
        for group in item.groups
        for stay in group.stays
    }
    return regions.pop() if len(regions) == 1 else ""


def region_of(zone: str, cloud: str) -> str:
    """Cloud and region of a zone that a launcher reported; empty if either is unknown."""
    parts = [part for part in zone.strip().lower().split("/") if part]
    cloud = cloud.strip().lower()
    if parts and (parts[0] == cloud or (not cloud and len(parts) > 1)):
        cloud, *parts = parts
    if not cloud or not parts or parts[0] == "unknown":
        return ""
    return f"{cloud}/{zone_region(parts[0]) or parts[0]}"


def placement_warning(store: str, nodes: str, size_bytes: int, prices: ResourcePrices) -> str:
    """That nodes and their store are in different places; empty if not, or if it is unknown.

    `size_bytes`: of a checkpoint; 0 if unknown.
    """
    if not ("/" in nodes and "/" in store) or nodes == store:
        return ""
    up, down = prices.egress_micros(nodes, store), prices.egress_micros(store, nodes)
    if up is None or down is None:
        cost = "the price of moving checkpoints between them is unknown"
    elif size_bytes:
        save, restore = (size_bytes * micros // GIB for micros in (up, down))
        cost = f"a save of {_gib(size_bytes)} costs {_usd(save)} and a restore {_usd(restore)}"
    else:
        cost = f"each GiB costs {_usd(up)} to save and {_usd(down)} to restore"
    return f"the checkpoint store is in {store} and the nodes are in {nodes}: {cost}; use a bucket in {nodes}"


def _gib(size_bytes: int) -> str:
    return f"{size_bytes / GIB:.3g} GiB"


def _usd(micros: int) -> str:
    digits = 2 if micros >= 1_000_000 else 4
    return f"${micros / 1_000_000:.{digits}f}"


def _total(usages: Iterable[DatedUsage]) -> StoreUsage:
    return sum((item.usage for item in usages), NO_USAGE)


def _storage(
    usage: JobStoreUsage, place: str, prices: ResourcePrices, until_ms: int
) -> Iterator[Charge]:
    days = sorted(usage.byte_ms_by_day(until_ms).items())
    yield Charge(
        category=Category.STORAGE,
        item="stored checkpoints",
        place=place,
        parts=[ChargePart(0, "", day, byte_ms) for day, byte_ms in days],
        unit=Unit.GIB_MONTH,
        unit_micros=prices.storage_micros(place),
    )


def _requests(
    who: str,
    usages: Iterable[DatedUsage],
    zones: Mapping[int, str],
    place: str,
    prices: ResourcePrices,
) -> Iterator[Charge]:
    used = tuple(usages)
    for kind, counter in _COUNTERS.items():
        yield Charge(
            category=Category.REQUESTS,
            item=f"{kind.upper()} of {who}",
            place=place,
            parts=[_part(item, zones, getattr(item.usage, counter)) for item in used],
            unit=Unit.REQUESTS,
            unit_micros=prices.request_micros(place, kind),
        )


def _part(item: DatedUsage, zones: Mapping[int, str], quantity: int) -> ChargePart:
    return ChargePart(item.attempt, zones.get(item.attempt, ""), item.day, quantity)


def _egress(
    usage: JobStoreUsage,
    store: str,
    nodes: Mapping[int, str],
    zones: Mapping[int, str],
    prices: ResourcePrices,
) -> Iterator[Charge]:
    """Bytes between the nodes and the store; free ones, as within a region, have no line."""
    moved: defaultdict[tuple[str, str, str], list[ChargePart]] = defaultdict(list)
    for item in usage.reported:
        region, used = nodes.get(item.attempt, ""), item.usage
        up, down = used.uploaded_bytes, used.downloaded_bytes
        moved["from nodes to the store", region, store].append(_part(item, zones, up))
        moved["from the store to nodes", store, region].append(_part(item, zones, down))
    for (name, source, target), parts in moved.items():
        micros = prices.egress_micros(source, target)
        if micros == 0:
            continue
        yield Charge(
            category=Category.EGRESS,
            item=name,
            place=f"{source or 'unknown'} -> {target or 'unknown'}",
            parts=parts,
            unit=Unit.GIB,
            unit_micros=micros,
        )


class DiskRate(NamedTuple):
    """The disk of a node in a zone."""

    place: str
    item: str
    unit_micros: int | None
    """Price for a month; None if unknown."""


class DiskRates:
    """The disks of a job and their prices, each looked up once."""

    def __init__(self, spec: JobSpec, prices: ResourcePrices) -> None:
        self._parts = {part.name: part for part in spec.parts}
        self._default = spec.parts[0]
        self._prices = prices
        self._known: dict[tuple[str, str, str], DiskRate] = {}
        self.is_rented: Final = spec.engine is Engine.SKYPILOT
        """Whether its nodes are of a cloud, which takes something for their disks."""

    def find(self, group: str, zone: str, cloud: str) -> DiskRate:
        """The disk of a node of a group in a zone of a cloud."""
        key = group, zone, cloud
        if (rate := self._known.get(key)) is None:
            rate = self._known[key] = self._look_up(group, zone, cloud)
        return rate

    def _look_up(self, group: str, zone: str, cloud: str) -> DiskRate:
        disk = disk_of(self._parts.get(group) or self._default, cloud)
        place = region_of(zone, cloud)
        price = self._prices.disk_price(place, disk.tier)
        unit = None if price is None else price.gib_micros * disk.size_gib + price.disk_micros
        return DiskRate(place, f"disks of {disk.size_gib} GiB, {disk.tier}", unit)


def disk_charges(rates: DiskRates, attempts: Iterable[AttemptBill]) -> Iterator[Charge]:
    """The disks of rented nodes while they ran, by place and kind."""
    if not rates.is_rented:
        return
    stood: dict[DiskRate, list[ChargePart]] = {}
    for item in attempts:
        for group in item.groups:
            for stay in group.stays:
                placed = stay.placed
                rate = rates.find(group.name, placed.zone, placed.cloud or item.cloud)
                parts = stood.setdefault(rate, [])
                bounds = stay.bounds_ms(item.begin_ms, item.end_ms)
                parts += [
                    ChargePart(item.attempt, placed.zone, day, group.node_ms(*span))
                    for day, *span in split_by_day(*bounds)
                ]
    for rate, parts in stood.items():
        yield Charge(
            category=Category.DISKS,
            item=rate.item,
            place=rate.place,
            parts=parts,
            unit=Unit.DISK_MONTH,
            unit_micros=rate.unit_micros,
        )


def disk_of(part: JobPart, cloud: str) -> DiskSpec:
    """The disk of a node in a cloud, as the first alternative for this cloud asks for it."""
    options = part.options
    fits = [option for option in options if option.cloud in {None, cloud.lower()}]
    chosen = (fits or options)[0].options
    tier = str(chosen.get("disk_tier") or DEFAULT_TIER).lower()
    # SkyPilot gives the best disk that a cloud has, which differs; high is what most nodes get.
    return DiskSpec(_size_gib(chosen.get("disk_size")), "high" if tier == "best" else tier)


def _size_gib(value: Any) -> int:
    """A size as SkyPilot writes it, such as 256 or 1TB, in whole GiB; the default if it is none."""
    found = _SIZE.fullmatch(str(value).strip()) if value else None
    if found is None:
        return DEFAULT_SIZE_GIB
    size = float(found["number"]) * 1024.0 ** _POWERS[found["unit"].lower()]
    return max(1, round(size))

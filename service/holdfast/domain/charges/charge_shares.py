"""Charges of a job by attempt, zone and UTC day, for totals over jobs. Pure.

The shares add up to the charges of the bill, to the micro-dollar: the share of a part of a line is the amount of all parts up to it
minus the amount of those before it, each rounded down once. Time changes only what stored checkpoints and the disks of running nodes
cost. `JobCharges` computes the rest once, and continues these two to any later time.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import NamedTuple, TypeAlias

from holdfast.domain.billing.allocation import split_by_day
from holdfast.domain.billing.bill import Bill
from holdfast.domain.billing.incremental_bill import first_open_attempt
from holdfast.domain.billing.rate import to_time
from holdfast.domain.charges.charges import (
    PER,
    Category,
    Charge,
    ChargeBasis,
    ChargePart,
    DiskRates,
    KnownStore,
    Unit,
    disk_charges,
)
from holdfast.domain.charges.resource_prices import ResourcePrices

PER_STORAGE = PER[Unit.GIB_MONTH]
"""Byte-milliseconds of a unit of storage."""


class ShareKey(NamedTuple):
    """Which share of the charges it is."""

    attempt: int
    """0: of no attempt."""
    zone: str
    """Empty without an attempt."""
    day: date


@dataclass(slots=True)
class ChargeShare:
    """Charges of one attempt in one zone on one day."""

    micros: defaultdict[Category, int] = field(default_factory=lambda: defaultdict(int))
    has_unpriced: bool = False
    """Whether something was used for which no price is known."""


ChargeShares: TypeAlias = Mapping[ShareKey, ChargeShare]


@dataclass(frozen=True, slots=True)
class KeptStorage:
    """Stored checkpoints that cost more as time passes, after the last change of what is stored."""

    since_ms: int
    """Time of that change, in milliseconds since 1970."""
    kept_bytes: int
    unit_micros: int | None
    """Price of a GiB and month; None if unknown."""
    rest: int
    """What the rounding left of the amount until then: micro-dollars times `PER_STORAGE`."""

    @property
    def costs_more(self) -> bool:
        """Whether it costs more as time passes, as far as known."""
        return self.kept_bytes > 0 and self.unit_micros != 0

    def micros_until(self, until_ms: int) -> int:
        """The amount from the change until a time; 0 without a price."""
        if self.unit_micros is None or until_ms <= self.since_ms:
            return 0
        byte_ms = self.kept_bytes * (until_ms - self.since_ms)
        return (self.rest + byte_ms * self.unit_micros) // PER_STORAGE

    def add_to(self, shares: defaultdict[ShareKey, ChargeShare], until_ms: int) -> None:
        """Add the amounts of each day until a time."""
        if not self.costs_more:
            return
        for day, begin_ms, end_ms in split_by_day(self.since_ms, until_ms):
            micros = self.micros_until(end_ms) - self.micros_until(begin_ms)
            if micros or self.unit_micros is None:
                share = shares[ShareKey(0, "", day)]
                share.micros[Category.STORAGE] += micros
                share.has_unpriced |= self.unit_micros is None


@dataclass(frozen=True, slots=True)
class JobCharges:
    """The charges of a job until its last event, and what continues from there."""

    store: str
    """The URL of its checkpoint store; empty without one."""
    known: KnownStore
    """What was known of its store beside the events."""
    fixed: ChargeShares
    """Without disks of attempts that may still change."""
    kept: KeptStorage
    disks: DiskRates
    disk_rests: Mapping[tuple[str, str], int]
    """What the rounding left of disks in `fixed`, by place and item: micro-dollars times the unit."""

    @classmethod
    def from_bill(
        cls, account: Bill, basis: ChargeBasis, prices: ResourcePrices, known: KnownStore
    ) -> JobCharges:
        """Compute them from a bill of the same events, at any time."""
        since_ms = basis.usage.changed_ms
        until_then = basis.charges(account, prices, to_time(since_ms), known)
        begin = first_open_attempt(account)
        shares: defaultdict[ShareKey, ChargeShare] = defaultdict(ChargeShare)
        for line in until_then.lines:
            if line.category is not Category.DISKS:
                _add(shares, line)
        rests, disks = {}, DiskRates(basis.spec, prices)
        closed = (item for item in account.attempts if item.attempt < begin)
        for line in disk_charges(disks, closed):
            rests[line.place, line.item] = _add(shares, line)
        unit_micros = prices.storage_micros(until_then.store_place)
        byte_ms = basis.usage.byte_ms(since_ms)
        kept = KeptStorage(
            since_ms,
            basis.usage.kept_bytes,
            unit_micros,
            byte_ms * (unit_micros or 0) % PER_STORAGE,
        )
        checkpoint = basis.spec.holdfast.checkpoint
        store = checkpoint.store if checkpoint else ""
        return cls(store, known, shares, kept, disks, rests)

    def open_shares(self, account: Bill, until_ms: int | None) -> ChargeShares:
        """What is not in `fixed`, by a bill that continues the one that it was computed from.

        Stored checkpoints count until `until_ms`; without a time they do not count.
        """
        shares: defaultdict[ShareKey, ChargeShare] = defaultdict(ChargeShare)
        begin = first_open_attempt(account)
        open_attempts = [item for item in account.attempts if item.attempt >= begin]
        for line in disk_charges(self.disks, open_attempts):
            _add(shares, line, self.disk_rests.get((line.place, line.item), 0))
        if until_ms is not None:
            self.kept.add_to(shares, until_ms)
        return shares


def charge_shares(lines: Iterable[Charge]) -> ChargeShares:
    """The shares of lines; those without an amount are omitted, unless no price is known."""
    shares: defaultdict[ShareKey, ChargeShare] = defaultdict(ChargeShare)
    for line in lines:
        _add(shares, line)
    return shares


def _add(shares: defaultdict[ShareKey, ChargeShare], line: Charge, rest: int = 0) -> int:
    """Add the shares of a line that continues after `rest`; return what the rounding left."""
    if line.unit_micros is None:
        for part in line.parts:
            if part.quantity:
                shares[_key(part)].has_unpriced = True
        return 0
    for part, micros in _amounts(line, line.unit_micros, rest):
        if micros:
            shares[_key(part)].micros[line.category] += micros
    return (rest + line.quantity * line.unit_micros) % PER[line.unit]


def _amounts(line: Charge, unit_micros: int, rest: int) -> Iterator[tuple[ChargePart, int]]:
    """Each part with its amount: the difference of the sums after it and before it."""
    per, before, product = PER[line.unit], 0, rest
    for part in line.parts:
        product += part.quantity * unit_micros
        yield part, product // per - before
        before = product // per


def _key(part: ChargePart) -> ShareKey:
    return ShareKey(part.attempt, part.zone, part.day)

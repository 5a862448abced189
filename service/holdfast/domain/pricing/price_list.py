"""Rows of price lists become quotes, and those that lie are refused or repaired, each by a rule with a name.

Price lists of clouds hold what nobody can pay: a spot price that is the on-demand price where there is no market, the
host of a GPU without the GPU, a figure that only fills a gap. A rule says which, and why; nothing is dropped silently.

GCP lists GPUs and their hosts on lines of their own; what one pays is their sum.

Which host goes with which GPUs is what SkyPilot 0.14.1 takes (`gcp_catalog.py`): a fixed type where GCP sells only that,
else the cheapest N1 that is big enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, TypeAlias

from holdfast.domain.jobfile.accelerator_catalog import AcceleratorCatalog
from holdfast.domain.pricing.quotes import Quote, QuoteSource

MICROS: Final = 1_000_000
PLACEHOLDER_USD: Final = 700.0
"""What fills the place of a price in GCP's list."""
ABSURD_USD: Final = 10_000.0
"""An hour of one node. The dearest that is sold costs some hundreds. Smaller: a node to come is refused; bigger: a price
in another currency or unit passes."""
NO_MARKET: Final = 0.99
"""The share of the on-demand price from which on a spot price is none. Real markets give 5 % off at the very least;
lists round, so that the same price differs by hundredths of a per cent. Smaller: a poor bargain is taken for none."""
ONLY_WITH_GPUS: Final = ("a2-", "a3-", "a4-", "g2-", "g4-")
"""Hosts that GCP sells with their GPUs alone, and lists apart from them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceRow:
    """One line of a price list, as it is written."""

    cloud: str
    region: str
    zone: str
    instance_type: str
    accelerator: str
    count: str
    on_demand: str
    """Dollars an hour, as text; empty where there is none."""
    spot: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectedRow:
    """A row that is not believed."""

    row: PriceRow
    rule: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What rows have told."""

    quotes: tuple[Quote, ...] = ()
    refused: tuple[RejectedRow, ...] = ()

    def __add__(self, other: Reading) -> Reading:
        return Reading(quotes=self.quotes + other.quotes, refused=self.refused + other.refused)


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedRow:
    """A row whose figures are read, in dollars an hour; None where there is none, or it was a lie."""

    row: PriceRow
    count: float
    on_demand: float | None
    spot: float | None


Verdict: TypeAlias = ParsedRow | None
"""What a rule makes of a draft: the same, one without the lie, or None where nothing is left to believe."""


@dataclass(frozen=True, slots=True)
class PriceRowRule:
    """One way in which price lists lie."""

    name: str
    reason: str
    judge: Callable[[ParsedRow], Verdict]


def _without(draft: ParsedRow, is_lie: Callable[[float], bool]) -> ParsedRow:
    """The draft without those of its prices that are lies."""
    on_demand, spot = (
        None if usd is not None and is_lie(usd) else usd for usd in (draft.on_demand, draft.spot)
    )
    return replace(draft, on_demand=on_demand, spot=spot)


def free(draft: ParsedRow) -> Verdict:
    """Nothing that is sold is free: 0 is written where a price is missing."""
    return _without(draft, lambda usd: usd <= 0)


def placeholder(draft: ParsedRow) -> Verdict:
    """700.0 fills a gap."""
    return _without(draft, lambda usd: usd == PLACEHOLDER_USD)


def absurd(draft: ParsedRow) -> Verdict:
    """No node costs so much."""
    return _without(draft, lambda usd: usd > ABSURD_USD)


def tpu(draft: ParsedRow) -> Verdict:
    """A TPU's price lacks its host, and nothing here runs on one."""
    return None if draft.row.accelerator.startswith("tpu-") else draft


def gpu_without_host(draft: ParsedRow) -> Verdict:
    """A GPU alone cannot be rented."""
    return None if draft.row.accelerator and not draft.row.instance_type else draft


def host_without_gpu(draft: ParsedRow) -> Verdict:
    """The price of a host that is sold with its GPUs alone is a part of a price."""
    bare = draft.row.cloud == "gcp" and not draft.row.accelerator
    return None if bare and draft.row.instance_type.startswith(ONLY_WITH_GPUS) else draft


def spot_like_on_demand(draft: ParsedRow) -> Verdict:
    """A spot price that is the on-demand price says that no spot capacity is offered."""
    if draft.spot is None or draft.on_demand is None:
        return draft
    is_none = NO_MARKET <= draft.spot / draft.on_demand <= 2 - NO_MARKET
    return replace(draft, spot=None) if is_none else draft


def on_demand_below_spot(draft: ParsedRow) -> Verdict:
    """Nobody sells spot above on demand: of the two, the lower lacks a part of the price."""
    if draft.spot is None or draft.on_demand is None or draft.spot <= draft.on_demand:
        return draft
    return replace(draft, on_demand=None)


def blank(draft: ParsedRow) -> Verdict:
    """What has no price is not sold."""
    return None if draft.on_demand is None and draft.spot is None else draft


RULES: Final[Sequence[PriceRowRule]] = (
    PriceRowRule("free", "a price of 0 is a missing one", free),
    PriceRowRule("placeholder", "700.0 only fills the place of a price", placeholder),
    PriceRowRule("absurd", f"no node costs more than {ABSURD_USD:g} dollars an hour", absurd),
    PriceRowRule("tpu", "the price of a TPU lacks that of its host", tpu),
    PriceRowRule("gpu-without-host", "a GPU is not sold without a host", gpu_without_host),
    PriceRowRule("host-without-gpu", "this host is not sold without its GPUs", host_without_gpu),
    PriceRowRule("spot-like-on-demand", "no spot capacity is offered there", spot_like_on_demand),
    PriceRowRule("on-demand-below-spot", "the on-demand price lacks a part", on_demand_below_spot),
    PriceRowRule("blank", "it has no price, and so is not sold", blank),
)
"""In order: what drops a price comes before what asks whether one is left."""
NOT_A_NUMBER: Final = ("not-a-number", "a price or count is not a number")


def read_rows(
    rows: Iterable[PriceRow], *, as_of: datetime, source: str, tier: QuoteSource
) -> Reading:
    """The quotes of rows that had these prices at `as_of`, and the rows that are not believed."""
    quotes: list[Quote] = []
    refused: list[RejectedRow] = []
    for row in rows:
        draft = _draft(row)
        read = RejectedRow(row=row, rule=NOT_A_NUMBER[0], reason=NOT_A_NUMBER[1])
        outcome = _judged(draft) if draft else read
        if isinstance(outcome, RejectedRow):
            refused.append(outcome)
        else:
            quotes.append(_quote(*outcome, as_of=as_of, source=source, tier=tier))
    return Reading(quotes=tuple(quotes), refused=tuple(refused))


def _judged(draft: ParsedRow) -> tuple[ParsedRow, tuple[str, ...]] | RejectedRow:
    repairs: list[str] = []
    for rule in RULES:
        left = rule.judge(draft)
        if left is None:
            # Where a lie was all that the row had, the lie is the reason, not that nothing is left.
            name = repairs[-1] if rule.name == "blank" and repairs else rule.name
            reason = next(known.reason for known in RULES if known.name == name)
            return RejectedRow(row=draft.row, rule=name, reason=reason)
        if left != draft:
            repairs.append(rule.name)
        draft = left
    return draft, tuple(repairs)


def _quote(
    draft: ParsedRow, repairs: tuple[str, ...], *, as_of: datetime, source: str, tier: QuoteSource
) -> Quote:
    row = draft.row
    return Quote(
        cloud=row.cloud,
        region=row.region or None,
        zone=row.zone or None,
        instance_type=row.instance_type or None,
        accelerator=row.accelerator or None,
        count=draft.count,
        on_demand_micros_per_hour=_micros(draft.on_demand),
        spot_micros_per_hour=_micros(draft.spot),
        as_of=as_of,
        source=source,
        tier=tier,
        repairs=repairs,
    )


def _micros(usd: float | None) -> int | None:
    # A price below a micro-dollar is still no gift.
    return None if usd is None else max(1, round(usd * MICROS))


def _draft(row: PriceRow) -> ParsedRow | None:
    """The figures of a row; None where one of them is no number."""
    try:
        count, on_demand, spot = map(_number, (row.count, row.on_demand, row.spot))
    except ValueError:
        return None
    return ParsedRow(row=row, count=count or 0.0, on_demand=on_demand, spot=spot)


def _number(text: str) -> float | None:
    """The number that is written; None where there is none, as `nan` says, too."""
    value = float(text) if text.strip() else math.nan
    return None if math.isnan(value) else value


N1_CPUS: Final[Mapping[str, Mapping[int, int]]] = {
    "K80": {1: 4, 2: 8, 4: 16, 8: 32, 16: 64},
    "V100": {1: 8, 2: 16, 4: 32, 8: 64},
    "T4": {1: 4, 2: 8, 4: 48},
}
"""Processors of the host by accelerator and count."""
OTHER_CPUS: Final[Mapping[int, int]] = {1: 8, 2: 16, 4: 32, 8: 64, 16: 128}
"""The same of every other accelerator."""
GIB_PER_CPU: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """A row of GCP's list, with the size of the host; 0 where it is none."""

    row: PriceRow
    cpus: float
    memory_gib: float


def joined(machines: Iterable[Machine]) -> Iterator[PriceRow]:
    """The rows that GPUs and hosts make together; what finds no other half comes as it is, for the rules to judge."""
    hosts: dict[tuple[str, str], list[Machine]] = {}
    gpus: list[PriceRow] = []
    for machine in machines:
        if machine.row.accelerator and not machine.row.instance_type:
            gpus.append(machine.row)
        elif not machine.row.accelerator:
            hosts.setdefault((machine.row.region, machine.row.zone), []).append(machine)
        else:
            yield machine.row
    used: set[PriceRow] = set()
    for gpu in gpus:
        host = _host(gpu, hosts.get((gpu.region, gpu.zone), ()))
        if host:
            used.add(host)
            yield replace(
                gpu,
                instance_type=host.instance_type,
                on_demand=_sum(gpu.on_demand, host.on_demand),
                spot=_sum(gpu.spot, host.spot),
            )
        else:
            yield gpu
    for there in hosts.values():
        # An N1 is also sold by itself.
        yield from (m.row for m in there if m.row not in used or m.row.instance_type[:3] == "n1-")


def _host(gpu: PriceRow, hosts: Sequence[Machine]) -> PriceRow | None:
    """The host that SkyPilot would take in that zone; None where none is sold there."""
    try:
        count = int(float(gpu.count))
    except ValueError:
        return None
    exact = AcceleratorCatalog.of_this_version().sizes["gcp"].get(gpu.accelerator, {}).get(count)
    if exact and exact != "n1":
        fit = [m for m in hosts if m.row.instance_type == exact and _price(m.row.on_demand)]
    else:
        cpus = N1_CPUS.get(gpu.accelerator, OTHER_CPUS).get(count)
        if cpus is None:
            return None
        fit = [
            m
            for m in hosts
            if m.row.instance_type.startswith("n1-") and _price(m.row.on_demand)
            if m.cpus >= cpus and m.memory_gib >= cpus * GIB_PER_CPU
        ]
    return min(fit, key=lambda m: _price(m.row.on_demand) or 0.0).row if fit else None


def _sum(one: str, other: str) -> str:
    """The sum of two prices; none where either is missing: a part of a price is no price."""
    first, second = _price(one), _price(other)
    return "" if first is None or second is None else repr(first + second)


def _price(text: str) -> float | None:
    try:
        usd = float(text)
    except ValueError:
        return None
    return usd if usd > 0 else None

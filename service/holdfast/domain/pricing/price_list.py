"""Price list parsing: rows become quotes, and rules reject or repair implausible prices.

Price lists contain prices that cannot be paid: a spot price equal to the on-demand price where no market exists, the host of a
GPU without the GPU, a placeholder. Every rejection names its rule and the reason.

GCP lists GPUs and their hosts on separate rows; the price of a node is their sum. The host for each GPU is the one that
SkyPilot 0.14.1 chooses (`gcp_catalog.py`): a fixed type where GCP sells only that, or else the cheapest N1 that is large enough.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, TypeAlias

from holdfast.domain.pricing.quotes import Quote, QuoteSource

MICROS: Final = 1_000_000
PLACEHOLDER_USD: Final = 700.0
"""Placeholder price in GCP's list."""
ABSURD_USD: Final = 10_000.0
"""Implausible hourly price of one node; the most expensive real one costs some hundreds. A lower value rejects future nodes; a
higher value accepts prices in another currency or unit.
"""
NO_MARKET: Final = 0.99
"""Share of the on-demand price from which a spot price means that no spot capacity is sold.

Real markets discount at least 5 %; list rounding changes equal prices by hundredths of a per cent. A lower value rejects small
real discounts.
"""
ONLY_WITH_GPUS: Final = ("a2-", "a3-", "a4-", "g2-", "g4-")
"""GCP hosts that are sold only with their GPUs but listed separately."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PriceRow:
    """A row of a price list as written."""

    cloud: str
    region: str
    zone: str
    instance_type: str
    accelerator: str
    count: str
    on_demand: str
    """Dollars per hour as text; empty if absent."""
    spot: str


@dataclass(frozen=True, kw_only=True, slots=True)
class RejectedRow:
    """A rejected row."""

    row: PriceRow
    rule: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedPriceList:
    """Quotes and rejected rows of price lists."""

    quotes: tuple[Quote, ...] = ()
    rejected: tuple[RejectedRow, ...] = ()

    def __add__(self, other: ParsedPriceList) -> ParsedPriceList:
        return ParsedPriceList(
            quotes=self.quotes + other.quotes, rejected=self.rejected + other.rejected
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class ParsedRow:
    """A row with parsed prices in dollars per hour; None for absent or rejected prices."""

    row: PriceRow
    count: float
    on_demand: float | None
    spot: float | None


RuleResult: TypeAlias = ParsedRow | None
"""Result of a rule: the row, the row without a wrong price, or None if no price remains."""


@dataclass(frozen=True, slots=True)
class PriceRowRule:
    """A rule that rejects a kind of wrong price."""

    name: str
    reason: str
    apply: Callable[[ParsedRow], RuleResult]


def _without_prices(draft: ParsedRow, is_wrong: Callable[[float], bool]) -> ParsedRow:
    """The row without its wrong prices."""
    on_demand, spot = (
        None if usd is not None and is_wrong(usd) else usd for usd in (draft.on_demand, draft.spot)
    )
    return replace(draft, on_demand=on_demand, spot=spot)


def free(draft: ParsedRow) -> RuleResult:
    """A price of 0 means that the price is missing."""
    return _without_prices(draft, lambda usd: usd <= 0)


def placeholder(draft: ParsedRow) -> RuleResult:
    """A price of 700.0 is a placeholder."""
    return _without_prices(draft, lambda usd: usd == PLACEHOLDER_USD)


def absurd(draft: ParsedRow) -> RuleResult:
    """The price exceeds that of any node."""
    return _without_prices(draft, lambda usd: usd > ABSURD_USD)


def tpu(draft: ParsedRow) -> RuleResult:
    """TPU prices exclude the host, and Holdfast does not run on TPUs."""
    return None if draft.row.accelerator.startswith("tpu-") else draft


def gpu_without_host(draft: ParsedRow) -> RuleResult:
    """A GPU cannot be rented without a host."""
    return None if draft.row.accelerator and not draft.row.instance_type else draft


def host_without_gpu(draft: ParsedRow) -> RuleResult:
    """The price of a host that is sold only with its GPUs is incomplete."""
    bare = draft.row.cloud == "gcp" and not draft.row.accelerator
    return None if bare and draft.row.instance_type.startswith(ONLY_WITH_GPUS) else draft


def spot_like_on_demand(draft: ParsedRow) -> RuleResult:
    """A spot price equal to the on-demand price means that no spot capacity is offered."""
    if draft.spot is None or draft.on_demand is None:
        return draft
    is_none = NO_MARKET <= draft.spot / draft.on_demand <= 2 - NO_MARKET
    return replace(draft, spot=None) if is_none else draft


def on_demand_below_spot(draft: ParsedRow) -> RuleResult:
    """An on-demand price below the spot price is incomplete."""
    if draft.spot is None or draft.on_demand is None or draft.spot <= draft.on_demand:
        return draft
    return replace(draft, on_demand=None)


def blank(draft: ParsedRow) -> RuleResult:
    """A row without a price is not for sale."""
    return None if draft.on_demand is None and draft.spot is None else draft


RULES: Final[Sequence[PriceRowRule]] = (
    PriceRowRule("free", "a price of 0 means a missing price", free),
    PriceRowRule("placeholder", "700.0 is a placeholder", placeholder),
    PriceRowRule("absurd", f"no node costs more than {ABSURD_USD:g} dollars an hour", absurd),
    PriceRowRule("tpu", "the price of a TPU excludes its host", tpu),
    PriceRowRule("gpu-without-host", "a GPU is not sold without a host", gpu_without_host),
    PriceRowRule("host-without-gpu", "this host is not sold without its GPUs", host_without_gpu),
    PriceRowRule("spot-like-on-demand", "no spot capacity is offered there", spot_like_on_demand),
    PriceRowRule("on-demand-below-spot", "the on-demand price is incomplete", on_demand_below_spot),
    PriceRowRule("blank", "a row without a price is not for sale", blank),
)
"""All rules in order: rules that drop prices precede the check whether a price remains."""
NOT_A_NUMBER: Final = ("not-a-number", "a price or count is not a number")


def read_rows(
    rows: Iterable[PriceRow], *, as_of: datetime, source: str, tier: QuoteSource
) -> ParsedPriceList:
    """Quotes of rows with these prices at `as_of`, and the rejected rows."""
    quotes: list[Quote] = []
    refused: list[RejectedRow] = []
    for row in rows:
        draft = _parse_row(row)
        read = RejectedRow(row=row, rule=NOT_A_NUMBER[0], reason=NOT_A_NUMBER[1])
        outcome = _apply_rules(draft) if draft else read
        if isinstance(outcome, RejectedRow):
            refused.append(outcome)
        else:
            quotes.append(_quote(*outcome, as_of=as_of, source=source, tier=tier))
    return ParsedPriceList(quotes=tuple(quotes), rejected=tuple(refused))


def _apply_rules(draft: ParsedRow) -> tuple[ParsedRow, tuple[str, ...]] | RejectedRow:
    repairs: list[str] = []
    for rule in RULES:
        left = rule.apply(draft)
        if left is None:
            # If a wrong price was the only one, report its rule instead of the blank rule.
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
    # Keep prices below a micro-dollar above zero.
    return None if usd is None else max(1, round(usd * MICROS))


def _parse_row(row: PriceRow) -> ParsedRow | None:
    """Parse the numbers of a row; None if one is not a number."""
    try:
        count, on_demand, spot = map(_number, (row.count, row.on_demand, row.spot))
    except ValueError:
        return None
    return ParsedRow(row=row, count=count or 0.0, on_demand=on_demand, spot=spot)


def _number(text: str) -> float | None:
    """Parse a price; None if absent or `nan`."""
    value = float(text) if text.strip() else math.nan
    return None if math.isnan(value) else value


N1_CPUS: Final[Mapping[str, Mapping[int, int]]] = {
    "K80": {1: 4, 2: 8, 4: 16, 8: 32, 16: 64},
    "V100": {1: 8, 2: 16, 4: 32, 8: 64},
    "T4": {1: 4, 2: 8, 4: 48},
}
"""CPUs of the host by accelerator and count."""
OTHER_CPUS: Final[Mapping[int, int]] = {1: 8, 2: 16, 4: 32, 8: 64, 16: 128}
"""CPUs of the host by count for all other accelerators."""
GIB_PER_CPU: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class GcpMachine:
    """A row of GCP's list with the size of its host; 0 without a host."""

    row: PriceRow
    cpus: float
    memory_gib: float


HostTypes: TypeAlias = Mapping[str, Mapping[int, str]]
"""The only possible host type by accelerator and count."""


def join_gpus_with_hosts(machines: Iterable[GcpMachine], types: HostTypes) -> Iterator[PriceRow]:
    """Combine GPU and host rows; unmatched rows are returned unchanged for the rules."""
    hosts: dict[tuple[str, str], list[GcpMachine]] = {}
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
        host = _host(gpu, hosts.get((gpu.region, gpu.zone), ()), types)
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
        # An N1 is also sold without GPUs.
        yield from (m.row for m in there if m.row not in used or m.row.instance_type[:3] == "n1-")


def _host(gpu: PriceRow, hosts: Sequence[GcpMachine], types: HostTypes) -> PriceRow | None:
    """The host that SkyPilot would choose in that zone; None if none is sold there."""
    try:
        count = int(float(gpu.count))
    except ValueError:
        return None
    exact = types.get(gpu.accelerator, {}).get(count)
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
    """Sum of two prices; empty if either is missing, since a partial price is not valid."""
    first, second = _price(one), _price(other)
    return "" if first is None or second is None else repr(first + second)


def _price(text: str) -> float | None:
    try:
        usd = float(text)
    except ValueError:
        return None
    return usd if usd > 0 else None

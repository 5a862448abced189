"""Rows of price lists become quotes, and those that lie are refused or repaired, each by a rule with a name.

Price lists of clouds hold what nobody can pay: a spot price that is the on-demand price where there is no market, the
host of a GPU without the GPU, a figure that only fills a gap. A rule says which, and why; nothing is dropped silently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Final, TypeAlias

from holdfast.domain.quotes import Quote, Tier

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
class Row:
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
class Refusal:
    """A row that is not believed."""

    row: Row
    rule: str
    reason: str


@dataclass(frozen=True, kw_only=True, slots=True)
class Reading:
    """What rows have told."""

    quotes: tuple[Quote, ...] = ()
    refused: tuple[Refusal, ...] = ()

    def __add__(self, other: Reading) -> Reading:
        return Reading(quotes=self.quotes + other.quotes, refused=self.refused + other.refused)


@dataclass(frozen=True, kw_only=True, slots=True)
class Draft:
    """A row whose figures are read, in dollars an hour; None where there is none, or it was a lie."""

    row: Row
    count: float
    on_demand: float | None
    spot: float | None


Verdict: TypeAlias = Draft | None
"""What a rule makes of a draft: the same, one without the lie, or None where nothing is left to believe."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One way in which price lists lie."""

    name: str
    reason: str
    judge: Callable[[Draft], Verdict]


def _without(draft: Draft, is_lie: Callable[[float], bool]) -> Draft:
    """The draft without those of its prices that are lies."""
    on_demand, spot = (
        None if usd is not None and is_lie(usd) else usd for usd in (draft.on_demand, draft.spot)
    )
    return replace(draft, on_demand=on_demand, spot=spot)


def free(draft: Draft) -> Verdict:
    """Nothing that is sold is free: 0 is written where a price is missing."""
    return _without(draft, lambda usd: usd <= 0)


def placeholder(draft: Draft) -> Verdict:
    """700.0 fills a gap."""
    return _without(draft, lambda usd: usd == PLACEHOLDER_USD)


def absurd(draft: Draft) -> Verdict:
    """No node costs so much."""
    return _without(draft, lambda usd: usd > ABSURD_USD)


def tpu(draft: Draft) -> Verdict:
    """A TPU's price lacks its host, and nothing here runs on one."""
    return None if draft.row.accelerator.startswith("tpu-") else draft


def gpu_without_host(draft: Draft) -> Verdict:
    """A GPU alone cannot be rented."""
    return None if draft.row.accelerator and not draft.row.instance_type else draft


def host_without_gpu(draft: Draft) -> Verdict:
    """The price of a host that is sold with its GPUs alone is a part of a price."""
    bare = draft.row.cloud == "gcp" and not draft.row.accelerator
    return None if bare and draft.row.instance_type.startswith(ONLY_WITH_GPUS) else draft


def spot_like_on_demand(draft: Draft) -> Verdict:
    """A spot price that is the on-demand price says that no spot capacity is offered."""
    if draft.spot is None or draft.on_demand is None:
        return draft
    is_none = NO_MARKET <= draft.spot / draft.on_demand <= 2 - NO_MARKET
    return replace(draft, spot=None) if is_none else draft


def on_demand_below_spot(draft: Draft) -> Verdict:
    """Nobody sells spot above on demand: of the two, the lower lacks a part of the price."""
    if draft.spot is None or draft.on_demand is None or draft.spot <= draft.on_demand:
        return draft
    return replace(draft, on_demand=None)


def blank(draft: Draft) -> Verdict:
    """What has no price is not sold."""
    return None if draft.on_demand is None and draft.spot is None else draft


RULES: Final[Sequence[Rule]] = (
    Rule("free", "a price of 0 is a missing one", free),
    Rule("placeholder", "700.0 only fills the place of a price", placeholder),
    Rule("absurd", f"no node costs more than {ABSURD_USD:g} dollars an hour", absurd),
    Rule("tpu", "the price of a TPU lacks that of its host", tpu),
    Rule("gpu-without-host", "a GPU is not sold without a host", gpu_without_host),
    Rule("host-without-gpu", "this host is not sold without its GPUs", host_without_gpu),
    Rule("spot-like-on-demand", "no spot capacity is offered there", spot_like_on_demand),
    Rule("on-demand-below-spot", "the on-demand price lacks a part", on_demand_below_spot),
    Rule("blank", "it has no price, and so is not sold", blank),
)
"""In order: what drops a price comes before what asks whether one is left."""
NOT_A_NUMBER: Final = ("not-a-number", "a price or count is not a number")


def read_rows(rows: Iterable[Row], *, as_of: datetime, source: str, tier: Tier) -> Reading:
    """The quotes of rows that had these prices at `as_of`, and the rows that are not believed."""
    quotes: list[Quote] = []
    refused: list[Refusal] = []
    for row in rows:
        draft = _draft(row)
        read = Refusal(row=row, rule=NOT_A_NUMBER[0], reason=NOT_A_NUMBER[1])
        outcome = _judged(draft) if draft else read
        if isinstance(outcome, Refusal):
            refused.append(outcome)
        else:
            quotes.append(_quote(*outcome, as_of=as_of, source=source, tier=tier))
    return Reading(quotes=tuple(quotes), refused=tuple(refused))


def _judged(draft: Draft) -> tuple[Draft, tuple[str, ...]] | Refusal:
    repairs: list[str] = []
    for rule in RULES:
        left = rule.judge(draft)
        if left is None:
            # Where a lie was all that the row had, the lie is the reason, not that nothing is left.
            name = repairs[-1] if rule.name == "blank" and repairs else rule.name
            reason = next(known.reason for known in RULES if known.name == name)
            return Refusal(row=draft.row, rule=name, reason=reason)
        if left != draft:
            repairs.append(rule.name)
        draft = left
    return draft, tuple(repairs)


def _quote(
    draft: Draft, repairs: tuple[str, ...], *, as_of: datetime, source: str, tier: Tier
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


def _draft(row: Row) -> Draft | None:
    """The figures of a row; None where one of them is no number."""
    try:
        count, on_demand, spot = map(_number, (row.count, row.on_demand, row.spot))
    except ValueError:
        return None
    return Draft(row=row, count=count or 0.0, on_demand=on_demand, spot=spot)


def _number(text: str) -> float | None:
    """The number that is written; None where there is none, as `nan` says, too."""
    value = float(text) if text.strip() else math.nan
    return None if math.isnan(value) else value

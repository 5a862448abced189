"""Prices of nodes on Slurm: one for each partition or QOS that the settings name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Final, Self

from holdfast.domain.jobfile.limits import MICROS_PER_USD
from holdfast.domain.jobfile.places import is_within
from holdfast.errors import BadRequest

MAX_USD: Final = 10_000
"""Highest price of a node hour. A lower value refuses large nodes; a higher value lets a typing error pass."""
_NAME: Final = re.compile(r"[^\s,=/]+(/[^\s,=/]+){1,2}")
_SETTING: Final = "HOLDFAST_SLURM_PRICES"
_EXAMPLE: Final = "write one such as hpc/preempt=0.50"


@dataclass(frozen=True, slots=True)
class SlurmPrices:
    """Prices of a node hour on Slurm, in micro-dollars."""

    default_micros: int
    """Price of partitions without one of their own."""
    by_place: Mapping[str, int] = field(default_factory=dict)
    """By `cluster/partition`, or `cluster/partition/qos`."""

    @classmethod
    def parse(cls, text: str, default_micros: int) -> Self:
        """Parse `cluster/partition=0.50,cluster/partition/qos=2`; empty for none.

        Raises:
            BadRequest: an item has no such form.
        """
        found = dict[str, int]()
        for item in filter(None, (part.strip() for part in text.split(","))):
            name, _, usd = (part.strip() for part in item.partition("="))
            if not _NAME.fullmatch(name):
                raise BadRequest(
                    f"{_SETTING}: {item!r} is not a price of cluster/partition; {_EXAMPLE}"
                )
            if name.lower() in found:
                raise BadRequest(f"{_SETTING}: {name} has two prices; remove one of them")
            found[name.lower()] = _micros(item, usd)
        return cls(default_micros, found)

    def micros_per_node_hour(self, place: str) -> int:
        """The price in a place, such as `slurm/cluster/partition/qos`."""
        micros = self.find(place)
        return self.default_micros if micros is None else micros

    def find(self, place: str) -> int | None:
        """The price that the settings name for a place or what it is part of; None without one."""
        names = [name for name in self.by_place if is_within(place, f"slurm/{name}")]
        return self.by_place[max(names, key=lambda name: name.count("/"))] if names else None


def _micros(item: str, usd: str) -> int:
    try:
        amount = Decimal(usd)
    except InvalidOperation:
        amount = Decimal("NaN")
    if not (amount.is_finite() and 0 <= amount <= MAX_USD):
        raise BadRequest(
            f"{_SETTING}: {item!r} is not a price from 0 to {MAX_USD} dollars; {_EXAMPLE}"
        )
    return round(amount * MICROS_PER_USD)

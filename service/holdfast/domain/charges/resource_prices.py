"""Prices of what a job uses beside its nodes: storage, requests, egress and disks. Pure.

Prices are integer micro-dollars for a unit. A place is a cloud and a region, such as aws/us-east-1; a price names a place, a cloud,
or the beginning of a name with `*`, and the longest name that fits applies. A place without a price is not an error: what is used
there is counted and shown without an amount.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal, InvalidOperation
from typing import Any, Final, Self, TypeVar

from holdfast_worker.protocol.object_stores import FILES, OWN_SERVER

from holdfast.domain.jobfile.limits import MICROS_PER_USD
from holdfast.errors import BadRequest

T = TypeVar("T")

MAX_USD: Final = 10_000
"""Highest price of a unit. A lower value refuses a negotiated price; a higher value lets a typing error pass."""
REQUEST_KINDS: Final = ("put", "get", "list", "delete")
ANYWHERE: Final = "*"
ELSEWHERE: Final = "elsewhere"
"""Place of nodes that are not rented from a cloud, which reach it through the internet."""
_TABLES: Final = ("storage", "requests", "egress", "disks", "stores")
_KEYS: Final = ("as_of", "source", *_TABLES)


@dataclass(frozen=True, slots=True)
class DiskPrice:
    """Price of a disk for a month of 730 hours."""

    gib_micros: int
    disk_micros: int = 0
    """For each disk whatever its size, such as throughput beyond what is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourcePrices:
    """A list of prices with its source. All mappings are by the name of a place."""

    as_of: str
    source: str
    storage: Mapping[str, int] = field(default_factory=dict)
    """For a GiB and month of 730 hours."""
    requests: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """For 1000 requests, by kind."""
    egress: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """For a GiB, by where it comes from and then by where it goes to."""
    disks: Mapping[str, Mapping[str, DiskPrice]] = field(default_factory=dict)
    """By tier."""
    stores: Mapping[str, str] = field(default_factory=dict)
    """Places of stores by URL or the beginning of one."""

    @classmethod
    def parse(cls, raw: Any, name: str) -> Self:
        """Parse the content of a price file called `name`.

        Raises:
            BadRequest: a key or price is invalid; the message names it.
        """
        if not isinstance(raw, Mapping):
            raise BadRequest(f"{name}: is not a list of prices; write keys such as storage")
        if odd := sorted(str(key) for key in raw if key not in _KEYS):
            raise BadRequest(f"{name}: {odd[0]} is unknown; known keys are {', '.join(_KEYS)}")
        tables = {word: _mapping(raw.get(word), f"{name}: {word}") for word in _TABLES}
        requests, egress, disks = (tables[word] for word in ("requests", "egress", "disks"))
        return cls(
            as_of=str(raw.get("as_of") or "unknown"),
            source=str(raw.get("source") or name),
            storage=dict(_prices(tables["storage"], f"{name}: storage")),
            requests={
                place: _request_prices(prices, f"{name}: requests: {place}")
                for place, prices in _by_place(requests)
            },
            egress={
                place: dict(_prices(prices, f"{name}: egress: {place}"))
                for place, prices in _by_place(egress)
            },
            disks={
                place: {
                    str(tier): _disk_price(price, f"{name}: disks: {place}: {tier}")
                    for tier, price in _mapping(prices, f"{name}: disks: {place}").items()
                }
                for place, prices in _by_place(disks)
            },
            stores={str(url): str(place) for url, place in tables["stores"].items()},
        )

    def with_own(self, own: ResourcePrices) -> ResourcePrices:
        """These prices, in which each of the `own` ones replaces one with the same name."""
        targets = [*self.egress, *own.egress]
        return ResourcePrices(
            as_of=self.as_of,
            source=f"{own.source} ({own.as_of}), then {self.source}",
            storage={**self.storage, **own.storage},
            requests={**self.requests, **own.requests},
            egress={
                name: {**self.egress.get(name, {}), **own.egress.get(name, {})} for name in targets
            },
            disks={**self.disks, **own.disks},
            stores={**self.stores, **own.stores},
        )

    def store_place(self, url: str) -> str | None:
        """The place of a store that the list names; None if it names none."""
        names = [name for name in self.stores if url.startswith(name)]
        return self.stores[max(names, key=len)] if names else None

    def storage_micros(self, place: str) -> int | None:
        """For a GiB and month; None if unknown."""
        return _free(place, find(self.storage, place))

    def request_micros(self, place: str, kind: str) -> int | None:
        """For 1000 requests of a kind; None if unknown."""
        found = find(self.requests, place)
        return _free(place, None if found is None else found.get(kind))

    def egress_micros(self, source: str, target: str) -> int | None:
        """For a GiB from one place to another; None if unknown. Within a region it is free."""
        if not source or not target:
            return None
        if source == ELSEWHERE:
            return 0  # Clouds take nothing for what they receive.
        if source == target and "/" in source:
            return 0
        is_same_cloud = _cloud(source) == _cloud(target)
        if is_same_cloud and not ("/" in source and "/" in target):
            return _free(source, None)  # Perhaps it is the same region.
        is_own = _is_own(source) or _is_own(target)
        # The longest name of the source that has a price for this target.
        for name in sorted((n for n in self.egress if _fits(source, n)), key=len, reverse=True):
            targets = self.egress[name]
            # An own server is perhaps beside the nodes; only its owner knows.
            named = {n: usd for n, usd in targets.items() if not (is_own and n == ANYWHERE)}
            if (found := find(named, target)) is not None:
                return found
        return 0 if is_own else None

    def disk_price(self, place: str, tier: str) -> DiskPrice | None:
        """For a month of a disk; None if unknown."""
        found = find(self.disks, place)
        return None if found is None else found.get(tier)


NO_PRICES: Final = ResourcePrices(as_of="unknown", source="no list")
"""An empty list."""


def find(prices: Mapping[str, T], place: str) -> T | None:
    """The value of the longest name that fits a place; None without one."""
    names = [name for name in prices if _fits(place, name)]
    return prices[max(names, key=len)] if names else None


def _fits(place: str, name: str) -> bool:
    if name.endswith(ANYWHERE):
        return place.startswith(name[:-1])
    return place == name or place.startswith(f"{name}/")


def _cloud(place: str) -> str:
    return place.partition("/")[0]


def _is_own(place: str) -> bool:
    return _cloud(place) in {FILES, OWN_SERVER}


def _free(place: str, micros: int | None) -> int | None:
    """Directories and own servers cost nothing unless a price is written."""
    return 0 if micros is None and _is_own(place) else micros


def _mapping(value: Any, where: str) -> Mapping[Any, Any]:
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise BadRequest(f"{where}: is not a mapping; write names with prices")
    return value


def _by_place(prices: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
    """Each place with its value; a key may name several, separated by commas."""
    for names, value in prices.items():
        for name in str(names).split(","):
            yield name.strip(), value


def _prices(prices: Any, where: str) -> Iterator[tuple[str, int]]:
    for place, usd in _by_place(_mapping(prices, where)):
        yield place, _micros(usd, f"{where}: {place}")


def _request_prices(prices: Any, where: str) -> Mapping[str, int]:
    found = dict(_prices(prices, where))
    if odd := sorted(found.keys() - set(REQUEST_KINDS)):
        raise BadRequest(
            f"{where}: {odd[0]} is unknown; known requests are {', '.join(REQUEST_KINDS)}"
        )
    return found


def _disk_price(price: Any, where: str) -> DiskPrice:
    if not isinstance(price, Mapping):
        return DiskPrice(_micros(price, where))
    if odd := sorted(str(key) for key in price if key not in ("gib", "disk")):
        raise BadRequest(f"{where}: {odd[0]} is unknown; write gib and disk")
    return DiskPrice(
        _micros(price.get("gib", 0), f"{where}: gib"),
        _micros(price.get("disk", 0), f"{where}: disk"),
    )


def _micros(usd: Any, where: str) -> int:
    """Dollars as micro-dollars, exactly."""
    try:
        amount = Decimal(str(usd)) * MICROS_PER_USD
    except InvalidOperation:
        amount = Decimal("NaN")
    if isinstance(usd, bool) or not (
        amount.is_finite() and 0 <= amount <= MAX_USD * MICROS_PER_USD
    ):
        raise BadRequest(
            f"{where}: {usd!r} is not a price from 0 to {MAX_USD} dollars; write 0.023"
        )
    if amount != int(amount):
        raise BadRequest(f"{where}: {usd!r} is more exact than a millionth of a dollar; round it")
    return int(amount)

"""GCP lists GPUs and their hosts on lines of their own; what one pays is their sum.

Which host goes with which GPUs is what SkyPilot 0.14.1 takes (`gcp_catalog.py`): a fixed type where GCP sells only that,
else the cheapest N1 that is big enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from holdfast.domain.offers import Offers
from holdfast.domain.price_rows import Row

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

    row: Row
    cpus: float
    memory_gib: float


def joined(machines: Iterable[Machine]) -> Iterator[Row]:
    """The rows that GPUs and hosts make together; what finds no other half comes as it is, for the rules to judge."""
    hosts: dict[tuple[str, str], list[Machine]] = {}
    gpus: list[Row] = []
    for machine in machines:
        if machine.row.accelerator and not machine.row.instance_type:
            gpus.append(machine.row)
        elif not machine.row.accelerator:
            hosts.setdefault((machine.row.region, machine.row.zone), []).append(machine)
        else:
            yield machine.row
    used: set[Row] = set()
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


def _host(gpu: Row, hosts: Sequence[Machine]) -> Row | None:
    """The host that SkyPilot would take in that zone; None where none is sold there."""
    try:
        count = int(float(gpu.count))
    except ValueError:
        return None
    exact = Offers.of_this_version().sizes["gcp"].get(gpu.accelerator, {}).get(count)
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

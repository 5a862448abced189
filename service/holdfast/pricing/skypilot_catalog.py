"""SkyPilot's catalog on this machine: one price file per cloud, updated by SkyPilot.

Columns are found by header, because their order differs between clouds. Files may be large (AWS's has tens of thousands
of lines), so only rows with accelerators are cached; a node without accelerators is looked up by type.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from holdfast.domain.pricing.price_list import (
    GcpMachine,
    ParsedPriceList,
    PriceRow,
    join_gpus_with_hosts,
    read_rows,
)
from holdfast.domain.pricing.quotes import PriceQuery, Quote, QuoteSource
from holdfast.rendering import bundled_accelerators

log = logging.getLogger(__name__)

CLOUDS: Final = ("aws", "azure", "gcp")
"""Clouds whose files are read."""
REQUIRED_COLUMNS: Final = frozenset({"InstanceType", "Price", "Region"})


@dataclass
class SkyPilotCatalog:
    """The catalog in the first directory that has one; empty if none has."""

    folders: Sequence[Path]
    _cache: dict[Path, tuple[int, ParsedPriceList]] = field(default_factory=dict)

    def read(self, cloud: str | None = None) -> ParsedPriceList:
        """Return all nodes with accelerators, of one cloud or all."""
        reading = ParsedPriceList()
        for name in CLOUDS if cloud is None else (cloud,):
            if file := self._file(name):
                reading += self._read_file(name, file)
        return reading

    def quotes(self, query: PriceQuery) -> tuple[Quote, ...]:
        """Return the quotes of nodes with accelerators, and of the requested type."""
        found = self.read(query.cloud).quotes
        file = self._file(query.cloud) if query.cloud and query.instance_type else None
        if file is None or any(
            query.matches_location(quote) and query.matches_node(quote) for quote in found
        ):
            return found
        cloud, kind = query.cloud or "", query.instance_type
        return found + _parse(cloud, file, lambda machine: machine.row.instance_type == kind).quotes

    def _file(self, cloud: str) -> Path | None:
        if "/" in cloud or cloud in {"", ".", ".."}:
            return None
        files = (folder / cloud / "vms.csv" for folder in self.folders)
        return next((file for file in files if file.is_file()), None)

    def _read_file(self, cloud: str, file: Path) -> ParsedPriceList:
        try:
            changed = file.stat().st_mtime_ns
        except OSError:
            return ParsedPriceList()  # SkyPilot is replacing it or has deleted it.
        if (known := self._cache.get(file)) and known[0] == changed:
            return known[1]
        reading = _parse(cloud, file, lambda machine: bool(machine.row.accelerator))
        self._cache[file] = (changed, reading)
        return reading


def _parse(cloud: str, file: Path, keep: Callable[[GcpMachine], bool]) -> ParsedPriceList:
    try:
        as_of = datetime.fromtimestamp(file.stat().st_mtime, UTC)
        with file.open(newline="", encoding="utf-8") as stream:
            lines = csv.DictReader(stream)
            if missing := REQUIRED_COLUMNS - set(lines.fieldnames or ()):
                log.warning(
                    "%s is not a price list: missing columns %s", file, ", ".join(sorted(missing))
                )
                return ParsedPriceList()
            machines = (_machine(cloud, line) for line in lines)
            # On GCP, any host may be half of a price.
            rows = _rows(cloud, machines, keep)
            source = f"SkyPilot catalog {file.parent.parent.name} {cloud}/{file.name}"
            return read_rows(rows, as_of=as_of, source=source, tier=QuoteSource.CATALOG)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        log.warning("cannot read the prices in %s: %s", file, error)
        return ParsedPriceList()


def _rows(
    cloud: str, machines: Iterable[GcpMachine], keep: Callable[[GcpMachine], bool]
) -> Iterator[PriceRow]:
    if cloud != "gcp":
        yield from (machine.row for machine in machines if keep(machine))
        return
    for row in join_gpus_with_hosts(machines, bundled_accelerators().sizes["gcp"]):
        if keep(GcpMachine(row=row, cpus=0, memory_gib=0)):
            yield row


def _machine(cloud: str, line: dict[str, str | None]) -> GcpMachine:
    def text(name: str) -> str:
        return (line.get(name) or "").strip()

    row = PriceRow(
        cloud=cloud,
        region=text("Region"),
        zone=text("AvailabilityZone"),
        instance_type=text("InstanceType"),
        accelerator=text("AcceleratorName"),
        count=text("AcceleratorCount"),
        on_demand=text("Price"),
        spot=text("SpotPrice"),
    )
    return GcpMachine(row=row, cpus=_size(text("vCPUs")), memory_gib=_size(text("MemoryGiB")))


def _size(text: str) -> float:
    """Parse a size; 0 if malformed."""
    try:
        return float(text)
    except ValueError:
        return 0.0

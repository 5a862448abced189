"""SkyPilot's catalog on this machine: one file of prices for each cloud, which SkyPilot renews while it is used.

Columns are found by their headers: their order differs between clouds. The files may be large (AWS's has tens of
thousands of lines), so only rows with accelerators are kept, and a node without any is looked up by its type.
"""

from __future__ import annotations

import csv
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from holdfast.domain.pricing.price_list import Machine, PriceRow, Reading, joined, read_rows
from holdfast.domain.pricing.quotes import PriceQuery, Quote, QuoteSource

log = logging.getLogger(__name__)

CLOUDS: Final = ("aws", "azure", "gcp")
"""Whose files are read here."""
NEEDED: Final = frozenset({"InstanceType", "Price", "Region"})


@dataclass
class SkyCatalog:
    """The catalog in the first of some folders that has one; none, where none has."""

    folders: Sequence[Path]
    _read: dict[Path, tuple[int, Reading]] = field(default_factory=dict)

    def read(self, cloud: str | None = None) -> Reading:
        """All nodes with accelerators, of one cloud or of all."""
        reading = Reading()
        for name in CLOUDS if cloud is None else (cloud,):
            if file := self._file(name):
                reading += self._whole(name, file)
        return reading

    def quotes(self, wanted: PriceQuery) -> tuple[Quote, ...]:
        """What the catalog tells of nodes with accelerators, and of the type that is wanted."""
        found = self.read(wanted.cloud).quotes
        file = self._file(wanted.cloud) if wanted.cloud and wanted.instance_type else None
        if file is None or any(wanted.is_there(quote) and wanted.fits(quote) for quote in found):
            return found
        cloud, kind = wanted.cloud or "", wanted.instance_type
        return found + _parse(cloud, file, lambda machine: machine.row.instance_type == kind).quotes

    def _file(self, cloud: str) -> Path | None:
        if "/" in cloud or cloud in {"", ".", ".."}:
            return None
        files = (folder / cloud / "vms.csv" for folder in self.folders)
        return next((file for file in files if file.is_file()), None)

    def _whole(self, cloud: str, file: Path) -> Reading:
        try:
            changed = file.stat().st_mtime_ns
        except OSError:
            return Reading()  # SkyPilot is replacing it, or has taken it away.
        if (known := self._read.get(file)) and known[0] == changed:
            return known[1]
        reading = _parse(cloud, file, lambda machine: bool(machine.row.accelerator))
        self._read[file] = (changed, reading)
        return reading


def _parse(cloud: str, file: Path, keep: Callable[[Machine], bool]) -> Reading:
    try:
        as_of = datetime.fromtimestamp(file.stat().st_mtime, UTC)
        with file.open(newline="", encoding="utf-8") as stream:
            lines = csv.DictReader(stream)
            if lacking := NEEDED - set(lines.fieldnames or ()):
                log.warning("%s is no price list: it lacks %s", file, ", ".join(sorted(lacking)))
                return Reading()
            machines = (_machine(cloud, line) for line in lines)
            # Of GCP, any host may be one half of a price.
            rows = _rows(cloud, machines, keep)
            source = f"SkyPilot catalog {file.parent.parent.name} {cloud}/{file.name}"
            return read_rows(rows, as_of=as_of, source=source, tier=QuoteSource.CATALOG)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        log.warning("the prices in %s cannot be read: %s", file, error)
        return Reading()


def _rows(
    cloud: str, machines: Iterable[Machine], keep: Callable[[Machine], bool]
) -> Iterator[PriceRow]:
    if cloud != "gcp":
        yield from (machine.row for machine in machines if keep(machine))
        return
    for row in joined(machines):
        if keep(Machine(row=row, cpus=0, memory_gib=0)):
            yield row


def _machine(cloud: str, line: dict[str, str | None]) -> Machine:
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
    return Machine(row=row, cpus=_size(text("vCPUs")), memory_gib=_size(text("MemoryGiB")))


def _size(text: str) -> float:
    """A size; 0 where it is none."""
    try:
        return float(text)
    except ValueError:
        return 0.0

"""The dated list of prices that this version brings along, for where nothing newer is at hand."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterable
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import IO

from holdfast.domain.price_rows import Reading, Row, read_rows
from holdfast.domain.quotes import Tier


@cache
def of_this_version() -> Reading:
    """The snapshot in the wheel."""
    with (resources.files(__package__) / "snapshot.csv").open(encoding="utf-8") as stream:
        return read_snapshot(stream)


def read_snapshot(stream: IO[str]) -> Reading:
    """The quotes of a snapshot, and its rows that lie: it holds them as they were found.

    AWS's zones are ids in it, or left out: names differ from account to account.
    """
    reading = Reading()
    lines = sorted(csv.DictReader(stream), key=_dated)
    for (as_of, source), group in itertools.groupby(lines, _dated):
        moment = datetime.fromisoformat(as_of).replace(tzinfo=UTC)
        told_by = f"snapshot: {source}"
        reading += read_rows(_rows(group), as_of=moment, source=told_by, tier=Tier.SNAPSHOT)
    return reading


def _dated(line: dict[str, str]) -> tuple[str, str]:
    return line["as_of"], line["source"]


def _rows(lines: Iterable[dict[str, str]]) -> Iterable[Row]:
    return (
        Row(
            cloud=line["cloud"],
            region=line["region"],
            zone=line["zone"],
            instance_type=line["instance_type"],
            accelerator=line["accelerator"],
            count=line["count"],
            on_demand=line["on_demand_usd_per_hour"],
            spot=line["spot_usd_per_hour"],
        )
        for line in lines
    )

"""Batches: as many reports of a spool as go together. Standard library only."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

from holdfast_worker.console import tell
from holdfast_worker.wire import Report, ReportKind

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Batch:
    """How much goes together."""

    most: int
    """Reports."""
    most_bytes: int

    def first_of(self, waiting: Iterator[tuple[Report, T]]) -> Iterator[tuple[Report, T]]:
        """As many reports as fit, each with what came with it; never none if there is one."""
        room_bytes = self.most_bytes
        for report, place in itertools.islice(waiting, self.most):
            bearable = self._bearable(report)
            room_bytes -= len(bearable.line()) + 1
            if room_bytes < 0:
                return
            yield bearable, place

    def _bearable(self, report: Report) -> Report:
        """The report, or one without content where it is too long: its number has to be taken, or no later one would be."""
        size_bytes = len(report.line()) + 1
        if size_bytes <= self.most_bytes:
            return report
        tell(
            f"report {report.n} ({report.kind}) has {size_bytes} bytes, and {self.most_bytes} are delivered at once: "
            "its content is left out"
        )
        body = {"step": report.body.get("step", 0), "values": {}}
        return replace(report, kind=ReportKind.PROGRESS, body=body)

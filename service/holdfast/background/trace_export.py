"""Exports the traces of jobs to an OpenTelemetry collector, as their events are recorded.

Spans follow from events and have fixed ids. After a restart, or while the collector is away, nothing is lost: the export
continues after the last event that the collector has. A span may be sent twice, as the same span.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from typing import Final

from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from holdfast.domain.diagnostics.job_trace import JobTrace
from holdfast.domain.events import Finished
from holdfast.errors import StoreUnavailable
from holdfast.store.trace_cursor import BATCH, NumberedEvent, TraceCursor
from holdfast.tracing import readable, resource

log = logging.getLogger(__name__)

EVERY_S: Final = 5.0
"""Seconds between two exports. A lower value adds queries; a higher value delays traces."""
KNOWN_JOBS: Final = 5000
"""Jobs whose open spans are in memory. A lower value reads the events of more jobs again; a higher value uses memory."""


class TraceExport:
    """Exports the spans of jobs."""

    def __init__(self, cursor: TraceCursor, exporter: SpanExporter) -> None:
        self._cursor = cursor
        self._exporter = exporter
        self._resource = resource()
        self._traces = OrderedDict[str, JobTrace]()
        self._reached: int | None = None
        """Cursor of the last event that the traces contain; None before the first export."""
        self._waiting: list[ReadableSpan] = []
        """Spans that the collector has not accepted."""
        self._is_away = False

    def run_once(self) -> int:
        """Export the spans that new events complete; return the number of these events.

        Raises:
            StoreUnavailable: the database is unavailable; the next call continues.
        """
        if self._reached is None:
            self._reached = self._cursor.read()
        if not self._export():
            return 0
        found = self._cursor.events_after(self._reached)
        for item in found:
            self._waiting += self._spans(item)
            self._reached = item.cursor
        return len(found) if found and self._export() else 0

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            round_ = asyncio.create_task(asyncio.to_thread(self.run_once))
            await asyncio.wait([round_])
            if isinstance(error := round_.exception(), StoreUnavailable):
                log.warning("traces are delayed: %s", error.detail)
            elif error:
                log.error("unexpected error in the export of traces", exc_info=error)
            elif round_.result() == BATCH:
                continue  # More events wait.
            await asyncio.sleep(EVERY_S)

    def _spans(self, item: NumberedEvent) -> list[ReadableSpan]:
        """The spans that an event completes."""
        trace = self._traces.get(item.job_id)
        if trace is None or trace.seq != item.seq - 1:
            trace = JobTrace()
            for earlier in self._cursor.events_of(item.job_id, item.seq):
                trace.add(earlier.event)
        complete = trace.add(item.event)
        self._traces[item.job_id] = trace
        self._traces.move_to_end(item.job_id)
        if isinstance(item.event, Finished):
            del self._traces[item.job_id]
        elif len(self._traces) > KNOWN_JOBS:
            self._traces.popitem(last=False)
        return [readable(span, item.job_id, self._resource) for span in complete]

    def _export(self) -> bool:
        """Send what waits, and record it; False if the collector does not accept it."""
        if self._waiting:
            if self._exporter.export(self._waiting) is not SpanExportResult.SUCCESS:
                if not self._is_away:
                    log.warning("the trace collector accepts no spans; they are sent later")
                self._is_away = True
                return False
            self._waiting, self._is_away = [], False
        if self._reached is not None:
            self._cursor.advance(self._reached)
        return True

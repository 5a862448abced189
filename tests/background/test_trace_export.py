"""Traces of jobs reach a collector completely, also after it was away and after restarts."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from holdfast.background.trace_export import TraceExport
from holdfast.domain.events import Event
from holdfast.store.journal import Journal
from holdfast.store.trace_cursor import TraceCursor
from holdfast.tracing import span_context
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.trace import StatusCode
from sqlalchemy import Engine
from support.events import (
    finished,
    launched,
    left,
    lost,
    ready,
    restoring,
    saved,
    submitted,
    training,
)

LIFE: tuple[Event, ...] = (
    launched(5),
    ready(10),
    restoring(12),
    training(13),
    saved(20, step=40),
    lost(32),
    ready(50, attempt=2),
    training(54, attempt=2, step=40),
    left(60, attempt=2, step=100),
    finished(62),
)


class Collector(SpanExporter):
    """Keeps spans, unless it is away."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []
        self.is_away = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        if self.is_away:
            return SpanExportResult.FAILURE
        self.spans += spans
        return SpanExportResult.SUCCESS

    @property
    def names(self) -> list[str]:
        return [span.name for span in self.spans]


@pytest.fixture
def collector() -> Collector:
    return Collector()


def export_of(engine: Engine, collector: Collector) -> TraceExport:
    """The export of a service that starts now."""
    export = TraceExport(TraceCursor(engine), collector)
    export.run_once()
    return export


def test_spans_are_sent_once_when_they_are_complete(
    engine: Engine, journal: Journal, collector: Collector
) -> None:
    export = export_of(engine, collector)
    job = journal.submit("job-1", submitted())
    counts = []
    for event in LIFE:
        job = journal.append(job, [event])
        export.run_once()
        counts.append(len(collector.spans))

    assert counts == [1, 2, 3, 4, 5, 7, 8, 9, 10, 14]
    assert export.run_once() == 0
    ids = {span.context.span_id for span in collector.spans if span.context}
    assert len(ids) == len(collector.spans)


def test_spans_form_one_tree_in_the_trace_of_their_job(
    engine: Engine, journal: Journal, collector: Collector
) -> None:
    export = export_of(engine, collector)
    journal.append(journal.submit("job-1", submitted()), LIFE)

    export.run_once()

    root = collector.spans[-1]
    assert root.name == "job"
    assert root.context == span_context("job-1")
    ids = {span.context.span_id for span in collector.spans if span.context}
    parents = {span.parent.span_id for span in collector.spans[:-1] if span.parent}
    assert parents <= ids
    assert {span.context.trace_id for span in collector.spans if span.context} == {
        span_context("job-1").trace_id
    }
    [first, _] = [span for span in collector.spans if span.name == "attempt"]
    assert (first.status.status_code, first.status.description) == (StatusCode.ERROR, "preempted")
    assert dict(first.attributes or {})["holdfast.job"] == "job-1"
    assert (first.end_time or 0) - (first.start_time or 0) == 22 * 10**9


def test_collector_that_was_away_gets_everything(
    engine: Engine, journal: Journal, collector: Collector, caplog: pytest.LogCaptureFixture
) -> None:
    export = export_of(engine, collector)
    collector.is_away = True
    job = journal.append(journal.submit("job-1", submitted()), LIFE[:5])
    export.run_once()
    export.run_once()
    journal.append(job, LIFE[5:])
    collector.is_away = False

    while export.run_once():
        pass

    assert len(collector.names) == 14
    assert caplog.text.count("accepts no spans") == 1


def test_service_that_restarts_sends_the_rest(
    engine: Engine, journal: Journal, collector: Collector
) -> None:
    """While it is down, and also if the collector was away before."""
    export_of(engine, collector)
    job = journal.append(journal.submit("job-1", submitted()), LIFE[:3])
    collector.is_away = True
    export_of(engine, collector)
    collector.is_away = False
    journal.append(job, LIFE[3:])

    export = export_of(engine, collector)
    export.run_once()

    ids = {span.context.span_id for span in collector.spans if span.context}
    assert len(collector.spans) == len(ids) == 14
    assert collector.names[-1] == "job"


def test_jobs_before_the_first_export_are_not_sent(
    engine: Engine, journal: Journal, collector: Collector
) -> None:
    journal.append(journal.submit("old", submitted()), LIFE)
    running = journal.append(journal.submit("running", submitted()), LIFE[:4])

    export = export_of(engine, collector)
    journal.append(running, LIFE[4:])
    export.run_once()

    owners = {span.attributes["holdfast.job"] for span in collector.spans if span.attributes}
    assert owners == {"running"}
    assert "job" in collector.names

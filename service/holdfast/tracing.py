"""OpenTelemetry traces of requests, of jobs, and of what the reconciler does for them.

The ids of a job's trace and of its spans follow from the job, so that they are the same in each process and after each
restart. Without `export_to`, nothing is recorded.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import Event, ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags
from opentelemetry.trace.status import Status, StatusCode

import holdfast
from holdfast.domain.diagnostics.job_trace import JOB, TraceSpan

Attributes: TypeAlias = Mapping[str, str | bool | int | float]

SCOPE: Final = "holdfast"
"""Instrumentation scope of all spans."""
_LOGGERS: Final = "opentelemetry"
_TIMEOUT_S: Final = 5.0
"""Time for one export. A lower value fails on a slow collector; a higher value delays the end of the service."""
_UNNAMED: Final = "unknown_service"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_TRACES_PATH: Final = "/v1/traces"
_tracer = trace.get_tracer(SCOPE, holdfast.__version__)


def span_context(job_id: str, key: str = JOB) -> SpanContext:
    """The ids of a span of a job, by its key within the job."""
    return SpanContext(
        trace_id=_number(job_id, 16),
        span_id=_number(f"{job_id}/{key}", 8),
        is_remote=False,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


@contextmanager
def job_span(name: str, job_id: str, **attributes: str) -> Iterator[None]:
    """Record what this process does for a job, in the trace of the job."""
    is_within = (
        trace.get_current_span().get_span_context().trace_id == span_context(job_id).trace_id
    )
    with _tracer.start_as_current_span(
        name,
        context=None if is_within else _parent(job_id),
        kind=SpanKind.INTERNAL,
        attributes=_own({"job": job_id, **attributes}),
    ):
        yield


def describe_request(method: str, route: str, **attributes: str) -> None:
    """Add to the span of the current request what FastAPI does not know.

    These are its id and job, and its route where the router was bypassed.
    """
    span = trace.get_current_span()
    span.update_name(f"{method} {route}")
    span.set_attributes({"http.route": route, **_own(attributes)})


def export_to(endpoint: str) -> SpanExporter:
    """Record traces from now on, and return an exporter for the spans of jobs.

    `endpoint`: address of an OpenTelemetry collector that speaks OTLP over HTTP. Headers, sampling and the name of the service
    follow OpenTelemetry's own variables, such as `OTEL_EXPORTER_OTLP_HEADERS`.
    """
    address = endpoint.rstrip("/") + _TRACES_PATH
    provider = TracerProvider(resource=resource())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(address, timeout=_TIMEOUT_S)))
    trace.set_tracer_provider(provider)
    # A collector that is away would log a traceback for each batch.
    logging.getLogger(_LOGGERS).setLevel(logging.CRITICAL)
    return OTLPSpanExporter(address, timeout=_TIMEOUT_S)


def resource() -> Resource:
    """This service, as its spans name it; `OTEL_SERVICE_NAME` takes precedence."""
    found = Resource.create()
    own = {"service.version": holdfast.__version__}
    if str(found.attributes.get("service.name", "")).startswith(_UNNAMED):
        own["service.name"] = SCOPE
    return found.merge(Resource(own))


def readable(span: TraceSpan, job_id: str, source: Resource) -> ReadableSpan:
    """A span of a job as an exporter takes it."""
    return ReadableSpan(
        span.name,
        context=span_context(job_id, span.key),
        parent=span_context(job_id, span.parent) if span.parent else None,
        resource=source,
        attributes={**_own({"job": job_id}), **span.attributes},
        events=[Event(note.name, note.attributes, _ns(note.at)) for note in span.notes],
        status=Status(StatusCode.ERROR, span.error) if span.error else Status(StatusCode.UNSET),
        start_time=_ns(span.begin),
        end_time=_ns(span.end),
        instrumentation_scope=InstrumentationScope(SCOPE, holdfast.__version__),
    )


def _ns(at: datetime) -> int:
    """Nanoseconds since 1970, without the rounding of a float."""
    return (at - _EPOCH) // timedelta(microseconds=1) * 1000


def _own(attributes: Mapping[str, str]) -> Attributes:
    return {f"{SCOPE}.{name}": value for name, value in attributes.items()}


def _parent(job_id: str) -> Context:
    return trace.set_span_in_context(NonRecordingSpan(span_context(job_id)))


def _number(text: str, size: int) -> int:
    """A number of `size` bytes that is not 0, which is no id."""
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size]) or 1

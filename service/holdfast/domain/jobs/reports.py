"""Parse worker reports: progress becomes a metric point, all other reports become events."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from holdfast_worker.protocol.gpu_health import NodeGpus
from holdfast_worker.protocol.reports import Report, ReportKind
from pydantic import AwareDatetime, TypeAdapter, ValidationError

from holdfast.domain.events import WorkerFact, decode
from holdfast.domain.events.values import Attempt, Count
from holdfast.errors import BadReport

MAX_NODES: Final = 1000
"""Nodes of one report of GPUs, as in the largest job. A higher value lets a report fill the table."""
_KINDS: Final = frozenset(ReportKind)
_TIME = TypeAdapter[datetime](AwareDatetime)
_ATTEMPT = TypeAdapter[int](Attempt)
_STEP = TypeAdapter[int](Count)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Progress of an attempt with its metric values. Stored outside the journal."""

    attempt: int
    n: int
    at: datetime
    step: int
    values: dict[str, float | None]
    """Metric values by name; None for values that are not finite."""


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuReadings:
    """The newest readings of the GPUs of some nodes. Stored outside the journal."""

    attempt: int
    at: datetime
    nodes: tuple[NodeGpus, ...]


def parse_report(report: Report) -> WorkerFact | Point | GpuReadings | None:
    """The event, point or readings of a report; None for a kind or enum value of a newer worker.

    Raises:
        BadReport: The body does not fit the kind; the message names the field.
    """
    try:
        at = _TIME.validate_python(report.at).astimezone(UTC)
        attempt = _ATTEMPT.validate_python(report.attempt)
        if report.kind == ReportKind.PROGRESS:
            return _point(report, at)
        if report.kind == ReportKind.GPUS_READ:
            return _gpu_readings(report, at)
        if report.kind not in _KINDS:
            return None
        kind = "".join(word.capitalize() for word in report.kind.split("_"))
        event = decode(kind, at, {**_readable(report.body), "attempt": attempt})
        return event if isinstance(event, WorkerFact) else None
    except (ValidationError, TypeError, ValueError, OverflowError, RecursionError) as error:
        issue = error.errors()[0] if isinstance(error, ValidationError) else None
        where = f"{'.'.join(map(str, issue['loc']))}: {issue['msg']}" if issue else str(error)
        raise BadReport(f"report {report.n} ({report.kind}): {where}") from error


def _point(report: Report, at: datetime) -> Point:
    values = report.body.get("values", {})
    if not isinstance(values, dict):
        raise BadReport(f"report {report.n} (progress): values must map names to numbers")
    return Point(
        attempt=report.attempt,
        n=report.n,
        at=at,
        step=_STEP.validate_python(report.body.get("step")),
        values={_legible(name): _finite(value) for name, value in values.items()},
    )


def _gpu_readings(report: Report, at: datetime) -> GpuReadings:
    nodes = _readable(report.body).get("nodes")
    if not isinstance(nodes, list) or len(nodes) > MAX_NODES:
        raise BadReport(f"report {report.n} (gpus_read): nodes must list at most {MAX_NODES} nodes")
    found = tuple(NodeGpus.parse(each) for each in nodes)
    for each in found:
        if datetime.fromisoformat(each.at).tzinfo is None:
            raise BadReport(f"report {report.n} (gpus_read): at must have a timezone: {each.at}")
    return GpuReadings(attempt=report.attempt, at=at, nodes=found)


def _readable(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """The body with lone surrogates replaced: JSON can contain them, responses cannot."""
    text = json.dumps(body, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        replaced: dict[str, Any] = json.loads(text.encode(errors="replace"))
        return replaced
    return body


def _legible(name: str) -> str:
    """The name without characters that databases reject.

    These are lone surrogates, and NUL for PostgreSQL.
    """
    return name.encode(errors="replace").decode().replace("\0", "?")


def _finite(value: Any) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # JSON integers can exceed the range of floats.
        return None
    return number if math.isfinite(number) else None

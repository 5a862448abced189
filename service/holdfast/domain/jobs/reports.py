"""What workers report, understood: most reports are facts for the journal, progress is a point of a curve."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from holdfast_worker.protocol.reports import Report, ReportKind
from pydantic import AwareDatetime, TypeAdapter, ValidationError

from holdfast.domain.events import WorkerFact, decode
from holdfast.domain.events.values import Attempt, Count
from holdfast.errors import BadReport

_KINDS: Final = frozenset(ReportKind)
_TIME = TypeAdapter[datetime](AwareDatetime)
_ATTEMPT = TypeAdapter[int](Attempt)
_STEP = TypeAdapter[int](Count)


@dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """Where an attempt was, and what it measured there. Kept beside the journal, not in it."""

    attempt: int
    n: int
    at: datetime
    step: int
    values: dict[str, float | None]
    """None where the worker measured something that is not finite."""


def parse_report(report: Report) -> WorkerFact | Point | None:
    """The fact or the point that a report tells; None for a kind or an enum value that a newer worker added.

    Raises:
        BadReport: the body does not fit the kind; the message names the field.
    """
    try:
        at = _TIME.validate_python(report.at).astimezone(UTC)
        attempt = _ATTEMPT.validate_python(report.attempt)
        if report.kind == ReportKind.PROGRESS:
            return _point(report, at)
        if report.kind not in _KINDS:
            return None
        kind = "".join(word.capitalize() for word in report.kind.split("_"))
        event = decode(kind, at, {**_readable(report.body), "attempt": attempt})
        return event if isinstance(event, WorkerFact) else None
    except (ValidationError, TypeError, ValueError, OverflowError, RecursionError) as error:
        flaw = error.errors()[0] if isinstance(error, ValidationError) else None
        where = f"{'.'.join(map(str, flaw['loc']))}: {flaw['msg']}" if flaw else str(error)
        raise BadReport(f"report {report.n} ({report.kind}): {where}") from error


def _point(report: Report, at: datetime) -> Point:
    values = report.body.get("values", {})
    if not isinstance(values, dict):
        raise BadReport(f"report {report.n} (progress): values must be numbers by name")
    return Point(
        attempt=report.attempt,
        n=report.n,
        at=at,
        step=_STEP.validate_python(report.body.get("step")),
        values={_legible(name): _finite(value) for name, value in values.items()},
    )


def _readable(body: Mapping[str, Any]) -> Mapping[str, Any]:
    """A body with a question mark for each half of a surrogate pair. JSON can hold one; no answer of the service can."""
    text = json.dumps(body, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        replaced: dict[str, Any] = json.loads(text.encode(errors="replace"))
        return replaced
    return body


def _legible(name: str) -> str:
    """A name that every database can read; JSON knows characters that are none, and PostgreSQL no NUL."""
    return name.encode(errors="replace").decode().replace("\0", "?")


def _finite(value: Any) -> float | None:
    try:
        number = float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:  # JSON knows integers that no float can hold.
        return None
    return number if math.isfinite(number) else None

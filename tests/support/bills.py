"""Bills of jobs from a few events, in seconds after the submission."""

from __future__ import annotations

from holdfast.domain.billing.bill import Bill, LatestPoint, Phases, compute_bill
from holdfast.domain.events import Event
from support.events import at, launched, submitted

NOW_S = 1000
"""When a bill is computed."""


def billed(*events: Event, reached: dict[int, tuple[int, float]] | None = None) -> Bill:
    """The bill of a job that was launched at once; `reached`: the newest step of an attempt, and when."""
    points = {n: LatestPoint(step=step, at=at(s)) for n, (step, s) in (reached or {}).items()}
    return compute_bill([submitted(0), launched(0), *events], points, at(NOW_S))


def s(**seconds: float) -> Phases:
    """Phases in seconds."""
    return Phases(**{phase: round(1000 * span) for phase, span in seconds.items()})

"""What this process measures of itself: how it answers, and how it takes reports. Nothing of it outlives the process.

Labels have few values, all known beforehand: no id, no name that people choose, no path but as its template.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
)

import holdfast

METHODS: Final = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
NO_ROUTE: Final = "none"
"""The route of a request to an address at which there is nothing."""
disable_created_metrics()  # type: ignore[no-untyped-call]  # When each series began, which doubles what is told and is asked by nobody.

_SECONDS: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2.5, 10)
_SIZES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


class ProcessMetrics:
    """The instruments of one service."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        build = Gauge(
            "holdfast_build_info", "Which Holdfast this is.", ["version"], registry=self.registry
        )
        build.labels(holdfast.__version__).set(1)
        self._http = Histogram(
            "holdfast_http_request_seconds",
            "From the arrival of a request until its answer begins.",
            ["method", "route", "status"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._groups = Histogram(
            "holdfast_intake_group_reports",
            "Reports that were written in one transaction.",
            buckets=_SIZES,
            registry=self.registry,
        )
        self._commits = Histogram(
            "holdfast_intake_commit_seconds",
            "What such a transaction took.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._answers = Histogram(
            "holdfast_intake_answer_seconds",
            "From the arrival of a delivery until it was durable, or refused.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._deliveries = Counter(
            "holdfast_intake_deliveries",
            "Deliveries of workers, by what became of them: taken, refused or failed.",
            ["outcome"],
            registry=self.registry,
        )
        for outcome in ("taken", "refused", "failed"):
            self._deliveries.labels(outcome)
        self._waiting = Gauge(
            "holdfast_intake_waiting_reports",
            "Reports that wait to be written.",
            registry=self.registry,
        )

    def answered(self, method: str, route: str, status: int, seconds: float) -> None:
        """A request was answered."""
        word = method if method in METHODS else "other"
        self._http.labels(word, route, f"{status // 100}xx").observe(seconds)

    def committed(self, reports: int, seconds: float) -> None:
        """A group of reports was written, or could not be."""
        self._groups.observe(reports)
        self._commits.observe(seconds)

    def delivered(self, outcome: str, seconds: float) -> None:
        """A delivery was answered."""
        self._deliveries.labels(outcome).inc()
        self._answers.observe(seconds)

    def waits(self, reports: int) -> None:
        """So many reports wait."""
        self._waiting.set(reports)

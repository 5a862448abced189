"""Metrics of this process: response times and report ingestion. They are lost when it ends.

Labels have few values, all known in advance: no ids, no names chosen by people, and paths only as templates.
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
"""The route label of a request to an unknown address."""
disable_created_metrics()  # type: ignore[no-untyped-call]  # Creation times would double the output.

_SECONDS: Final = (0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.5, 1, 2.5, 10)
_SIZES: Final = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000)


class ProcessMetrics:
    """The metrics of one service process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        build = Gauge(
            "holdfast_build_info", "Version of Holdfast.", ["version"], registry=self.registry
        )
        build.labels(holdfast.__version__).set(1)
        self._http = Histogram(
            "holdfast_http_request_seconds",
            "Time from the arrival of a request to the start of its response.",
            ["method", "route", "status"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._groups = Histogram(
            "holdfast_intake_group_reports",
            "Reports written in one transaction.",
            buckets=_SIZES,
            registry=self.registry,
        )
        self._commits = Histogram(
            "holdfast_intake_commit_seconds",
            "Duration of such a transaction.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._answers = Histogram(
            "holdfast_intake_answer_seconds",
            "Time from the arrival of a delivery until it is durable or refused.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._deliveries = Counter(
            "holdfast_intake_deliveries",
            "Deliveries of workers by outcome: taken, refused or failed.",
            ["outcome"],
            registry=self.registry,
        )
        for outcome in ("taken", "refused", "failed"):
            self._deliveries.labels(outcome)
        self._waiting = Gauge(
            "holdfast_intake_waiting_reports",
            "Reports waiting to be written.",
            registry=self.registry,
        )

    def observe_request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Record a response."""
        label = method if method in METHODS else "other"
        self._http.labels(label, route, f"{status // 100}xx").observe(seconds)

    def observe_commit(self, reports: int, seconds: float) -> None:
        """Record a group of reports that was written, or could not be."""
        self._groups.observe(reports)
        self._commits.observe(seconds)

    def observe_delivery(self, outcome: str, seconds: float) -> None:
        """Record the response to a delivery."""
        self._deliveries.labels(outcome).inc()
        self._answers.observe(seconds)

    def set_waiting(self, reports: int) -> None:
        """Set the number of waiting reports."""
        self._waiting.set(reports)

"""What a monitor asks for: the service in figures, in the text format of Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from fastapi import Response
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from holdfast.api.dependencies import The
from holdfast.api.routing import Router
from holdfast.domain.billing.phases import Phase
from holdfast.domain.events import Cause, Outcome
from holdfast.domain.jobfile.limits import MICROS_PER_USD
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobs.job import State
from holdfast.services import Services
from holdfast.store.billing.statistics import ServiceStatistics, tally

router = Router()

STATES: Final = (*(state for state in State if state is not State.ENDED), *Outcome)


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}},
    tags=["health"],
)
def read_metrics(services: The) -> Response:
    """The service in figures, for Prometheus. While the database cannot be used, there are none."""
    told = [generate_latest(services.instruments.registry)]
    registry = CollectorRegistry()
    registry.register(_Told(list(_figures(services))))
    told.append(generate_latest(registry))
    return Response(b"".join(told), media_type=CONTENT_TYPE_PLAIN_0_0_4)


class _Told(Collector):
    """Figures that are known already."""

    def __init__(self, figures: list[Metric]) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        return self._figures


def _figures(services: Services) -> Iterator[Metric]:
    yield _one(
        "holdfast_reconciler_up",
        "1 while jobs are watched by this process.",
        int(services.is_reconciling()),
    )
    yield _launchers(services)
    found = tally(services.engine, services.ledgers, services.clock.now())
    yield from _jobs(found)
    yield from _money(found)
    yield from _watching(found)


def _jobs(found: ServiceStatistics) -> Iterator[Metric]:
    yield _each("holdfast_jobs", "Jobs, by state.", "state", STATES, found.jobs)
    words = "Placements that were lost so far, by cause."
    yield _each("holdfast_losses", words, "cause", Cause, found.losses)
    words = "Jobs that ended a moment ago and are not in the sums yet."
    yield _one("holdfast_jobs_pending", words, found.pending)


def _money(found: ServiceStatistics) -> Iterator[Metric]:
    """Dollars so far. They are no counters: a price that is told later moves them, and what was saved may become less."""
    paid = _usd("holdfast_paid_usd", "Paid for nodes, by the rules of providers.")
    on_demand = _usd("holdfast_on_demand_usd", "What the same useful work would cost on demand.")
    phases = _usd("holdfast_phase_usd", "Paid, by what for, before these rules.", "phase")
    standing = _usd("holdfast_standing_usd_per_hour", "Price of all nodes that stand, an hour.")
    for simulated in (False, True):
        of, mark = found.amounts.get(simulated, {}), str(simulated).lower()
        micros = {phase: of.get(f"{phase}_micros", 0) for phase in Phase}
        whole = sum(micros.values()) + of.get("adjusted_micros", 0)
        paid.add_metric([mark], whole / MICROS_PER_USD)
        on_demand.add_metric([mark], of.get("on_demand_micros", 0) / MICROS_PER_USD)
        standing.add_metric([mark], found.standing.get(simulated, 0) / MICROS_PER_USD)
        for phase in Phase:
            phases.add_metric([mark, phase.value], micros[phase] / MICROS_PER_USD)
    yield from (paid, on_demand, phases, standing)


def _watching(found: ServiceStatistics) -> Iterator[Metric]:
    words = "Jobs that are looked at, by launcher."
    yield _each("holdfast_watched_jobs", words, "launcher", Engine, found.watched)
    words = "Jobs of which the last look gave nothing, by launcher."
    yield _each("holdfast_unseen_jobs", words, "launcher", Engine, found.unseen)
    words = "How long the look is overdue that is so for longest; 0 where none is."
    yield _one("holdfast_look_overdue_seconds", words, found.overdue_s)


def _launchers(services: Services) -> Metric:
    metric = GaugeMetricFamily(
        "holdfast_launcher_up",
        "1 while the engine behind a launcher answers, or there is none to ask.",
        labels=["launcher"],
    )
    troubled = {item.engine for item in services.health() if item.trouble}
    for engine in services.launchers:
        metric.add_metric([engine.value], int(engine not in troubled))
    return metric


def _one(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(name, words, value=value)


def _each(
    name: str, words: str, label: str, values: Iterable[str], found: Mapping[str, int]
) -> Metric:
    metric = GaugeMetricFamily(name, words, labels=[label])
    for value in values:
        metric.add_metric([str(value)], found.get(str(value), 0))
    return metric


def _usd(name: str, words: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, f"Dollars. {words}", labels=["simulated", *labels])

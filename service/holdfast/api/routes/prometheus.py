"""Metrics of the service in the text format of Prometheus."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Final

from fastapi import Response
from holdfast_worker.protocol.gpu_health import GpuFault, GpuReading, Throttle
from holdfast_worker.protocol.reports import RuntimeMetricName
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.registry import Collector

from holdfast.api.dependencies import TheServices
from holdfast.api.routing import Router
from holdfast.api.views.fleet_health import FleetHealth, fleet_health
from holdfast.domain.access.audit import BACKUP
from holdfast.domain.billing.phases import Phase
from holdfast.domain.events import DRILL, Cause, Outcome
from holdfast.domain.jobfile.limits import MICROS_PER_USD
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobs.job import State
from holdfast.domain.notifications.channels import DeliveryStatus
from holdfast.ports import OrphanScan
from holdfast.services import Services
from holdfast.store.billing.statistics import ServiceStatistics, collect_statistics

router = Router()

STATES: Final = (*(state for state in State if state is not State.ENDED), *Outcome)

TRAINING: Final[Mapping[RuntimeMetricName, tuple[str, str]]] = {
    RuntimeMetricName.STEPS: ("holdfast_training_steps_per_second", "steps per second"),
    RuntimeMetricName.TOKENS: ("holdfast_training_tokens_per_second", "tokens per second"),
    RuntimeMetricName.SAMPLES: ("holdfast_training_samples_per_second", "samples per second"),
    RuntimeMetricName.MFU: ("holdfast_training_mfu_ratio", "share of the peak of their GPUs"),
    RuntimeMetricName.DATA_SECONDS: (
        "holdfast_training_step_data_seconds",
        "seconds of a step waiting for data",
    ),
    RuntimeMetricName.COMPUTE_SECONDS: (
        "holdfast_training_step_compute_seconds",
        "seconds of a step in computation",
    ),
    RuntimeMetricName.COMMUNICATION_SECONDS: (
        "holdfast_training_step_communication_seconds",
        "seconds of a step waiting for gradients",
    ),
    RuntimeMetricName.SAVING_SECONDS: (
        "holdfast_training_step_saving_seconds",
        "seconds of a step held up by saves",
    ),
    RuntimeMetricName.STALLED: (
        "holdfast_training_stalled_ratio",
        "share of time in stalls",
    ),
    RuntimeMetricName.LOADING: (
        "holdfast_training_loading_ratio",
        "share of time waiting for data",
    ),
    RuntimeMetricName.COMMUNICATION: (
        "holdfast_training_communication_ratio",
        "share of time waiting for gradients",
    ),
    RuntimeMetricName.HOST_MEMORY: (
        "holdfast_training_host_memory_bytes",
        "memory of the first rank",
    ),
    RuntimeMetricName.GPU_MEMORY: (
        "holdfast_training_gpu_memory_bytes",
        "peak GPU memory of the first rank",
    ),
    RuntimeMetricName.GPU_UTILIZATION: (
        "holdfast_training_gpu_utilization_ratio",
        "GPU utilization of the first rank",
    ),
}
"""Metric and description of each runtime metric."""

GPU_READINGS: Final[Sequence[tuple[str, str, Callable[[GpuReading], float | None]]]] = (
    ("holdfast_gpu_utilization_ratio", "share of time busy", lambda gpu: gpu.utilization),
    ("holdfast_gpu_memory_used_bytes", "memory in use", lambda gpu: gpu.memory_used_bytes),
    ("holdfast_gpu_temperature_celsius", "temperature", lambda gpu: gpu.temperature_c),
    ("holdfast_gpu_power_watts", "power", lambda gpu: gpu.power_w),
    ("holdfast_gpu_clock_mhz", "clock of the multiprocessors", lambda gpu: gpu.clock_mhz),
)
"""Metric, description and value of each reading of GPUs."""


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}},
    tags=["health"],
)
def read_metrics(services: TheServices) -> Response:
    """Export the service's metrics for Prometheus; fails while the database is unavailable."""
    parts = [generate_latest(services.metrics.registry)]
    registry = CollectorRegistry()
    registry.register(_StaticCollector(list(_figures(services))))
    parts.append(generate_latest(registry))
    return Response(b"".join(parts), media_type=CONTENT_TYPE_PLAIN_0_0_4)


class _StaticCollector(Collector):
    """A collector of metrics that are already computed."""

    def __init__(self, figures: list[Metric]) -> None:
        self._figures = figures

    def collect(self) -> Iterable[Metric]:
        return self._figures


def _figures(services: Services) -> Iterator[Metric]:
    yield _gauge(
        "holdfast_reconciler_up",
        "1 while this process reconciles jobs.",
        int(services.is_reconciling()),
    )
    yield _launchers(services)
    found = collect_statistics(services.engine, services.bill_rollups, services.clock.now())
    yield from _jobs(found)
    yield from _money(found)
    yield from _watched_jobs(found)
    words = "Jobs that wait for room in quotas."
    yield _gauge("holdfast_queue_waiting_jobs", words, len(services.journal.queue.state().waiting))
    yield from _gpus(services)
    yield from _risks(fleet_health(services))
    yield from _upkeep(services)
    yield from _training([reading.values for reading in services.queries.readings().values()])


def _jobs(found: ServiceStatistics) -> Iterator[Metric]:
    yield _labelled_gauge("holdfast_jobs", "Jobs, by state.", "state", STATES, found.jobs)
    words = "Attempts lost so far, by cause."
    causes = (*Cause, DRILL)
    yield _labelled_gauge("holdfast_losses", words, "cause", causes, found.losses)
    words = "Ended jobs that are not in the totals yet."
    yield _gauge("holdfast_jobs_pending", words, found.pending)


def _money(found: ServiceStatistics) -> Iterator[Metric]:
    """Yield dollars so far.

    They are not counters: a later price changes them, and savings may decrease.
    """
    paid = _usd_gauge("holdfast_paid_usd", "Paid for nodes, after provider rules.")
    on_demand = _usd_gauge("holdfast_on_demand_usd", "Cost of the same useful work on demand.")
    phases = _usd_gauge("holdfast_phase_usd", "Paid by phase, before provider rules.", "phase")
    standing = _usd_gauge("holdfast_standing_usd_per_hour", "Price of all running nodes per hour.")
    for simulated in (False, True):
        of, mark = found.amounts.get(simulated, {}), str(simulated).lower()
        micros = {phase: of.get(f"{phase}_micros", 0) for phase in Phase}
        whole = sum(micros.values()) + of.get("adjusted_micros", 0)
        paid.add_metric([mark], whole / MICROS_PER_USD)
        on_demand.add_metric([mark], of.get("on_demand_micros", 0) / MICROS_PER_USD)
        standing.add_metric([mark], found.running_rates.get(simulated, 0) / MICROS_PER_USD)
        for phase in Phase:
            phases.add_metric([mark, phase.value], micros[phase] / MICROS_PER_USD)
    yield from (paid, on_demand, phases, standing)


def _watched_jobs(found: ServiceStatistics) -> Iterator[Metric]:
    words = "Jobs that are observed, by launcher."
    yield _labelled_gauge("holdfast_watched_jobs", words, "launcher", Engine, found.watched)
    words = "Jobs whose last observation failed, by launcher."
    yield _labelled_gauge("holdfast_unseen_jobs", words, "launcher", Engine, found.unobserved)
    words = "Longest delay of an overdue observation in seconds; 0 if none is overdue."
    yield _gauge("holdfast_look_overdue_seconds", words, found.overdue_s)


def _risks(found: FleetHealth) -> Iterator[Metric]:
    for name, words, value in (
        ("room_wait", "Longest wait for room in quotas", found.wait_for_room_s),
        ("nodes_wait", "Longest wait for requested nodes", found.wait_for_nodes_s),
        ("startup", "Longest time of present nodes before training", found.startup_s),
        ("silence", "Longest time without a report of a job in training", found.silence_s),
        ("unsaved", "Longest training time since a checkpoint", found.unsaved_s),
    ):
        yield _gauge(f"holdfast_{name}_seconds", f"{words}; 0 without such a job.", value)
    words = "Unfinished jobs whose newest checkpoints failed."
    yield _gauge("holdfast_failing_save_jobs", words, found.failing_saves)
    words = "Jobs that are expected to miss their deadline."
    yield _gauge("holdfast_late_jobs", words, found.late)
    yield _spread(
        "holdfast_training_remaining_seconds",
        "Jobs in training: expected time until their end.",
        found.remaining_s,
    )


def _upkeep(services: Services) -> Iterator[Metric]:
    """Yield what the service itself needs from its operators."""
    now = services.clock.now()
    words = "Largest share of a monthly budget that is spent, by scope; absent without budgets."
    budgets = GaugeMetricFamily("holdfast_budget_spent_ratio", words, labels=["scope"])
    shares: dict[str, float] = {}
    for balance in services.journal.budgets.balances(now):
        scope = balance.budget.scope.value
        share = balance.spent_by(now) / balance.budget.monthly_micros
        shares[scope] = max(share, shares.get(scope, 0.0))
    for scope, share in shares.items():
        budgets.add_metric([scope], share)
    yield budgets
    words = "Messages to notification channels, by delivery status."
    statuses, counts = DeliveryStatus, services.outbox.counts()
    yield _labelled_gauge("holdfast_notification_messages", words, "status", statuses, counts)
    words = "Seconds since the last backup with holdfast db backup; absent without one."
    age = GaugeMetricFamily("holdfast_backup_age_seconds", words)
    if made_at := services.audit.newest_at(BACKUP.name):
        age.add_metric([], max(0.0, (now - made_at).total_seconds()))
    yield age
    words = "1 while events and files can be written on this machine."
    yield _gauge("holdfast_disk_up", words, int(services.disk_error() is None))
    yield _stray_launches(services)


def _stray_launches(services: Services) -> Metric:
    metric = GaugeMetricFamily(
        "holdfast_orphans",
        "Resources at launchers that belong to no live launch and still run, by launcher.",
        labels=["launcher", "kind"],
    )
    orphans = services.orphans()
    for engine, launcher in services.launchers.items():
        strangers = launcher.strangers if isinstance(launcher, OrphanScan) else None
        metric.add_metric([engine.value, "ended"], orphans.get(engine, 0))
        metric.add_metric([engine.value, "unknown"], len(strangers or ()))
    return metric


def _training(newest: Sequence[Mapping[str, float | None]]) -> Iterator[Metric]:
    """Yield minimum, mean and maximum of each runtime metric over all jobs in training.

    Labels with job ids would be unbounded.
    """
    for name, (metric, words) in TRAINING.items():
        found = [value for point in newest if (value := point.get(name)) is not None]
        yield _spread(metric, f"Jobs in training: {words}.", found)


def _gpus(services: Services) -> Iterator[Metric]:
    """Yield readings and faults of the GPUs of all jobs in training, without labels of jobs."""
    gpus = [gpu for node in services.gpu_health.of_running_jobs() for gpu in node.gpus]
    yield _gauge("holdfast_gpus", "GPUs that jobs in training report.", len(gpus))
    words = "Those of them with a fault, by fault."
    faults = Counter(fault.value for gpu in gpus for fault in gpu.faults)
    yield _labelled_gauge("holdfast_unhealthy_gpus", words, "fault", GpuFault, faults)
    words = "Those of them with lowered clocks, by reason."
    throttles = Counter(reason.value for gpu in gpus for reason in gpu.throttles)
    yield _labelled_gauge("holdfast_throttled_gpus", words, "reason", Throttle, throttles)
    for metric, words, value in GPU_READINGS:
        found = [number for gpu in gpus if (number := value(gpu)) is not None]
        yield _spread(metric, f"GPUs of jobs in training: {words}.", found)


def _spread(name: str, words: str, found: Sequence[float]) -> Metric:
    """Minimum, mean and maximum over some jobs; without samples if there are none."""
    family = GaugeMetricFamily(name, words, labels=["stat"])
    if found:
        family.add_metric(["min"], min(found))
        family.add_metric(["mean"], fmean(found))
        family.add_metric(["max"], max(found))
    return family


def _launchers(services: Services) -> Metric:
    metric = GaugeMetricFamily(
        "holdfast_launcher_up",
        "1 while the engine behind a launcher responds, or if it has none.",
        labels=["launcher"],
    )
    troubled = {item.engine for item in services.health() if item.error}
    for engine in services.launchers:
        metric.add_metric([engine.value], int(engine not in troubled))
    return metric


def _gauge(name: str, words: str, value: float) -> Metric:
    return GaugeMetricFamily(name, words, value=value)


def _labelled_gauge(
    name: str, words: str, label: str, values: Iterable[str], found: Mapping[str, int]
) -> Metric:
    metric = GaugeMetricFamily(name, words, labels=[label])
    for value in values:
        metric.add_metric([str(value)], found.get(str(value), 0))
    return metric


def _usd_gauge(name: str, words: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, f"Dollars. {words}", labels=["simulated", *labels])

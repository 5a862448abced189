"""Newest readings of GPUs, and the nodes that launches avoid."""

from __future__ import annotations

from datetime import timedelta

import pytest
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobs.lifecycle import fold
from holdfast.ports import AvoidedNode
from holdfast.store.journal import Journal
from holdfast.store.machines.gpu_health import KEPT, GpuHealth
from holdfast_worker.protocol.gpu_health import GpuFault, GpuReading, NodeGpus
from holdfast_worker.protocol.reports import Report, ReportKind
from sqlalchemy import Engine as SqlEngine
from support.events import DAWN, launched, ready, submitted, training
from support.fakes import FixedClock

AT = DAWN + timedelta(seconds=30)


@pytest.fixture
def journal(engine: SqlEngine, clock: FixedClock) -> Journal:
    """A journal with one job on SkyPilot that trains on two nodes."""
    journal = Journal(engine, clock)
    begun = [launched(1), ready(2, zone="us-east-1/us-east-1a", nodes=2), training(3)]
    journal.append(journal.submit("job-1", submitted(infra="aws")), begun)
    return journal


@pytest.fixture
def gpus(engine: SqlEngine, clock: FixedClock) -> GpuHealth:
    return GpuHealth(engine, clock, avoid_hours=24)


def read(n: int, *nodes: NodeGpus, attempt: int = 1) -> Report:
    body = {"nodes": [node.dump() for node in nodes]}
    return Report(attempt, n, AT.isoformat(), ReportKind.GPUS_READ, body)  # type: ignore[arg-type]


def unhealthy(n: int, *faults: GpuFault, node: int = 1, gpu: int = 3) -> Report:
    body = {"node": node, "host": f"hpc0{node}", "gpu": gpu, "faults": [*faults]}
    return Report(1, n, AT.isoformat(), ReportKind.GPU_UNHEALTHY, body)  # type: ignore[arg-type]


def node(number: int, temperature_c: int) -> NodeGpus:
    readings = [GpuReading(gpu=0, temperature_c=temperature_c), GpuReading(gpu=1)]
    return NodeGpus(number, f"hpc0{number}", AT.isoformat(), readings)


def test_newest_readings_of_each_node_are_kept(journal: Journal, gpus: GpuHealth) -> None:
    journal.ingest("job-1", 1, [read(1, node(0, 50), node(1, 51)), read(2, node(1, 61))])
    found = gpus.of_job("job-1")
    assert [(each.node, each.attempt, each.host, each.at) for each in found] == [
        (0, 1, "hpc00", AT),
        (1, 1, "hpc01", AT),
    ]
    assert [each.gpus[0].temperature_c for each in found] == [50, 61]
    assert gpus.of_running_jobs() == found
    assert gpus.of_job("job-2") == []


def test_only_readings_of_the_newest_attempt_are_shown(journal: Journal, gpus: GpuHealth) -> None:
    journal.ingest("job-1", 1, [read(1, node(0, 50), node(1, 51))])
    journal.ingest("job-1", 2, [read(1, node(0, 40), attempt=2)])
    assert [(each.node, each.attempt) for each in gpus.of_job("job-1")] == [(0, 2)]


def test_readings_change_neither_job_nor_log(journal: Journal) -> None:
    before = journal.read("job-1")
    journal.ingest("job-1", 1, [read(1, node(0, 50))])
    assert journal.read("job-1") == before
    assert journal.marks("job-1") == {1: 1}


def test_fault_is_an_event_and_its_node_is_avoided(
    journal: Journal, gpus: GpuHealth, clock: FixedClock
) -> None:
    journal.ingest("job-1", 1, [unhealthy(1, GpuFault.HEAT), unhealthy(2, GpuFault.NVLINK)])
    zone = AvoidedNode(host="hpc01", cloud="", zone="us-east-1/us-east-1a")
    assert gpus.avoided_nodes(Engine.SKYPILOT) == [zone]
    assert gpus.avoided_nodes(Engine.SLURM) == []
    clock.advance(24 * 3600)
    assert gpus.avoided_nodes(Engine.SKYPILOT) == []
    events = [recorded.event for recorded in journal.events("job-1")]
    assert fold("job-1", events) == journal.read("job-1")


def test_nodes_with_the_newest_faults_come_first(
    journal: Journal, gpus: GpuHealth, clock: FixedClock
) -> None:
    journal.ingest("job-1", 1, [unhealthy(1, GpuFault.HEAT, node=0)])
    clock.advance(1 * 3600)
    journal.ingest("job-1", 1, [unhealthy(2, GpuFault.HEAT)])
    assert [each.host for each in gpus.avoided_nodes(Engine.SKYPILOT)] == ["hpc01", "hpc00"]


def test_no_hours_avoid_nothing(journal: Journal, engine: SqlEngine, clock: FixedClock) -> None:
    journal.ingest("job-1", 1, [unhealthy(1, GpuFault.HEAT)])
    assert GpuHealth(engine, clock).avoided_nodes(Engine.SKYPILOT) == []


def test_old_faults_are_forgotten(journal: Journal, engine: SqlEngine, clock: FixedClock) -> None:
    journal.ingest("job-1", 1, [unhealthy(1, GpuFault.HEAT, node=0)])
    clock.advance(KEPT.total_seconds() + 3600)
    journal.ingest("job-1", 1, [unhealthy(2, GpuFault.HEAT)])
    ever = GpuHealth(engine, clock, avoid_hours=10_000)
    assert [each.host for each in ever.avoided_nodes(Engine.SKYPILOT)] == ["hpc01"]


def test_names_that_databases_refuse_are_stored_legibly(journal: Journal, gpus: GpuHealth) -> None:
    named = NodeGpus(2**31 - 1, "hpc\0", AT.isoformat(), [GpuReading(gpu=0, name="a\0b")])
    body = {"node": 2**31 - 1, "host": "hpc\0" * 100, "gpu": 0, "faults": ["heat"]}
    fault = Report(1, 2, AT.isoformat(), ReportKind.GPU_UNHEALTHY, body)  # type: ignore[arg-type]
    journal.ingest("job-1", 1, [read(1, named), fault])
    [found] = gpus.of_job("job-1")
    assert (found.host, found.gpus[0].name) == ("hpc?", "a?b")
    assert gpus.avoided_nodes(Engine.SKYPILOT)[0].host == "hpc?" * 25

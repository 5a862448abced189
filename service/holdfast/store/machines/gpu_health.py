"""Readings of the GPUs of jobs, and which nodes launches avoid.

Readings are no events: only the newest of each node is stored. A fault is an event, and stays here as long as launches may have
to avoid its node.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

from holdfast_worker.protocol.gpu_health import GpuReading, legible
from sqlalchemy import Connection, RowMapping, delete, insert, or_, select, tuple_
from sqlalchemy import Engine as SqlEngine

from holdfast.domain.events import Event, GpuUnhealthy, NodesReady, decode
from holdfast.domain.jobfile.spec import Engine
from holdfast.domain.jobs.job import IN_TRAINING, Job
from holdfast.domain.jobs.reports import GpuReadings
from holdfast.ports import AvoidedNode, Clock
from holdfast.store.database import reading
from holdfast.store.tables.jobs import job_events, jobs
from holdfast.store.tables.metrics import gpu_readings, unhealthy_gpus

KEPT: Final = timedelta(days=31)
"""How long faults are kept here. A lower value forgets nodes that the settings have launches avoid; a higher value keeps more rows."""
MAX_AVOIDED: Final = 64
"""Nodes that a launch avoids, the newest faults first. A lower value uses broken nodes; a higher value leaves none on a small cluster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class NodeReadings:
    """The newest readings of a node of a job."""

    node: int
    attempt: int
    host: str
    at: datetime
    gpus: Sequence[GpuReading]


class GpuHealth:
    """The GPUs of all jobs."""

    def __init__(self, engine: SqlEngine, clock: Clock, avoid_hours: float = 0.0) -> None:
        """`avoid_hours`: how long after a fault launches avoid its node; 0: never."""
        self._engine = engine
        self._clock = clock
        self._avoided = timedelta(hours=avoid_hours)

    def of_job(self, job_id: str) -> list[NodeReadings]:
        """The readings of the newest attempt that reported any, by node."""
        query = select(gpu_readings).where(gpu_readings.c.job_id == job_id)
        with reading(self._engine) as connection:
            rows = connection.execute(query.order_by(gpu_readings.c.node)).mappings().all()
        newest = max((row["attempt"] for row in rows), default=0)
        return [_node_readings(row) for row in rows if row["attempt"] == newest]

    def of_running_jobs(self) -> list[NodeReadings]:
        """The readings of all jobs in training."""
        running = select(jobs.c.id).where(jobs.c.status.in_(IN_TRAINING))
        query = select(gpu_readings).where(gpu_readings.c.job_id.in_(running))
        with reading(self._engine) as connection:
            return [_node_readings(row) for row in connection.execute(query).mappings()]

    def avoided_nodes(self, engine: Engine) -> list[AvoidedNode]:
        """Nodes of a launcher that new launches avoid, those with the newest faults first."""
        if not self._avoided:
            return []
        columns = unhealthy_gpus.c
        query = (
            select(unhealthy_gpus)
            .where(columns.engine == engine, columns.at > self._clock.now() - self._avoided)
            .order_by(columns.at.desc(), columns.job_id, columns.node, columns.gpu)
        )
        with reading(self._engine) as connection:
            rows = connection.execute(query).mappings().all()
            newest = {(row["job_id"], row["attempt"], row["node"]): row for row in reversed(rows)}
            found = [*reversed(newest.values())][:MAX_AVOIDED]
            return [_avoided_node(row, _placed_events(connection, row)) for row in found]


def save_readings(connection: Connection, found: Iterable[tuple[str, GpuReadings]]) -> None:
    """Store the newest readings of nodes, each with its job."""
    rows = {
        (job_id, each.node): {
            "job_id": job_id,
            "node": each.node,
            "attempt": readings.attempt,
            "host": each.host,
            "at": datetime.fromisoformat(each.at),
            "gpus": [gpu.dump() for gpu in each.gpus],
        }
        for job_id, readings in found
        for each in readings.nodes
    }
    if rows:
        key = tuple_(gpu_readings.c.job_id, gpu_readings.c.node)
        connection.execute(delete(gpu_readings).where(key.in_([*rows])))
        connection.execute(insert(gpu_readings), [*rows.values()])


def save_faults(
    connection: Connection, job: Job, facts: Iterable[Event], recorded_at: datetime
) -> None:
    """Store the faults among events of a job, and forget old ones."""
    rows = {
        (job.id, fact.attempt, fact.node, fact.gpu): {
            "job_id": job.id,
            "attempt": fact.attempt,
            "node": fact.node,
            "gpu": fact.gpu,
            "engine": job.engine,
            "host": legible(fact.host),
            "at": recorded_at,
        }
        for fact in facts
        if isinstance(fact, GpuUnhealthy)
    }
    if rows:
        key = tuple_(*unhealthy_gpus.primary_key.columns)
        is_old = unhealthy_gpus.c.at < recorded_at - KEPT
        connection.execute(delete(unhealthy_gpus).where(or_(key.in_([*rows]), is_old)))
        connection.execute(insert(unhealthy_gpus), [*rows.values()])


def _node_readings(row: RowMapping) -> NodeReadings:
    return NodeReadings(
        node=row["node"],
        attempt=row["attempt"],
        host=row["host"],
        at=row["at"],
        gpus=[GpuReading.parse(gpu) for gpu in row["gpus"]],
    )


def _placed_events(connection: Connection, row: RowMapping) -> list[NodesReady]:
    """The placements of a job on SkyPilot, whose nodes have no lasting name; empty for others."""
    if row["engine"] != Engine.SKYPILOT:
        return []
    mine = job_events.c.job_id == row["job_id"], job_events.c.kind == NodesReady.__name__
    found = connection.execute(select(job_events).where(*mine)).mappings()
    events = [decode(each["kind"], each["at"], each["body"]) for each in found]
    return [event for event in events if isinstance(event, NodesReady)]


def _avoided_node(row: RowMapping, placed: Sequence[NodesReady]) -> AvoidedNode:
    """The node of a fault, in the zone of its attempt."""
    cloud = zone = ""
    for event in placed:
        if event.attempt == row["attempt"]:
            cloud, zone, first = event.cloud, event.zone, 0
            for part in event.parts:
                if first <= row["node"] < first + part.nodes:
                    cloud, zone = part.cloud or cloud, part.zone or zone
                first += part.nodes
    return AvoidedNode(host=row["host"], cloud=cloud, zone=zone)

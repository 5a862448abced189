"""Metric series of a job, each continuous over all attempts, its throughput, and its GPUs."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

from fastapi import Query
from pydantic import StringConstraints

from holdfast.api.dependencies import TheJob, TheServices
from holdfast.api.routing import Router
from holdfast.api.schemas.metrics import (
    BucketOut,
    GpuOut,
    GpusOut,
    NodeGpusOut,
    SeriesOut,
    SeriesPage,
)
from holdfast.api.schemas.throughput import ThroughputOut
from holdfast.api.views.throughput import throughput_view
from holdfast.domain.metric_series import Axis, Bucket, to_buckets
from holdfast.store.metrics import SeriesInfo
from holdfast.store.tables.metrics import MAX_NAME_CHARS

router = Router(prefix="/v1")

MOST_NAMES: Final = 50
"""Maximum series in one response.

A lower value needs more requests per page; a higher value makes responses take seconds.
"""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Name = Annotated[str, StringConstraints(max_length=MAX_NAME_CHARS)]


@router.get("/jobs/{job_id}/series", response_model=SeriesPage, tags=["history"])
def list_series(
    job: TheJob,
    services: TheServices,
    *,
    name: Annotated[
        list[Name] | None,
        Query(
            max_length=MOST_NAMES,
            description="Series to return; repeatable. Default: only list the names.",
        ),
    ] = None,
    points: Annotated[
        int,
        Query(
            ge=1,
            le=5000,
            description="Buckets per series; where attempts share one, each has its own.",
        ),
    ] = 500,
    x: Annotated[Axis, Query(description="Quantity of the x axis.")] = Axis.STEP,
) -> SeriesPage:
    """Return metric series over all attempts; without `name`, list the series."""
    there_are = {item.name: item for item in services.series.names(job.id)}
    if name is None:
        return SeriesPage(x=x, series=[_view(item, None) for item in there_are.values()])
    wanted = sorted(there_are.keys() & set(name))
    limits = services.series.retained_steps(job) if wanted else {}
    drawn = []
    for each in wanted:
        pieces = services.series.segments(job.id, each, limits, points)
        drawn.append(_view(there_are[each], to_buckets(pieces, limits, x, points)))
    return SeriesPage(x=x, series=drawn)


@router.get("/jobs/{job_id}/throughput", response_model=ThroughputOut, tags=["history"])
def show_throughput(job: TheJob, services: TheServices) -> ThroughputOut:
    """Show how fast a job trains, over its attempts and by the clock, and when it will end."""
    return throughput_view(services, job)


@router.get("/jobs/{job_id}/gpus", response_model=GpusOut, tags=["history"])
def show_gpus(job: TheJob, services: TheServices) -> GpusOut:
    """Show the newest readings of the GPUs of all nodes, and what is wrong with them."""
    found = services.gpu_health.of_job(job.id)
    return GpusOut(
        attempt=found[0].attempt if found else None,
        nodes=[
            NodeGpusOut(
                node=each.node,
                host=each.host,
                at=each.at,
                gpus=[GpuOut(**asdict(gpu), detail=gpu.detail) for gpu in each.gpus],
            )
            for each in found
        ],
    )


def _view(item: SeriesInfo, buckets: list[Bucket] | None) -> SeriesOut:
    return SeriesOut(
        name=item.name,
        points=item.points,
        last_step=item.last_step,
        buckets=None if buckets is None else [_bucket(bucket) for bucket in buckets],
    )


def _bucket(bucket: Bucket) -> BucketOut:
    piece = bucket.segment
    return BucketOut(
        attempt=piece.attempt,
        lost=bucket.is_lost,
        first_step=piece.first_step,
        last_step=piece.last_step,
        first_at=_EPOCH + timedelta(milliseconds=piece.first_ms),
        last_at=_EPOCH + timedelta(milliseconds=piece.last_ms),
        points=piece.points,
        not_finite=piece.not_finite,
        mean=piece.mean,
        min=piece.low,
        max=piece.high,
    )

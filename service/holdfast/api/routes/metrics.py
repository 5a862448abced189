"""Curves of what a job measured: each one curve over all its attempts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

from fastapi import Query
from pydantic import StringConstraints

from holdfast.api.dependencies import The, TheJob
from holdfast.api.routing import Router
from holdfast.api.schemas.metrics import BucketOut, SeriesOut, SeriesPage
from holdfast.domain.metric_series import Axis, Bucket, curve
from holdfast.store.metrics import SeriesName
from holdfast.store.tables.metrics import LONGEST_NAME

router = Router(prefix="/v1")

MOST_NAMES: Final = 50
"""Curves in one answer. Smaller: a page of many needs more requests; bigger: one answer takes seconds."""
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

Name = Annotated[str, StringConstraints(max_length=LONGEST_NAME)]


@router.get("/jobs/{job_id}/series", response_model=SeriesPage, tags=["history"])
def list_series(
    job: TheJob,
    services: The,
    *,
    name: Annotated[
        list[Name] | None,
        Query(
            max_length=MOST_NAMES,
            description="Series whose curve is wanted; may be repeated. None: only which there are.",
        ),
    ] = None,
    points: Annotated[
        int,
        Query(
            ge=1,
            le=5000,
            description="Buckets of a curve; where attempts meet in one, there is one for each.",
        ),
    ] = 500,
    x: Annotated[Axis, Query(description="What curves are drawn over.")] = Axis.STEP,
) -> SeriesPage:
    """Curves of what workers logged, over all attempts; or, without `name`, which there are."""
    there_are = {item.name: item for item in services.series.names(job.id)}
    if name is None:
        return SeriesPage(x=x, series=[_view(item, None) for item in there_are.values()])
    wanted = sorted(there_are.keys() & set(name))
    limits = services.series.limits(job) if wanted else {}
    drawn = []
    for each in wanted:
        pieces = services.series.pieces(job.id, each, limits, points)
        drawn.append(_view(there_are[each], curve(pieces, limits, x, points)))
    return SeriesPage(x=x, series=drawn)


def _view(item: SeriesName, buckets: list[Bucket] | None) -> SeriesOut:
    return SeriesOut(
        name=item.name,
        points=item.points,
        last_step=item.last_step,
        buckets=None if buckets is None else [_bucket(bucket) for bucket in buckets],
    )


def _bucket(bucket: Bucket) -> BucketOut:
    piece = bucket.piece
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

"""The progress of attempts is read once, and again only after new reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest
from holdfast.domain.billing.bill import LatestPoint
from holdfast.store.billing.job_summaries import MAX_CACHED_JOBS, LatestPoints
from support.events import DAWN


class CountingPoints:
    """Any number of jobs, each with one point."""

    def __init__(self) -> None:
        self.taken: dict[str, int] = {}
        self.queried: list[list[str]] = []

    def marks(self, job_ids: Iterable[str]) -> dict[str, dict[int, int]]:
        return {job_id: {1: self.taken.get(job_id, 1)} for job_id in job_ids}

    def latest_points(self, job_ids: Iterable[str]) -> dict[str, dict[int, LatestPoint]]:
        self.queried.append([*job_ids])
        return {
            job_id: {1: LatestPoint(step=self.taken.get(job_id, 1), at=DAWN)}
            for job_id in self.queried[-1]
        }


def steps(found: Mapping[str, Mapping[int, LatestPoint]]) -> set[int]:
    return {points[1].step for points in found.values()}


@pytest.mark.parametrize("count", [3, MAX_CACHED_JOBS // 2, MAX_CACHED_JOBS - 1, MAX_CACHED_JOBS])
def test_cached_points_are_not_read_again(count: int) -> None:
    """Beyond half of its capacity, the cache used to forget most of its entries each time."""
    points = CountingPoints()
    reach, jobs = LatestPoints(points), [f"job-{number}" for number in range(count)]

    first = reach.get(jobs)
    points.taken["job-1"] = 7
    again = reach.get(jobs)

    assert [len(asked) for asked in points.queried] == [count, 1]
    assert (steps(first), steps(again)) == ({1}, {1, 7})
    assert again["job-0"] is first["job-0"]


def test_cache_size_is_bounded() -> None:
    points = CountingPoints()
    reach, jobs = LatestPoints(points), [f"job-{number}" for number in range(MAX_CACHED_JOBS + 10)]
    reach.get(jobs)

    reach.get(jobs[-MAX_CACHED_JOBS:])
    reach.get(jobs[:10])

    assert [len(asked) for asked in points.queried] == [MAX_CACHED_JOBS + 10, 0, 10]

"""Curves of what jobs measured as a Python object, beside the jobs in `holdfast.client`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.api.series_schemas import SeriesPage
from holdfast.client import Client


@dataclass(frozen=True, slots=True)
class SeriesClient:
    """The curves of a service's jobs."""

    client: Client

    def series(
        self, job_id: str, names: Sequence[str] = (), *, points: int = 500, x: str = "step"
    ) -> SeriesPage:
        """The curves of a job of these names, in at most so many buckets; of no names, which there are."""
        params = {"name": list(names), "points": points, "x": x}
        return self.client.ask(SeriesPage, "GET", f"/v1/jobs/{job_id}/series", params=params)

"""Client for the diagnostics of a job.

They are its bundle, manifest, hints, comparison, ranks, log search and metrics.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.api.schemas.diagnostics import DiffOut, HintsOut, MatchOut, MatchPage, RankPresenceOut
from holdfast.api.schemas.metrics import SeriesPage
from holdfast.api.schemas.throughput import ThroughputOut
from holdfast.client import Client


@dataclass(frozen=True, slots=True)
class EvidenceClient:
    """Client for the evidence that a job leaves."""

    client: Client

    def bundle(self, job_id: str) -> bytes:
        """Download everything known about a job as a zip file."""
        return self.client.fetch(f"/v1/jobs/{job_id}/bundle")

    def manifest(self, job_id: str, attempt: int | None = None) -> dict[str, Any]:
        """Return the manifest of an attempt; None selects the newest with a manifest."""
        params = {"attempt": attempt} if attempt else {}
        return self.client.get(dict[str, Any], "GET", f"/v1/jobs/{job_id}/manifest", params=params)

    def hints(self, job_id: str, *, with_logs: bool = True) -> HintsOut:
        """Return hints on the problems of a job, based on its logs if `with_logs`."""
        params = {"logs": with_logs}
        return self.client.get(HintsOut, "GET", f"/v1/jobs/{job_id}/hints", params=params)

    def diff(self, job_id: str, other: str) -> DiffOut:
        """Compare a job with another one."""
        return self.client.get(DiffOut, "GET", f"/v1/jobs/{job_id}/diff", params={"other": other})

    def rank_presence(self, job_id: str, attempt: int | None = None) -> RankPresenceOut:
        """Return which ranks have reported in an attempt; None selects the newest."""
        params = {"attempt": attempt} if attempt else {}
        return self.client.get(
            RankPresenceOut, "GET", f"/v1/jobs/{job_id}/logs/ranks", params=params
        )

    def search(
        self,
        job_id: str,
        text: str,
        choice: Mapping[str, int],
        *,
        is_regex: bool = False,
        ignore_case: bool = False,
    ) -> Iterator[MatchOut]:
        """Search the logs of a job and yield matches as they are found.

        `choice`: attempt, node, rank.
        """
        asked: dict[str, str | int | bool] = {"q": text, "limit": 1000, **choice}
        asked |= {"regex": is_regex, "ignore_case": ignore_case}
        cursor: str | None = None
        while True:
            params = {**asked, "cursor": cursor} if cursor else asked
            page = self.client.get(
                MatchPage, "GET", f"/v1/jobs/{job_id}/logs/search", params=params
            )
            yield from page.matches
            cursor = page.next
            if cursor is None:
                return


@dataclass(frozen=True, slots=True)
class SeriesClient:
    """Client for the metric series of jobs."""

    client: Client

    def series(
        self, job_id: str, names: Sequence[str] = (), *, points: int = 500, x: str = "step"
    ) -> SeriesPage:
        """Return the named series of a job in at most `points` buckets each.

        Without names, it lists the series.
        """
        params = {"name": list(names), "points": points, "x": x}
        return self.client.get(SeriesPage, "GET", f"/v1/jobs/{job_id}/series", params=params)

    def throughput(self, job_id: str) -> ThroughputOut:
        """Return how fast a job trains, and when it will end."""
        return self.client.get(ThroughputOut, "GET", f"/v1/jobs/{job_id}/throughput")

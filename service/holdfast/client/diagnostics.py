"""The evidence of a job as a Python object, beside the job itself in `holdfast.client`.

Curves of what jobs measured as a Python object, beside the jobs in `holdfast.client`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.api.schemas.diagnostics import DiffOut, HintsOut, MatchOut, MatchPage, RankPresenceOut
from holdfast.api.schemas.metrics import SeriesPage
from holdfast.client import Client


@dataclass(frozen=True, slots=True)
class EvidenceClient:
    """What a job leaves behind for whoever wants to know."""

    client: Client

    def bundle(self, job_id: str) -> bytes:
        """All that is known of a job, as a zip file."""
        return self.client.fetch(f"/v1/jobs/{job_id}/bundle")

    def manifest(self, job_id: str, attempt: int | None = None) -> dict[str, Any]:
        """What an attempt came from; None: the newest that told."""
        params = {"attempt": attempt} if attempt else {}
        return self.client.get(dict[str, Any], "GET", f"/v1/jobs/{job_id}/manifest", params=params)

    def hints(self, job_id: str, *, with_logs: bool = True) -> HintsOut:
        """What the trouble of a job looks like; its logs are read for it, or not."""
        params = {"logs": with_logs}
        return self.client.get(HintsOut, "GET", f"/v1/jobs/{job_id}/hints", params=params)

    def diff(self, job_id: str, other: str) -> DiffOut:
        """What is other in another job."""
        return self.client.get(DiffOut, "GET", f"/v1/jobs/{job_id}/diff", params={"other": other})

    def roll(self, job_id: str, attempt: int | None = None) -> RankPresenceOut:
        """Which ranks were heard of in an attempt; None: the newest."""
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
        """The lines of its logs that have a text in them, as they are found. `choice`: attempt, node, rank."""
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
    """The curves of a service's jobs."""

    client: Client

    def series(
        self, job_id: str, names: Sequence[str] = (), *, points: int = 500, x: str = "step"
    ) -> SeriesPage:
        """The curves of a job of these names, in at most so many buckets; of no names, which there are."""
        params = {"name": list(names), "points": points, "x": x}
        return self.client.get(SeriesPage, "GET", f"/v1/jobs/{job_id}/series", params=params)

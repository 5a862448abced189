"""Diagnostics of a job: bundle, manifest, hints, comparison, ranks, log search and metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.api.schemas.diagnostics import (
    DiffOut,
    HintsOut,
    MatchOut,
    MatchPage,
    ProofIn,
    ProofOut,
    RankPresenceOut,
)
from holdfast.api.schemas.metrics import GpusOut, SeriesPage
from holdfast.api.schemas.throughput import ThroughputOut
from holdfast.client.calls import (
    AsyncResource,
    Call,
    Many,
    Resource,
    endpoint,
    get,
    json_call,
    paged,
    sequence,
    url_path,
)


class DiagnosticCalls:
    """Calls about the evidence that a job leaves."""

    @endpoint
    def bundle(self, job_id: str) -> Call[bytes]:
        """Download everything known about a job as a zip file."""
        return Call(lambda answer: answer.content, "GET", url_path("jobs", job_id, "bundle"))

    @endpoint
    def manifest(self, job_id: str, attempt: int | None = None) -> Call[dict[str, Any]]:
        """Return the manifest of an attempt; None selects the newest with a manifest."""
        return get(dict[str, Any], url_path("jobs", job_id, "manifest"), {"attempt": attempt})

    @endpoint
    def hints(self, job_id: str, *, with_logs: bool = True) -> Call[HintsOut]:
        """Return hints on the problems of a job, based on its logs if `with_logs`."""
        return get(HintsOut, url_path("jobs", job_id, "hints"), {"logs": with_logs})

    @endpoint
    def diff(self, job_id: str, other: str) -> Call[DiffOut]:
        """Compare a job with another one."""
        return get(DiffOut, url_path("jobs", job_id, "diff"), {"other": other})

    @endpoint
    def rank_presence(self, job_id: str, attempt: int | None = None) -> Call[RankPresenceOut]:
        """Return which ranks have reported in an attempt; None selects the newest."""
        path = url_path("jobs", job_id, "logs", "ranks")
        return get(RankPresenceOut, path, {"attempt": attempt})

    @sequence
    def search(
        self,
        job_id: str,
        text: str,
        choice: Mapping[str, int] | None = None,
        *,
        is_regex: bool = False,
        ignore_case: bool = False,
    ) -> Many[MatchOut]:
        """Search the logs of a job and yield matches as they are found.

        `choice`: attempt, node, rank.
        """
        asked: dict[str, Any] = {"q": text, "limit": 1000, **(choice or {})}
        asked |= {"regex": is_regex, "ignore_case": ignore_case}
        path = url_path("jobs", job_id, "logs", "search")
        return paged(MatchPage, path, asked, lambda page: page.matches)

    @endpoint
    def series(
        self, job_id: str, names: Sequence[str] = (), *, points: int = 500, x: str = "step"
    ) -> Call[SeriesPage]:
        """Return the named series of a job in at most `points` buckets each.

        Without names, it lists the series.
        """
        params = {"name": list(names), "points": points, "x": x}
        return get(SeriesPage, url_path("jobs", job_id, "series"), params)

    @endpoint
    def throughput(self, job_id: str) -> Call[ThroughputOut]:
        """Return how fast a job trains, and when it will end."""
        return get(ThroughputOut, url_path("jobs", job_id, "throughput"))

    @endpoint
    def gpus(self, job_id: str) -> Call[GpusOut]:
        """Return the newest readings of the GPUs of a job."""
        return get(GpusOut, url_path("jobs", job_id, "gpus"))

    @endpoint
    def proofs(self, job_id: str) -> Call[list[ProofOut]]:
        """List the comparisons of a job with uninterrupted copies."""
        return get(list[ProofOut], url_path("jobs", job_id, "proofs"))

    @endpoint
    def record_proof(self, job_id: str, proof: ProofIn) -> Call[ProofOut]:
        """Record a comparison of a job with an uninterrupted copy."""
        path = url_path("jobs", job_id, "proofs")
        return json_call(ProofOut, "POST", path, json=proof.model_dump())


class DiagnosticsClient(DiagnosticCalls, Resource):
    """The evidence that jobs leave."""


class AsyncDiagnosticsClient(DiagnosticCalls, AsyncResource):
    """The evidence that jobs leave, for asynchronous programs."""

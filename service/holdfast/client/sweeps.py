"""Sweeps: submit, list, compare, and change what their jobs share."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from holdfast.api.schemas.sweeps import SweepDetailOut, SweepIn, SweepMetricsOut, SweepOut
from holdfast.client.calls import (
    AsyncResource,
    Call,
    Resource,
    endpoint,
    get,
    json_call,
    url_path,
)


class SweepCalls:
    """Calls about sweeps."""

    @endpoint
    def submit(self, asked: SweepIn, idempotency_key: str | None = None) -> Call[SweepDetailOut]:
        """Submit a sweep. The same key returns the same sweep; None makes a new one."""
        headers = {"Idempotency-Key": idempotency_key or secrets.token_hex(16)}
        body = asked.model_dump(mode="json", exclude_unset=True)
        return json_call(SweepDetailOut, "POST", "/v1/sweeps", json=body, headers=headers)

    @endpoint
    def newest(self, project: str | None = None, limit: int = 50) -> Call[list[SweepOut]]:
        """Return the newest sweeps, of one project or of all of the caller's."""
        return get(list[SweepOut], "/v1/sweeps", {"limit": limit, "project": project})

    @endpoint
    def show(self, sweep_id: str) -> Call[SweepDetailOut]:
        """Return a sweep with its jobs."""
        return get(SweepDetailOut, url_path("sweeps", sweep_id))

    @endpoint
    def metrics(
        self, sweep_id: str, name: str | None = None, points: int = 300
    ) -> Call[SweepMetricsOut]:
        """Return one metric of all jobs on common steps; without a name, the names of metrics."""
        path = url_path("sweeps", sweep_id, "metrics")
        return get(SweepMetricsOut, path, {"name": name, "points": points})

    @endpoint
    def change(self, sweep_id: str, changes: Mapping[str, Any]) -> Call[SweepDetailOut]:
        """Change what the jobs of a sweep share: max_cost_usd, parallel."""
        path = url_path("sweeps", sweep_id)
        return json_call(SweepDetailOut, "PATCH", path, json=dict(changes))


class SweepsClient(SweepCalls, Resource):
    """Sweeps: jobs of one file with several values of its parameters."""


class AsyncSweepsClient(SweepCalls, AsyncResource):
    """Sweeps, for asynchronous programs."""

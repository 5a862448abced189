"""The client of sweeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.api.schemas.sweeps import SweepDetailOut, SweepIn, SweepOut
from holdfast.client import Client


class SweepClient:
    """Sweeps of a service."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit(self, asked: SweepIn, idempotency_key: str) -> SweepDetailOut:
        """Submit a sweep. The same key returns the same sweep."""
        body = asked.model_dump(mode="json", exclude_unset=True)
        return self._client.get(
            SweepDetailOut,
            "POST",
            "/v1/sweeps",
            json=body,
            headers={"Idempotency-Key": idempotency_key},
        )

    def newest(self, project: str | None, limit: int) -> list[SweepOut]:
        """Return the newest sweeps."""
        params: dict[str, Any] = {"limit": limit} | ({"project": project} if project else {})
        return self._client.get(list[SweepOut], "GET", "/v1/sweeps", params=params)

    def show(self, sweep_id: str) -> SweepDetailOut:
        """Return a sweep with its jobs."""
        return self._client.get(SweepDetailOut, "GET", f"/v1/sweeps/{sweep_id}")

    def change(self, sweep_id: str, changes: Mapping[str, Any]) -> SweepDetailOut:
        """Change what the jobs of a sweep share."""
        path = f"/v1/sweeps/{sweep_id}"
        return self._client.get(SweepDetailOut, "PATCH", path, json=dict(changes))

"""Port for durable state of the SkyPilot launcher; implemented by `holdfast.store.launches`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from holdfast.domain.jobs.launch_admission import Admission, EngineEvent


class LaunchStore(Protocol):
    """Durable rows of launches.

    Token changes are compare-and-swap operations; all writes are durable at once.
    """

    def find(self, key: str) -> Admission | None:
        """Return the row of a launch; None if it was neither opened nor cancelled."""
        ...

    def open(self, key: str, job_id: str, now: datetime) -> Admission:
        """Return the launch, creating its first token if it has none."""
        ...

    def tombstone(self, key: str, job_id: str, now: datetime) -> Admission:
        """Cancel a launch: an unused token will never pass."""
        ...

    def revoke(self, key: str, now: datetime) -> Admission:
        """Revoke a launch that can never start, without a cancel: an unused token will never pass."""
        ...

    def token(self, admission: Admission) -> str:
        """Return the token of a launch's current generation."""
        ...

    def assume_admitted(self, key: str, generation: int, now: datetime) -> bool:
        """Mark a token as passed because the job exists; True if no gate had recorded that."""
        ...

    def renew(self, key: str, generation: int, now: datetime) -> bool:
        """Replace a token that was consumed without a job; False if another process was faster."""
        ...

    def mark_posting(self, admission: Admission, now: datetime) -> bool:
        """Record an imminent request; False if the row changed since `admission` was read."""
        ...

    def count_requested(self, since: datetime, *, besides: str) -> int:
        """Count launches requested after `since` that may still become jobs, except one key."""
        ...

    def record_request_id(self, key: str, generation: int, request_id: str) -> None:
        """Record the engine's id of the request."""
        ...

    def record_engine_id(self, key: str, generation: int, engine_id: int) -> None:
        """Record the engine's number of the launch. The first number of a token is kept."""
        ...

    def record_missing(self, key: str, since: datetime | None) -> None:
        """Record since when listings lack a launch; None when it is listed."""
        ...

    def record_lost(self, key: str, what: str | None) -> None:
        """Record what may still run of a launch without a record at the engine; None if nothing can."""
        ...

    def undecided(self) -> Sequence[Admission]:
        """Return launches with such a loss that have not been cancelled since, oldest first."""
        ...

    def events(self, key: str) -> tuple[EngineEvent, ...]:
        """Return the stored events of a launch, oldest first."""
        ...

    def append_events(self, key: str, events: Sequence[EngineEvent]) -> tuple[EngineEvent, ...]:
        """Append new events of a launch, given its newest events oldest first; return the history."""
        ...

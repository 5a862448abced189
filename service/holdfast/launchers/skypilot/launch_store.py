"""What the launcher has to remember over its own death: a port, kept by `holdfast.store.launches`."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from holdfast.domain.jobs.launch_admission import Admission, EngineEvent


class LaunchStore(Protocol):
    """The rows of launches. What moves a token is a compare-and-swap; the rest is noted beside it. Both are durable at once."""

    def find(self, key: str) -> Admission | None:
        """What is known of a launch; None for one that nobody began or cancelled."""
        ...

    def open(self, key: str, job_id: str, now: datetime) -> Admission:
        """The launch, with a first token if it has none yet."""
        ...

    def tombstone(self, key: str, job_id: str, now: datetime) -> Admission:
        """Cancel a launch: a token that nobody has used will never pass."""
        ...

    def revoke(self, key: str, now: datetime) -> Admission:
        """A launch that was opened and can never begin, cancelled by nobody: a token that nobody has used will never pass."""
        ...

    def token(self, admission: Admission) -> str:
        """The token of a launch's present generation."""
        ...

    def assume_admitted(self, key: str, generation: int, now: datetime) -> bool:
        """Say that a token has passed, as its launch was seen at the engine; True where no gate had said so."""
        ...

    def renew(self, key: str, generation: int, now: datetime) -> bool:
        """A new token instead of one that was consumed in vain; False if somebody was quicker."""
        ...

    def posting(self, admission: Admission, now: datetime) -> bool:
        """Say that the engine is about to be asked; False if somebody asked or cancelled since `admission` was read."""
        ...

    def posted(self, key: str, generation: int, request_id: str) -> None:
        """Say what the engine called the request."""
        ...

    def found(self, key: str, generation: int, engine_id: int) -> None:
        """Say under which number the engine knows the launch. The first number of a token stays."""
        ...

    def missing(self, key: str, since: datetime | None) -> None:
        """Say since when the engine's listings lack a launch; None when it is listed."""
        ...

    def lose(self, key: str, what: str | None) -> None:
        """Record what may still run of a launch without a record at the engine; None where nothing may."""
        ...

    def undecided(self) -> Sequence[Admission]:
        """Launches with such a loss that were not cancelled since, oldest first."""
        ...

    def told(self, key: str) -> tuple[EngineEvent, ...]:
        """The copied history of a launch, oldest first."""
        ...

    def copy(self, key: str, events: Sequence[EngineEvent]) -> tuple[EngineEvent, ...]:
        """The history of a launch with what is new in `events`, which are the newest of it, oldest first."""
        ...

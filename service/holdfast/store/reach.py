"""How far attempts have come, kept in mind: points are read where reports were taken since."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from threading import Lock
from typing import Final, Protocol

from holdfast.domain.ledger import Reached

MOST: Final = 2000
"""Jobs in mind. Fewer: those beyond are looked up each time; more: memory, some kB for each."""


class Told(Protocol):
    """What is known of reports: `Reading`."""

    def marks(self, job_ids: Collection[str]) -> dict[str, dict[int, int]]:
        """See `Reading.marks`."""
        ...

    def reached(self, job_ids: Iterable[str]) -> dict[str, dict[int, Reached]]:
        """See `Reading.reached`."""
        ...


class Reach:
    """The newest points of jobs, those that were asked for last."""

    def __init__(self, reading: Told) -> None:
        self._reading = reading
        self._known: dict[str, tuple[Mapping[int, int], Mapping[int, Reached]]] = {}
        self._alone = Lock()

    def of(self, job_ids: Iterable[str]) -> dict[str, Mapping[int, Reached]]:
        """The newest point of every attempt, by job and attempt; the same object as before where nothing has come."""
        # First: a report that comes meanwhile is found the next time.
        marks = self._reading.marks(ids := list(job_ids))
        with self._alone:
            known = {job_id: self._known[job_id] for job_id in ids if job_id in self._known}
        same = {
            job_id: points
            for job_id, (mark, points) in known.items()
            if mark == marks.get(job_id, {})
        }
        fresh = self._reading.reached(job_id for job_id in ids if job_id not in same)
        found = {job_id: same.get(job_id) or fresh.get(job_id, {}) for job_id in ids}
        with self._alone:
            for job_id, points in found.items():
                self._known.pop(job_id, None)
                self._known[job_id] = marks.get(job_id, {}), points
            for job_id in list(self._known)[: max(0, len(self._known) - MOST)]:
                del self._known[job_id]
        return found

"""Admission of queued jobs: the queue, evaluated at most once a second.

Without quotas, a job needs no admission. The journal checks the quotas again when it records one.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Final

from holdfast.domain.jobs.job import Job, State
from holdfast.domain.queue.admission import QueueAdmission, QueuePosition, evaluate
from holdfast.domain.queue.priority_pauses import PriorityPause, may_pause
from holdfast.ports import Clock
from holdfast.store.job_queue import JobQueue
from holdfast.store.leases import LeaseTable

EVALUATION_TTL_S: Final = 1.0
"""Seconds for which an evaluation of the queue is used. A lower value sorts the queue for each waiting job; a higher value
admits jobs later."""
PAUSES_TTL_S: Final = 10.0
"""Seconds for which pauses of running jobs are used. A lower value evaluates the queue for each running job; a higher value
delays pauses of jobs that another service polls."""
POLL_WAITING_EVERY_S: Final = 60.0
"""Seconds between two polls of a job that waits in the queue. A lower value reads a long queue more often; a higher value delays
admissions that nothing announces, such as those of jobs that have become urgent."""


class AdmissionQueue:
    """The admissions of waiting jobs."""

    def __init__(self, queue: JobQueue, leases: LeaseTable, clock: Clock) -> None:
        self._queue = queue
        self._leases = leases
        self._clock = clock
        self._evaluated_at: datetime | None = None
        self._has_quotas = False
        self._waiting: Mapping[str, QueuePosition] = {}
        self._holding: frozenset[str] = frozenset()
        self._pauses: Mapping[str, PriorityPause] = {}

    def admission(self, job: Job) -> QueueAdmission | None:
        """Whether a queued job may be launched; None if it needs no admission.

        A job of a sweep is not in the queue while it waits for its turn.
        """
        if job.state is not State.QUEUED:
            return None
        self._evaluate()
        if not self._has_quotas or job.id in self._holding:
            return None
        if job.id not in self._waiting and not job.sweep:
            self._queue.enroll()
            self.clear()
            self._evaluate()
        if job.id in self._holding:
            return None
        place = self._waiting.get(job.id)
        if place is None:  # It has changed since it was read.
            return QueueAdmission(is_admitted=False, demand=None)
        return QueueAdmission(is_admitted=place.is_admitted, demand=place.entry.demand)

    def priority_pause(self, job: Job) -> PriorityPause | None:
        """The pause that is chosen for a running job; None without one.

        Polls of waiting jobs evaluate the queue, and make the chosen jobs due. Another service may poll those.
        """
        if job.state is State.QUEUED:
            return None
        self._evaluate(PAUSES_TTL_S)
        return self._pauses.get(job.id)

    def waits(self, job: Job) -> bool:
        """Whether a queued job waits for room, according to the last evaluation."""
        place = self._waiting.get(job.id)
        return place is not None and not place.is_admitted

    def clear(self) -> None:
        """Forget the last evaluation: the queue or the quotas have changed."""
        self._evaluated_at = None

    def wake(self) -> None:
        """Make all jobs due for which there is room now, after a job has released its share."""
        self.clear()
        self._evaluate()
        for place in self._waiting.values():
            if place.is_admitted:
                self._leases.make_due(place.entry.job_id, self._clock.now())

    def _evaluate(self, ttl_s: float = EVALUATION_TTL_S) -> None:
        now = self._clock.now()
        known = self._evaluated_at
        if known is not None and now - known < timedelta(seconds=ttl_s):
            return
        state = self._queue.state()
        self._evaluated_at = now
        self._has_quotas = bool(state.quotas)
        self._waiting = {place.entry.job_id: place for place in evaluate(state)}
        self._holding = frozenset(entry.job_id for entry in state.holding)
        pauses = self._queue.pauses() if may_pause(state) and self._waiting else ()
        self._pauses = {pause.job_id: pause for pause in pauses}
        self._leases.make_all_due(list(self._pauses), now)

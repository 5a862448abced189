"""Caches of what lists display of jobs in addition to their folds.

A job file is parsed once. Log and points are read again when there are new events or reports.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import Final, Protocol

from holdfast.domain.billing.bill import Bill, LatestPoint, compute_bill
from holdfast.domain.checkpoints.history import CheckpointAttempt, CheckpointHistory
from holdfast.domain.events import Finished, RunsCompared, Submitted, current_submission
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs.job import Job
from holdfast.domain.preemptions.termination_notice import Notice, notice_of
from holdfast.domain.throughput.run_history import RunHistory, newest_spot_place, run_history
from holdfast.store.billing.live_bills import LiveBill
from holdfast.store.journal import RecordedEvent
from holdfast.store.queries import Queries

MAX_CACHED_JOBS: Final = 2000
"""Cached jobs. A lower value reads further jobs each time; a higher value uses more memory, some kB
for each."""


class PointSource(Protocol):
    """A source of points and report numbers: `Queries`."""

    def marks(self, job_ids: Collection[str]) -> dict[str, dict[int, int]]:
        """As `Queries.marks`."""
        ...

    def latest_points(self, job_ids: Iterable[str]) -> dict[str, dict[int, LatestPoint]]:
        """As `Queries.latest_points`."""
        ...


class LatestPoints:
    """A cache of the newest points of recently requested jobs."""

    def __init__(self, reading: PointSource) -> None:
        self._source = reading
        self._cache: dict[str, tuple[Mapping[int, int], Mapping[int, LatestPoint]]] = {}
        self._lock = Lock()

    def get(self, job_ids: Iterable[str]) -> dict[str, Mapping[int, LatestPoint]]:
        """The newest point of every attempt, by job and attempt.

        Without new reports it is the same object as before.
        """
        # Read first: a report that arrives in the meantime is found by the next call.
        marks = self._source.marks(ids := list(job_ids))
        with self._lock:
            known = {job_id: self._cache[job_id] for job_id in ids if job_id in self._cache}
        same = {
            job_id: points
            for job_id, (mark, points) in known.items()
            if mark == marks.get(job_id, {})
        }
        fresh = self._source.latest_points(job_id for job_id in ids if job_id not in same)
        found = {job_id: same.get(job_id) or fresh.get(job_id, {}) for job_id in ids}
        with self._lock:
            for job_id, points in found.items():
                self._cache.pop(job_id, None)
                self._cache[job_id] = marks.get(job_id, {}), points
            for job_id in list(self._cache)[: max(0, len(self._cache) - MAX_CACHED_JOBS)]:
                del self._cache[job_id]
        return found


MAX_CACHED_SUMMARIES: Final = 1000
"""Cached jobs. A lower value reads jobs again when a user pages through lists; a higher value uses
more memory, some 20 kB for each."""


@dataclass(frozen=True, slots=True)
class JobSummary:
    """Values derived from the events of a job."""

    seq: int
    """Number of its newest event."""
    submitted: Submitted
    """With the resources of its newest resize."""
    spec: JobSpec
    newest_checkpoint: CheckpointAttempt | None
    """The checkpoint from which it would resume; None: it would start from the beginning."""
    proof: RunsCompared | None
    """Its newest comparison with an uninterrupted job; None without one."""
    notice: Notice | None
    """The current termination notice; None without one."""
    ended_at: datetime | None
    """When it ended; None before that."""
    live_bill: LiveBill
    """The bill as last computed."""
    history: RunHistory
    spot_place: tuple[str, str] | None
    """Place and hardware of its newest spot nodes; None if it never had some."""

    @classmethod
    def from_events(
        cls, facts: Sequence[RecordedEvent], account: Bill, reached: Mapping[int, LatestPoint]
    ) -> JobSummary:
        """Create the summary of a job from all its events and their bill."""
        submitted = current_submission(fact.event for fact in facts)
        saves, proof, ended_at = CheckpointHistory(), None, None
        for fact in facts:
            saves.apply(fact.seq, fact.event)
            if isinstance(fact.event, RunsCompared):
                proof = fact.event
            elif isinstance(fact.event, Finished):
                ended_at = ended_at or fact.event.at
        spec = JobSpec.from_stored(submitted.spec)
        live_bill = LiveBill.from_events(account, (fact.event for fact in facts), reached)
        notice = notice_of(
            (fact.event for fact in facts), saves=spec.holdfast.checkpoint is not None
        )
        events = [fact.event for fact in facts]
        return cls(
            seq=facts[-1].seq,
            submitted=submitted,
            spec=spec,
            newest_checkpoint=saves.newest(),
            proof=proof,
            notice=notice,
            ended_at=ended_at,
            live_bill=live_bill,
            history=run_history(events, reached),
            spot_place=newest_spot_place(_first_spec(facts), events),
        )


def _first_spec(facts: Sequence[RecordedEvent]) -> JobSpec:
    """The job file as submitted."""
    return JobSpec.from_stored(current_submission([facts[0].event]).spec)


class JobSummaries:
    """A cache of the summaries of recently requested jobs."""

    def __init__(
        self, reading: Queries, *, with_rules: bool, most: int = MAX_CACHED_SUMMARIES
    ) -> None:
        self._queries = reading
        self._latest_points = LatestPoints(reading)
        self._max_cached = most
        self._with_rules = with_rules
        self._cache: OrderedDict[str, JobSummary] = OrderedDict()
        self._lock = Lock()

    def newest_points(self, jobs: Iterable[Job]) -> dict[str, LatestPoint]:
        """The newest point of the newest attempt of each job by its id; jobs without are omitted."""
        attempts = {job.id: job.attempt for job in jobs}
        reached = self._latest_points.get(attempts)
        return {
            job_id: reached[job_id][attempt]
            for job_id, attempt in attempts.items()
            if attempt in reached[job_id]
        }

    def get(self, jobs: Iterable[Job], now: datetime) -> dict[str, tuple[JobSummary, Bill]]:
        """The summary of each job by its id, with its bill until now."""
        seqs = {job.id: job.seq for job in jobs}
        reached = self._latest_points.get(seqs)
        with self._lock:
            known = {job_id: self._cache[job_id] for job_id in seqs if job_id in self._cache}
        found: dict[str, tuple[JobSummary, Bill]] = {}
        for job_id, digest in known.items():
            account = digest.live_bill.bill_at(now, reached[job_id])
            if digest.seq == seqs[job_id] and account is not None:
                found[job_id] = digest, account
        unknown = [job_id for job_id in seqs if job_id not in found]
        for job_id, facts in self._queries.events(unknown).items():
            points = reached[job_id]
            events = (fact.event for fact in facts)
            account = compute_bill(events, points, now, with_rules=self._with_rules)
            found[job_id] = JobSummary.from_events(facts, account, points), account
        self._store(found)
        return found

    def without_bills(self, jobs: Iterable[Job], now: datetime) -> dict[str, JobSummary]:
        """The summary of each job by its id, whose bill may end before now: it is not extended."""
        by_id = {job.id: job for job in jobs}
        reached = self._latest_points.get(by_id)
        with self._lock:
            known = {job_id: self._cache[job_id] for job_id in by_id if job_id in self._cache}
        found = {
            job_id: digest
            for job_id, digest in known.items()
            if digest.seq == by_id[job_id].seq
            and digest.live_bill.has_bill_at(now, reached[job_id])
        }
        others = self.get((job for job in by_id.values() if job.id not in found), now)
        return found | {job_id: digest for job_id, (digest, _) in others.items()}

    def _store(self, found: Mapping[str, tuple[JobSummary, Bill]]) -> None:
        with self._lock:
            for job_id, (digest, _) in found.items():
                self._cache[job_id] = digest
                self._cache.move_to_end(job_id)
            while len(self._cache) > self._max_cached:
                self._cache.popitem(last=False)

"""How far attempts have come, kept in mind: points are read where reports were taken since.

What lists show of jobs beside their folds, kept in mind: a job file is parsed once, and a log read when there is more of it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import Final, Protocol

from holdfast.domain.billing.ledger import Bill, LatestPoint, compute_bill
from holdfast.domain.checkpoints.history import CheckpointAttempt, CheckpointHistory
from holdfast.domain.events import Finished, RunsCompared, Submitted
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs.job import Job
from holdfast.domain.preemptions.termination_notice import Notice, notice_of
from holdfast.store.billing.live_bills import LiveBill
from holdfast.store.journal import Recorded
from holdfast.store.queries import Queries

MOST_JOBS: Final = 2000
"""Jobs in mind. Fewer: those beyond are looked up each time; more: memory, some kB for each."""


class PointRow(Protocol):
    """What is known of reports: `Reading`."""

    def marks(self, job_ids: Collection[str]) -> dict[str, dict[int, int]]:
        """See `Reading.marks`."""
        ...

    def reached(self, job_ids: Iterable[str]) -> dict[str, dict[int, LatestPoint]]:
        """See `Reading.reached`."""
        ...


class LatestPoints:
    """The newest points of jobs, those that were asked for last."""

    def __init__(self, reading: PointRow) -> None:
        self._reading = reading
        self._known: dict[str, tuple[Mapping[int, int], Mapping[int, LatestPoint]]] = {}
        self._alone = Lock()

    def of(self, job_ids: Iterable[str]) -> dict[str, Mapping[int, LatestPoint]]:
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
            for job_id in list(self._known)[: max(0, len(self._known) - MOST_JOBS)]:
                del self._known[job_id]
        return found


MOST: Final = 1000
"""Jobs in mind. Fewer: whoever leafs through lists has them read again; more: memory, some 20 kB for each."""


@dataclass(frozen=True, slots=True)
class JobSummary:
    """What follows from the facts of a job."""

    seq: int
    """Number of the last of them."""
    submitted: Submitted
    spec: JobSpec
    newest: CheckpointAttempt | None
    """What a resume would go on from; None: it would begin at the beginning."""
    proof: RunsCompared | None
    """Its newest comparison with a job that was left alone; None while there is none."""
    notice: Notice | None
    """The termination notice under which it is now; None without one."""
    ended_at: datetime | None
    """When it ended; None before that."""
    living: LiveBill
    """Its bill as it was reckoned last."""

    @classmethod
    def of(
        cls, facts: Sequence[Recorded], account: Bill, reached: Mapping[int, LatestPoint]
    ) -> JobSummary:
        """The digest of all facts of a job, of which this is the bill."""
        submitted = facts[0].event
        assert isinstance(submitted, Submitted)
        saves, proof, ended_at = CheckpointHistory(), None, None
        for fact in facts:
            saves.tell(fact.seq, fact.event)
            if isinstance(fact.event, RunsCompared):
                proof = fact.event
            elif isinstance(fact.event, Finished):
                ended_at = ended_at or fact.event.at
        spec = JobSpec.stored(submitted.spec)
        living = LiveBill.of(account, (fact.event for fact in facts), reached)
        notice = notice_of(
            (fact.event for fact in facts), saves=spec.holdfast.checkpoint is not None
        )
        return cls(facts[-1].seq, submitted, spec, saves.newest(), proof, notice, ended_at, living)


class Digests:
    """The digests of jobs, those that were asked for last."""

    def __init__(self, reading: Queries, *, with_rules: bool, most: int = MOST) -> None:
        self._reading = reading
        self._reach = LatestPoints(reading)
        self._most = most
        self._with_rules = with_rules
        self._known: OrderedDict[str, JobSummary] = OrderedDict()
        self._alone = Lock()

    def of(self, jobs: Iterable[Job], now: datetime) -> dict[str, tuple[JobSummary, Bill]]:
        """Each of these jobs by its id, with its bill until now."""
        seqs = {job.id: job.seq for job in jobs}
        reached = self._reach.of(seqs)
        with self._alone:
            known = {job_id: self._known[job_id] for job_id in seqs if job_id in self._known}
        found: dict[str, tuple[JobSummary, Bill]] = {}
        for job_id, digest in known.items():
            account = digest.living.at(now, reached[job_id])
            if digest.seq == seqs[job_id] and account is not None:
                found[job_id] = digest, account
        unknown = [job_id for job_id in seqs if job_id not in found]
        for job_id, facts in self._reading.events(unknown).items():
            points = reached[job_id]
            events = (fact.event for fact in facts)
            account = compute_bill(events, points, now, with_rules=self._with_rules)
            found[job_id] = JobSummary.of(facts, account, points), account
        self._remember(found)
        return found

    def _remember(self, found: Mapping[str, tuple[JobSummary, Bill]]) -> None:
        with self._alone:
            for job_id, (digest, _) in found.items():
                self._known[job_id] = digest
                self._known.move_to_end(job_id)
            while len(self._known) > self._most:
                self._known.popitem(last=False)

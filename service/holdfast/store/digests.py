"""What lists show of jobs beside their folds, kept in mind: a job file is parsed once, and a log read when there is more of it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from threading import Lock
from typing import Final

from holdfast.domain.events import Finished, RunsCompared, Submitted
from holdfast.domain.job import Job
from holdfast.domain.ledger import Bill, Reached, bill
from holdfast.domain.notices import Notice, notice_of
from holdfast.domain.saves import Save, Saves
from holdfast.domain.spec import JobSpec
from holdfast.store.journal import Recorded
from holdfast.store.living import Living
from holdfast.store.reach import Reach
from holdfast.store.reading import Reading

MOST: Final = 1000
"""Jobs in mind. Fewer: whoever leafs through lists has them read again; more: memory, some 20 kB for each."""


@dataclass(frozen=True, slots=True)
class Digest:
    """What follows from the facts of a job."""

    seq: int
    """Number of the last of them."""
    submitted: Submitted
    spec: JobSpec
    newest: Save | None
    """What a resume would go on from; None: it would begin at the beginning."""
    proof: RunsCompared | None
    """Its newest comparison with a job that was left alone; None while there is none."""
    notice: Notice | None
    """The termination notice under which it is now; None without one."""
    ended_at: datetime | None
    """When it ended; None before that."""
    living: Living
    """Its bill as it was reckoned last."""

    @classmethod
    def of(cls, facts: Sequence[Recorded], account: Bill, reached: Mapping[int, Reached]) -> Digest:
        """The digest of all facts of a job, of which this is the bill."""
        submitted = facts[0].event
        assert isinstance(submitted, Submitted)
        saves, proof, ended_at = Saves(), None, None
        for fact in facts:
            saves.tell(fact.seq, fact.event)
            if isinstance(fact.event, RunsCompared):
                proof = fact.event
            elif isinstance(fact.event, Finished):
                ended_at = ended_at or fact.event.at
        spec = JobSpec.stored(submitted.spec)
        living = Living.of(account, (fact.event for fact in facts), reached)
        notice = notice_of(
            (fact.event for fact in facts), saves=spec.holdfast.checkpoint is not None
        )
        return cls(facts[-1].seq, submitted, spec, saves.newest(), proof, notice, ended_at, living)


class Digests:
    """The digests of jobs, those that were asked for last."""

    def __init__(self, reading: Reading, *, with_rules: bool, most: int = MOST) -> None:
        self._reading = reading
        self._reach = Reach(reading)
        self._most = most
        self._with_rules = with_rules
        self._known: OrderedDict[str, Digest] = OrderedDict()
        self._alone = Lock()

    def of(self, jobs: Iterable[Job], now: datetime) -> dict[str, tuple[Digest, Bill]]:
        """Each of these jobs by its id, with its bill until now."""
        seqs = {job.id: job.seq for job in jobs}
        reached = self._reach.of(seqs)
        with self._alone:
            known = {job_id: self._known[job_id] for job_id in seqs if job_id in self._known}
        found: dict[str, tuple[Digest, Bill]] = {}
        for job_id, digest in known.items():
            account = digest.living.at(now, reached[job_id])
            if digest.seq == seqs[job_id] and account is not None:
                found[job_id] = digest, account
        unknown = [job_id for job_id in seqs if job_id not in found]
        for job_id, facts in self._reading.facts(unknown).items():
            points = reached[job_id]
            events = (fact.event for fact in facts)
            account = bill(events, points, now, with_rules=self._with_rules)
            found[job_id] = Digest.of(facts, account, points), account
        self._remember(found)
        return found

    def _remember(self, found: Mapping[str, tuple[Digest, Bill]]) -> None:
        with self._alone:
            for job_id, (digest, _) in found.items():
                self._known[job_id] = digest
                self._known.move_to_end(job_id)
            while len(self._known) > self._most:
                self._known.popitem(last=False)

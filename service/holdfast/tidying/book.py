"""What the janitor remembers of a job between two visits: what was asked for, and what its facts tell of its saves."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

from holdfast.domain.keep import Keep
from holdfast.domain.saves import Saves
from holdfast.domain.spec import JobSpec
from holdfast.store.journal import Journal
from holdfast.tidying.stock import Known


@dataclass(frozen=True, slots=True)
class Looked:
    """A look at a store."""

    at: datetime
    seq: int
    """Number of the last fact that was known then."""
    again_at: datetime | None
    """When more may be removed, if nothing is written until then; None: never."""


@dataclass(slots=True)
class Book:
    """One job. All of it can be read again from the journal and from the store."""

    job_id: str
    store: str
    keep: Keep
    envs: Mapping[str, str]
    saves: Saves = field(default_factory=Saves)
    known: Known = field(default_factory=Known)
    looked: Looked | None = None
    """When its store was looked at last; None before the first time."""

    @classmethod
    def open(cls, job_id: str, journal: Journal) -> Book:
        """The book of a job that makes checkpoints."""
        spec = JobSpec.stored(journal.submission(job_id).spec)
        checkpoint = spec.holdfast.checkpoint
        assert checkpoint, "a job without a store has none to be tidied"
        return cls(job_id, checkpoint.store, checkpoint.keep, spec.envs)

    def catch_up(self, journal: Journal) -> None:
        """Read the facts that came since."""
        for fact in journal.events(self.job_id, after_seq=self.saves.seq):
            self.saves.tell(fact.seq, fact.event)
        self.saves.forget_the_rest()

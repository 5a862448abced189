"""What a checkpoint store holds of one job: looked through, and put beside what its workers told.

What the janitor remembers of a job between two visits: what was asked for, and what its facts tell of its saves.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from holdfast_worker.protocol.checkpoint_keys import (
    CLAIMS,
    COMMITS,
    DATA,
    DRAFT,
    FLAWED,
    PROBES,
    CheckpointName,
    claimed_by,
    flawed_by,
)
from holdfast_worker.protocol.commit_summary import CommitSummary
from holdfast_worker.protocol.lineage import STARTS, EpochStart, Lineage

from holdfast.domain.checkpoints.history import CheckpointAttempt, CheckpointHistory
from holdfast.domain.checkpoints.retention import NEVER, Commit, Inventory, Score, Upload
from holdfast.domain.jobfile.retention_policy import FEWEST, RetentionPolicy
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.ports import CheckpointBucket, Stored
from holdfast.store.journal import Journal

MOST_COUNTED: Final = 32
"""Checkpoints of a job whose bytes are counted before they are taken for whole. Fewer: of many that lack some, the sound
ones before them count for less. More: a store of thousands is listed from end to end."""


@dataclass(slots=True)
class InventoryCache:
    """What was found out about checkpoints and cannot change; it saves asking again."""

    summaries: dict[CheckpointName, CommitSummary | None] = field(default_factory=dict)
    """Of commits that nobody told of; None for one that cannot be read."""
    readable: set[CheckpointName] = field(default_factory=set)
    """Those of a format that this version reads, as far as it was looked at."""
    whole: set[CheckpointName] = field(default_factory=set)
    damaged: set[CheckpointName] = field(default_factory=set)
    """By the marks of workers; one that was mended loses its mark."""

    def forget_all_but(self, names: Collection[CheckpointName]) -> None:
        """Remember nothing of what is gone."""
        self.summaries = {name: said for name, said in self.summaries.items() if name in names}
        self.readable.intersection_update(names)
        self.whole.intersection_update(names)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreInventory:
    """What was found."""

    inventory: Inventory
    sizes: Mapping[CheckpointName, int]
    """Bytes of each checkpoint that was committed; 0 where nobody knows."""
    data: Mapping[CheckpointName, Sequence[Stored]]
    """The objects of each upload."""
    strays: Sequence[Stored]
    """Probes, drafts that never became an object, and marks of damaged checkpoints that are gone."""


@dataclass(frozen=True, slots=True)
class _Told:
    """What is known of a checkpoint besides that it was committed."""

    size_bytes: int | None
    """None: nobody knows."""
    score: Score | None


def scan_store(
    depot: CheckpointBucket, saves: CheckpointHistory, keep: RetentionPolicy, known: InventoryCache
) -> StoreInventory:
    """What a store holds of a job.

    Raises:
        DepotUnreachable: it could not be found out.
        DepotRefused: the same, and it would be so again.
    """
    # Data before commits: of the data that is seen, every commit is seen that was made before. Commits before starts
    # for the same reason. Claims last: a placement that comes meanwhile is seen, and holds all up.
    directories = depot.directories(DATA)
    commits = depot.look(COMMITS)
    starts = depot.look(STARTS)
    claims = depot.look(CLAIMS)
    begun = {start: o.at for o in starts.objects if (start := EpochStart.of_key(o.key))}
    written = {name: o.at for o in commits.objects if (name := CheckpointName.of_key(o.key))}
    known.forget_all_but(written)
    told = {name: _told(depot, name, saves, keep, known) for name in written}
    marks = {name: o for o in depot.look(FLAWED).objects if (name := flawed_by(o.key))}
    known.damaged = set(marks)
    lacking = _lacking(depot, told, Lineage(frozenset(begun)), keep, known)
    newest = max((start.epoch for start in begun), default=NEVER)
    data = dict(_uploads(depot, directories, written, newest))
    epochs = (claimed_by(o.key) or NEVER for o in claims.objects)
    inventory = Inventory(
        at=commits.at,
        commits=tuple(
            Commit(name=name, at=at, is_whole=name not in lacking, score=told[name].score)
            for name, at in written.items()
        ),
        uploads=tuple(Upload(name, max(o.at for o in parts)) for name, parts in data.items()),
        starts=begun,
        claimed=max(epochs, default=NEVER),
    )
    seen = (*commits.objects, *starts.objects, *claims.objects, *depot.look(PROBES).objects)
    # Where nothing was committed yet, a mark may be of a checkpoint of the job from which this one goes on.
    pointless = [mark for name, mark in marks.items() if written and name not in written]
    return StoreInventory(
        inventory=inventory,
        sizes={name: found.size_bytes or 0 for name, found in told.items()},
        data=data,
        strays=(*filter(_is_stray, seen), *pointless),
    )


def _told(
    depot: CheckpointBucket,
    name: CheckpointName,
    saves: CheckpointHistory,
    keep: RetentionPolicy,
    known: InventoryCache,
) -> _Told:
    """By what its worker reported; or by the commit itself, where the worker fell before it could."""
    said: CheckpointAttempt | CommitSummary | None = saves.find(str(name))
    if said is None:
        if name not in known.summaries:
            known.summaries[name] = _summary(depot, name)
        said = known.summaries[name]
    if said is None:
        return _Told(None, None)
    logged = said.metrics.get(keep.best.metric) if keep.best else None
    score = Score(logged.value, logged.step) if logged and logged.value is not None else None
    return _Told(said.size_bytes, score)


def _summary(depot: CheckpointBucket, name: CheckpointName) -> CommitSummary | None:
    try:
        return CommitSummary.of_commit(depot.read(name.commit_key) or b"")
    except ValueError:
        return None


def _lacking(
    depot: CheckpointBucket,
    told: Mapping[CheckpointName, _Told],
    lineage: Lineage,
    keep: RetentionPolicy,
    known: InventoryCache,
) -> set[CheckpointName]:
    """The newest checkpoints some of whose bytes are not there, as far as counting them tells; and those of the newest that
    a worker has found damaged."""
    lacking: set[CheckpointName] = set()
    wanted = max(keep.last, FEWEST)
    newest_first = sorted((name for name in told if not lineage.cut(name)), reverse=True)
    for name in newest_first[:MOST_COUNTED]:
        if not wanted:
            break
        is_sound = name not in known.damaged and (
            name in known.whole or _is_whole(depot, name, told[name].size_bytes)
        )
        if is_sound:
            known.whole.add(name)
            wanted -= 1
        else:
            lacking.add(name)
    return lacking


def _is_whole(depot: CheckpointBucket, name: CheckpointName, size_bytes: int | None) -> bool:
    if size_bytes is None:
        return False  # Its commit cannot be read.
    return sum(o.size_bytes for o in depot.look(name.data_prefix).objects) == size_bytes


def _uploads(
    depot: CheckpointBucket,
    directories: Sequence[str],
    written: Mapping[CheckpointName, datetime],
    newest: int,
) -> Iterator[tuple[CheckpointName, Sequence[Stored]]]:
    """Data without a commit, of epochs that have begun."""
    for directory in directories:
        name = CheckpointName.of_key(directory)
        if name and name not in written and name.epoch <= newest:
            parts = depot.look(directory).objects
            if parts:  # Somebody else may have removed it by now.
                yield name, parts


def _is_stray(stored: Stored) -> bool:
    is_draft = stored.key.rpartition("/")[2].startswith(DRAFT)
    return is_draft or (stored.key.startswith(PROBES) and stored.key != PROBES)


@dataclass(frozen=True, slots=True)
class StoreScan:
    """A look at a store."""

    at: datetime
    seq: int
    """Number of the last fact that was known then."""
    again_at: datetime | None
    """When more may be removed, if nothing is written until then; None: never."""


@dataclass(slots=True)
class JobRetentionState:
    """One job. All of it can be read again from the journal and from the store."""

    job_id: str
    store: str
    keep: RetentionPolicy
    envs: Mapping[str, str]
    saves: CheckpointHistory = field(default_factory=CheckpointHistory)
    known: InventoryCache = field(default_factory=InventoryCache)
    looked: StoreScan | None = None
    """When its store was looked at last; None before the first time."""

    @classmethod
    def open(cls, job_id: str, journal: Journal) -> JobRetentionState:
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

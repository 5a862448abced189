"""The contents of a job's checkpoint store, compared with the reports of its workers.

Also the state of a job between two retention runs: its settings and the checkpoint history from its events.
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
    parse_epoch_key,
    parse_quarantine_key,
)
from holdfast_worker.protocol.commit_summary import CommitSummary
from holdfast_worker.protocol.lineage import STARTS, EpochStart, Lineage

from holdfast.domain.checkpoints.history import CheckpointAttempt, CheckpointHistory
from holdfast.domain.checkpoints.retention import NO_EPOCH, Commit, Inventory, Score, Upload
from holdfast.domain.jobfile.retention_policy import MIN_KEPT, RetentionPolicy
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.ports import CheckpointBucket, StoredObject
from holdfast.store.journal import Journal

MAX_VERIFIED: Final = 32
"""Checkpoints of a job whose bytes are counted. With a lower value, intact checkpoints
behind damaged ones do not count; with a higher value, a store of thousands is listed
completely."""


@dataclass(slots=True)
class InventoryCache:
    """Immutable facts about checkpoints, cached to save requests."""

    summaries: dict[CheckpointName, CommitSummary | None] = field(default_factory=dict)
    """Summaries of commits without a report; None for an unreadable one."""
    readable: set[CheckpointName] = field(default_factory=set)
    """Checkpoints checked to have a format that this version reads."""
    whole: set[CheckpointName] = field(default_factory=set)
    damaged: set[CheckpointName] = field(default_factory=set)
    """Checkpoints that workers marked as damaged; a repaired one loses its mark."""

    def retain(self, names: Collection[CheckpointName]) -> None:
        """Drop everything except these checkpoints."""
        self.summaries = {
            name: summary for name, summary in self.summaries.items() if name in names
        }
        self.readable.intersection_update(names)
        self.whole.intersection_update(names)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreInventory:
    """The result of a scan."""

    inventory: Inventory
    sizes: Mapping[CheckpointName, int]
    """Bytes of each committed checkpoint; 0 if uncache."""
    data: Mapping[CheckpointName, Sequence[StoredObject]]
    """The objects of each upload."""
    leftovers: Sequence[StoredObject]
    """Probes, drafts that never became an object, and marks of deleted checkpoints."""


@dataclass(frozen=True, slots=True)
class _CheckpointInfo:
    """Size and score of a committed checkpoint."""

    size_bytes: int | None
    """None: uncache."""
    score: Score | None


def scan_store(
    bucket: CheckpointBucket, saves: CheckpointHistory, keep: RetentionPolicy, cache: InventoryCache
) -> StoreInventory:
    """Scan the objects that a store holds of a job.

    Raises:
        CheckpointStoreUnreachable: the store did not respond.
        CheckpointStoreRefused: the store rejected the request, and a retry would fail.
    """
    # Data before commits, so that every commit made before the seen data is seen, too. Commits before
    # starts for the same reason. Claims last: a new attempt is then seen, and blocks deletions.
    directories = bucket.list_directories(DATA)
    commits = bucket.list_objects(COMMITS)
    starts = bucket.list_objects(STARTS)
    claims = bucket.list_objects(CLAIMS)
    begun = {start: o.written_at for o in starts.objects if (start := EpochStart.of_key(o.key))}
    written = {
        name: o.written_at for o in commits.objects if (name := CheckpointName.of_key(o.key))
    }
    cache.retain(written)
    checkpoints = {name: _checkpoint_info(bucket, name, saves, keep, cache) for name in written}
    marks = {
        name: o
        for o in bucket.list_objects(FLAWED).objects
        if (name := parse_quarantine_key(o.key))
    }
    cache.damaged = set(marks)
    lacking = _incomplete(bucket, checkpoints, Lineage(frozenset(begun)), keep, cache)
    newest = max((start.epoch for start in begun), default=NO_EPOCH)
    data = dict(_uploads(bucket, directories, written, newest))
    epochs = (parse_epoch_key(o.key) or NO_EPOCH for o in claims.objects)
    inventory = Inventory(
        at=commits.listed_at,
        commits=tuple(
            Commit(name=name, at=at, is_whole=name not in lacking, score=checkpoints[name].score)
            for name, at in written.items()
        ),
        uploads=tuple(
            Upload(name, max(o.written_at for o in parts)) for name, parts in data.items()
        ),
        starts=begun,
        claimed_epoch=max(epochs, default=NO_EPOCH),
    )
    seen = (
        *commits.objects,
        *starts.objects,
        *claims.objects,
        *bucket.list_objects(PROBES).objects,
    )
    # Before the first commit, a mark may belong to a checkpoint of the job that this one resumes from.
    obsolete = [mark for name, mark in marks.items() if written and name not in written]
    return StoreInventory(
        inventory=inventory,
        sizes={name: found.size_bytes or 0 for name, found in checkpoints.items()},
        data=data,
        leftovers=(*filter(_is_leftover, seen), *obsolete),
    )


def _checkpoint_info(
    bucket: CheckpointBucket,
    name: CheckpointName,
    saves: CheckpointHistory,
    keep: RetentionPolicy,
    cache: InventoryCache,
) -> _CheckpointInfo:
    """The information from the worker's report, or from the commit.

    The worker may have died before its report.
    """
    summary: CheckpointAttempt | CommitSummary | None = saves.find(str(name))
    if summary is None:
        if name not in cache.summaries:
            cache.summaries[name] = _summary(bucket, name)
        summary = cache.summaries[name]
    if summary is None:
        return _CheckpointInfo(None, None)
    logged = summary.metrics.get(keep.best.metric) if keep.best else None
    score = Score(logged.value, logged.step) if logged and logged.value is not None else None
    return _CheckpointInfo(summary.size_bytes, score)


def _summary(bucket: CheckpointBucket, name: CheckpointName) -> CommitSummary | None:
    try:
        return CommitSummary.of_commit(bucket.read(name.commit_key) or b"")
    except ValueError:
        return None


def _incomplete(
    bucket: CheckpointBucket,
    checkpoints: Mapping[CheckpointName, _CheckpointInfo],
    lineage: Lineage,
    keep: RetentionPolicy,
    cache: InventoryCache,
) -> set[CheckpointName]:
    """The newest checkpoints with missing bytes, and those marked as damaged.

    Only counted ones are included.
    """
    lacking: set[CheckpointName] = set()
    wanted = max(keep.last, MIN_KEPT)
    newest_first = sorted(
        (name for name in checkpoints if not lineage.superseding_start(name)), reverse=True
    )
    for name in newest_first[:MAX_VERIFIED]:
        if not wanted:
            break
        is_sound = name not in cache.damaged and (
            name in cache.whole or _is_complete(bucket, name, checkpoints[name].size_bytes)
        )
        if is_sound:
            cache.whole.add(name)
            wanted -= 1
        else:
            lacking.add(name)
    return lacking


def _is_complete(bucket: CheckpointBucket, name: CheckpointName, size_bytes: int | None) -> bool:
    if size_bytes is None:
        return False  # Its commit is unreadable.
    return sum(o.size_bytes for o in bucket.list_objects(name.data_prefix).objects) == size_bytes


def _uploads(
    bucket: CheckpointBucket,
    directories: Sequence[str],
    written: Mapping[CheckpointName, datetime],
    newest: int,
) -> Iterator[tuple[CheckpointName, Sequence[StoredObject]]]:
    """Data without a commit, of epochs that have begun."""
    for directory in directories:
        name = CheckpointName.of_key(directory)
        if name and name not in written and name.epoch <= newest:
            parts = bucket.list_objects(directory).objects
            if parts:  # It may have been deleted in the meantime.
                yield name, parts


def _is_leftover(stored: StoredObject) -> bool:
    is_draft = stored.key.rpartition("/")[2].startswith(DRAFT)
    return is_draft or (stored.key.startswith(PROBES) and stored.key != PROBES)


@dataclass(frozen=True, slots=True)
class StoreScan:
    """A scan of a store."""

    at: datetime
    seq: int
    """Number of the last event known at that time."""
    again_at: datetime | None
    """When more may be deleted if nothing is written until then; None: never."""


@dataclass(slots=True)
class JobRetentionState:
    """Retention state of one job. All of it can be read again from the journal and the store."""

    job_id: str
    store: str
    policy: RetentionPolicy
    envs: Mapping[str, str]
    history: CheckpointHistory = field(default_factory=CheckpointHistory)
    cache: InventoryCache = field(default_factory=InventoryCache)
    last_scan: StoreScan | None = None
    """The last scan; None before the first one."""

    @classmethod
    def load(cls, job_id: str, journal: Journal) -> JobRetentionState:
        """The state of a job that makes checkpoints."""
        spec = JobSpec.from_stored(journal.submission(job_id).spec)
        checkpoint = spec.holdfast.checkpoint
        assert checkpoint, "a job without a store has no checkpoints to delete"
        return cls(job_id, checkpoint.store, checkpoint.keep, spec.envs)

    def catch_up(self, journal: Journal) -> None:
        """Apply the events since the last call."""
        for item in journal.events(self.job_id, after_seq=self.history.seq):
            self.history.apply(item.seq, item.event)
        self.history.prune()

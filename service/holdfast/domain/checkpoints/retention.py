"""Retention decision: which objects of a checkpoint store to delete, and why. Pure.

A checkpoint is kept if the job's rule selects it now or selected it at the start of the grace period, so that a reader who chose
it has that long to read it. The newest two on the lineage are always kept. Objects younger than the grace period are kept, and so
are those of an epoch whose start is unknown. All ages use the store's clock.

An upload without a commit is deleted if it can no longer be committed, or if it has not been written to for long. It cannot be
committed if a later epoch has begun, which fences it, or if its writer has committed a later checkpoint, because an attempt makes
one save at a time. Remains of an interrupted deletion fall under the same rule, because a commit is deleted before its data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.lineage import EpochStart, Lineage

from holdfast.domain.checkpoints.history import CheckpointAttempt, Fate
from holdfast.domain.jobfile.retention_policy import MIN_KEPT, Best, Mode, RetentionPolicy

NO_EPOCH: Final = 0
"""Epoch number that no attempt has; epochs count from 1."""


@dataclass(frozen=True, slots=True)
class Score:
    """Value of the metric that ranks checkpoints."""

    value: float
    step: int
    """Step at which the value was logged; checkpoints with the same value and step rank equally."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """A committed checkpoint."""

    name: CheckpointName
    at: datetime
    """Time of the commit."""
    is_whole: bool = True
    """False if some of its data is known to be missing."""
    score: Score | None = None
    """Metric value; None without a metric or a finite value."""


@dataclass(frozen=True, slots=True)
class Upload:
    """Data without a commit."""

    name: CheckpointName
    at: datetime
    """Time of its newest object."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """Contents of a store for one job."""

    at: datetime
    """Time of the inventory by the store's clock."""
    commits: Sequence[Commit] = ()
    uploads: Sequence[Upload] = ()
    starts: Mapping[EpochStart, datetime] = field(default_factory=dict)
    """Start of each epoch, and when it was recorded."""
    claimed_epoch: int = NO_EPOCH
    """Highest epoch that an attempt has acquired."""

    @property
    def newest_epoch(self) -> int:
        """Highest epoch that has begun; objects of higher epochs are kept."""
        return max((start.epoch for start in self.starts), default=NO_EPOCH)

    @property
    def is_being_read(self) -> bool:
        """Whether an attempt acquired its epoch but has not started.

        It may read any of these checkpoints.
        """
        return self.claimed_epoch > self.newest_epoch

    @property
    def lineage(self) -> Lineage:
        """The lineage of the job's current state."""
        return Lineage(frozenset(self.starts))

    def as_of(self, then: datetime) -> Inventory:
        """The part of this inventory that existed at an earlier time."""
        return replace(
            self,
            at=then,
            commits=tuple(commit for commit in self.commits if commit.at <= then),
            starts={start: at for start, at in self.starts.items() if at <= then},
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class GracePeriods:
    """How long unneeded objects are kept."""

    commits: timedelta
    """Grace for a checkpoint, from the time at which no rule selects it."""
    uploads: timedelta
    """Grace for an unfinished upload of the newest attempt, from its last write."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionPlan:
    """Objects to delete now: commits before data."""

    superseded: tuple[CheckpointName, ...] = ()
    off_lineage: tuple[CheckpointName, ...] = ()
    uploads: tuple[CheckpointName, ...] = ()
    next_run_at: datetime | None = None
    """Time at which more can be deleted without new writes; None if never."""


def decide(
    seen: Inventory, keep: RetentionPolicy, grace: GracePeriods, *, is_restoring: bool
) -> RetentionPlan:
    """Decide what to delete.

    `is_restoring` means that an attempt is currently choosing a checkpoint.
    """
    before = seen.as_of(seen.at - grace.commits)
    known = {c.name for c in seen.commits if c.name.epoch <= seen.newest_epoch}
    surplus = known - _retained_names(seen, keep, known)
    ripe = surplus & {c.name for c in before.commits} - _retained_names(before, keep, known)
    if is_restoring or seen.is_being_read:
        ripe = set()
    uploads = {
        u.name: at for u in seen.uploads if (at := _removable_at(u, seen, grace)) is not None
    }
    later = [seen.at + grace.commits] if surplus - ripe else []
    later += [at for at in uploads.values() if at > seen.at]
    lineage = seen.lineage
    return RetentionPlan(
        superseded=tuple(sorted(name for name in ripe if not lineage.superseding_start(name))),
        off_lineage=tuple(sorted(name for name in ripe if lineage.superseding_start(name))),
        uploads=tuple(sorted(name for name, at in uploads.items() if at <= seen.at)),
        next_run_at=min(later, default=None),
    )


def retained_checkpoints(
    commits: Iterable[Commit], lineage: Lineage, keep: RetentionPolicy
) -> set[CheckpointName]:
    """Checkpoints that a rule keeps. Those off the lineage are not kept."""
    on = sorted((c for c in commits if not lineage.superseding_start(c.name)), key=lambda c: c.name)
    stay = [c.name for c in on[-max(keep.last, MIN_KEPT) :]]
    if keep.every_steps:
        stay += _milestones(on, keep.every_steps)
    if keep.best:
        stay += _best(on, keep.best)
    return set(stay)


def superseded(saves: Iterable[CheckpointAttempt], keep: RetentionPolicy) -> set[int]:
    """Complete checkpoints that the rule does not keep, by `seq`.

    They are deleted after the grace period.
    """
    complete = {
        save.seq: _commit_of(save, keep.best) for save in saves if save.fate is Fate.COMPLETE
    }
    stay = retained_checkpoints(complete.values(), Lineage(frozenset()), keep)
    return {seq for seq, commit in complete.items() if commit.name not in stay}


def _commit_of(save: CheckpointAttempt, best: Best | None) -> Commit:
    metric = save.metrics.get(best.metric) if best else None
    value = metric.value if metric else None
    return Commit(
        # The stored name may be of another version; the rule needs only the order.
        name=CheckpointName(step=save.step, epoch=save.attempt, nonce=f"{save.seq:x}"),
        at=save.at,
        score=Score(value, metric.step) if metric and value is not None else None,
    )


def _retained_names(
    seen: Inventory, keep: RetentionPolicy, known: Collection[CheckpointName]
) -> set[CheckpointName]:
    """Checkpoints that the rule keeps in this inventory.

    Incomplete checkpoints do not count, but are deleted no sooner than complete ones. A checkpoint may only appear incomplete: in a
    store with eventually consistent listings, or if a different size was reported.
    """
    there = [c for c in seen.commits if c.name in known]
    whole = [c for c in there if c.is_whole]
    return retained_checkpoints(there, seen.lineage, keep) | retained_checkpoints(
        whole, seen.lineage, keep
    )


def _milestones(ascending: Sequence[Commit], every_steps: int) -> list[CheckpointName]:
    """The first checkpoint of each completed interval."""
    first: dict[int, CheckpointName] = {}
    for commit in ascending:
        stretch = commit.name.step // every_steps
        if stretch:
            first.setdefault(stretch, commit.name)
    return list(first.values())


def _best(ascending: Sequence[Commit], best: Best) -> list[CheckpointName]:
    """The best checkpoints by a metric.

    Of those with the same value and step the first, which is closest to the value.
    """
    first: dict[Score, CheckpointName] = {}
    for commit in ascending:
        if commit.score:
            first.setdefault(commit.score, commit.name)
    sign = 1 if best.mode is Mode.MIN else -1
    ranked = sorted(first, key=lambda score: (sign * score.value, score.step))
    return [first[score] for score in ranked[: best.count]]


def _removable_at(upload: Upload, seen: Inventory, grace: GracePeriods) -> datetime | None:
    """Time from which an upload may be deleted; None if the start of its epoch is unknown."""
    if upload.name.epoch > seen.newest_epoch:
        return None
    return upload.at + (grace.commits if _is_uncommittable(upload.name, seen) else grace.uploads)


def _is_uncommittable(name: CheckpointName, seen: Inventory) -> bool:
    """Whether an upload can no longer be committed."""
    return name.epoch < seen.newest_epoch or any(
        name.is_older_save_than(c.name) for c in seen.commits
    )

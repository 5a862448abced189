"""Which objects of a checkpoint store may be removed, and why. Pure: what the store holds goes in, a plan comes out.

A checkpoint stays if the rule of its job asks for it, now or as of the grace ago; so whoever chose it before that has had
the grace to read it. The newest two on the lineage always stay. What is younger than the grace stays, and what belongs
to an epoch that was not seen to begin. All ages are by the store's own clock.

An upload without a commit is a leftover if it can never be committed any more, or if nothing was written to it for long.
It can never be committed if a later epoch has begun, which fences it, or if whoever wrote it has committed a later one,
since a placement makes one save at a time. What is left of a removal that was cut off falls under the same rule, as
a commit goes before its data.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final

from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.lineage import EpochStart, Lineage

from holdfast.domain.checkpoints.history import CheckpointAttempt, Fate
from holdfast.domain.jobfile.retention_policy import FEWEST, Best, Mode, RetentionPolicy

NEVER: Final = 0
"""An epoch that nobody has; they count from 1."""


@dataclass(frozen=True, slots=True)
class Score:
    """A value of the metric by which the best are told."""

    value: float
    step: int
    """After how many steps it was taken: checkpoints that carry the same one are as good by it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Commit:
    """A checkpoint that was committed."""

    name: CheckpointName
    at: datetime
    """When its commit was written."""
    is_whole: bool = True
    """False where some of its bytes are known not to be there."""
    score: Score | None = None
    """None: there is no metric, or no finite value of it."""


@dataclass(frozen=True, slots=True)
class Upload:
    """Data without a commit."""

    name: CheckpointName
    at: datetime
    """When the newest of its objects was written."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Inventory:
    """What a store holds of one job."""

    at: datetime
    """When that was, by the store's clock."""
    commits: Sequence[Commit] = ()
    uploads: Sequence[Upload] = ()
    starts: Mapping[EpochStart, datetime] = field(default_factory=dict)
    """Where each epoch began, and when that was recorded."""
    claimed: int = NEVER
    """The highest epoch that a placement has claimed."""

    @property
    def begun(self) -> int:
        """The highest epoch that began; what belongs to a higher one is not touched."""
        return max((start.epoch for start in self.starts), default=NEVER)

    @property
    def is_being_read(self) -> bool:
        """Whether a placement has claimed its epoch, and still looks for where to begin: it may read any of these."""
        return self.claimed > self.begun

    @property
    def lineage(self) -> Lineage:
        """What leads to where the job is."""
        return Lineage(frozenset(self.starts))

    def as_of(self, then: datetime) -> Inventory:
        """What of this was there before, as far as it still is."""
        return replace(
            self,
            at=then,
            commits=tuple(commit for commit in self.commits if commit.at <= then),
            starts={start: at for start, at in self.starts.items() if at <= then},
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Grace:
    """How long things stay that nobody needs."""

    commits: timedelta
    """A checkpoint, from the moment at which the rule does not ask for it any more."""
    uploads: timedelta
    """An upload of the newest placement that was never finished, from the last word that it wrote."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RetentionPlan:
    """What to remove now: commits before any data."""

    superseded: tuple[CheckpointName, ...] = ()
    off_lineage: tuple[CheckpointName, ...] = ()
    uploads: tuple[CheckpointName, ...] = ()
    again_at: datetime | None = None
    """When more may be removed, if nothing is written until then; None: never."""


def decide(
    seen: Inventory, keep: RetentionPolicy, grace: Grace, *, is_restoring: bool
) -> RetentionPlan:
    """What of a store may go. `is_restoring`: a placement is known to look for a checkpoint right now."""
    before = seen.as_of(seen.at - grace.commits)
    known = {c.name for c in seen.commits if c.name.epoch <= seen.begun}
    surplus = known - _asked_for(seen, keep, known)
    ripe = surplus & {c.name for c in before.commits} - _asked_for(before, keep, known)
    if is_restoring or seen.is_being_read:
        ripe = set()
    uploads = {u.name: at for u in seen.uploads if (at := _over_at(u, seen, grace)) is not None}
    later = [seen.at + grace.commits] if surplus - ripe else []
    later += [at for at in uploads.values() if at > seen.at]
    lineage = seen.lineage
    return RetentionPlan(
        superseded=tuple(sorted(name for name in ripe if not lineage.cut(name))),
        off_lineage=tuple(sorted(name for name in ripe if lineage.cut(name))),
        uploads=tuple(sorted(name for name, at in uploads.items() if at <= seen.at)),
        again_at=min(later, default=None),
    )


def needed(
    commits: Iterable[Commit], lineage: Lineage, keep: RetentionPolicy
) -> set[CheckpointName]:
    """Those of some checkpoints for which a rule asks. What is off the lineage is asked for by none."""
    on = sorted((c for c in commits if not lineage.cut(c.name)), key=lambda c: c.name)
    stay = [c.name for c in on[-max(keep.last, FEWEST) :]]
    if keep.every_steps:
        stay += _milestones(on, keep.every_steps)
    if keep.best:
        stay += _best(on, keep.best)
    return set(stay)


def superseded(saves: Iterable[CheckpointAttempt], keep: RetentionPolicy) -> set[int]:
    """The complete checkpoints that a rule does not keep, by their `seq`. They go once the grace is over."""
    complete = {
        save.seq: _commit_of(save, keep.best) for save in saves if save.fate is Fate.COMPLETE
    }
    stay = needed(complete.values(), Lineage(frozenset()), keep)
    return {seq for seq, commit in complete.items() if commit.name not in stay}


def _commit_of(save: CheckpointAttempt, best: Best | None) -> Commit:
    metric = save.metrics.get(best.metric) if best else None
    value = metric.value if metric else None
    return Commit(
        # Its own name may be of another version; the rule needs the order alone.
        name=CheckpointName(step=save.step, epoch=save.attempt, nonce=f"{save.seq:x}"),
        at=save.at,
        score=Score(value, metric.step) if metric and value is not None else None,
    )


def _asked_for(
    seen: Inventory, keep: RetentionPolicy, known: Collection[CheckpointName]
) -> set[CheckpointName]:
    """Those of the known checkpoints for which the rule asks, by what was there.

    Those that are not whole count for nothing; but they go no sooner than if they were whole. What is there may look as
    if it were not: to a store that lists late, and to whoever was told another size.
    """
    there = [c for c in seen.commits if c.name in known]
    whole = [c for c in there if c.is_whole]
    return needed(there, seen.lineage, keep) | needed(whole, seen.lineage, keep)


def _milestones(ascending: Sequence[Commit], every_steps: int) -> list[CheckpointName]:
    """The first of each stretch. Before the first stretch is over, there is none."""
    first: dict[int, CheckpointName] = {}
    for commit in ascending:
        stretch = commit.name.step // every_steps
        if stretch:
            first.setdefault(stretch, commit.name)
    return list(first.values())


def _best(ascending: Sequence[Commit], best: Best) -> list[CheckpointName]:
    """The best by a metric. Of those that carry the same value of the same step, the first: it is the nearest to it."""
    first: dict[Score, CheckpointName] = {}
    for commit in ascending:
        if commit.score:
            first.setdefault(commit.score, commit.name)
    sign = 1 if best.mode is Mode.MIN else -1
    ranked = sorted(first, key=lambda score: (sign * score.value, score.step))
    return [first[score] for score in ranked[: best.count]]


def _over_at(upload: Upload, seen: Inventory, grace: Grace) -> datetime | None:
    """From when on an upload counts as a leftover; None for one of an epoch that was not seen to begin."""
    if upload.name.epoch > seen.begun:
        return None
    return upload.at + (grace.commits if _is_dead(upload.name, seen) else grace.uploads)


def _is_dead(name: CheckpointName, seen: Inventory) -> bool:
    """Whether an upload can never be committed any more."""
    return name.epoch < seen.begun or any(name.is_behind(c.name) for c in seen.commits)

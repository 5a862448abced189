"""Deletions from a checkpoint store: examples, and a comparison with a literal definition."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace
from datetime import timedelta

import pytest
from holdfast.domain.checkpoints.retention import (
    Commit,
    GracePeriods,
    Inventory,
    RetentionPlan,
    Score,
    Upload,
    decide,
)
from holdfast.domain.jobfile.retention_policy import Best, Mode, RetentionPolicy
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.lineage import EpochStart, Lineage
from hypothesis import given
from hypothesis import strategies as st
from support.events import DAWN, at
from support.retention_oracle import is_asked_for

GRACE = GracePeriods(commits=timedelta(seconds=300), uploads=timedelta(days=1))
NOON = at(7 * 86_400)
"""A week after the start of the history."""


def name(step: int, epoch: int = 1, saves: int = 1) -> CheckpointName:
    return CheckpointName(step, epoch, f"{epoch:08x}{saves:04x}")


def commit(step: int, epoch: int = 1, *, seconds: float = 0, loss: float | None = None, whole: bool = True) -> Commit:  # fmt: skip
    score = None if loss is None else Score(loss, step)
    return Commit(name=name(step, epoch), at=at(seconds), is_whole=whole, score=score)


def upload(step: int, epoch: int = 1, *, seconds: float = 0, saves: int = 1) -> Upload:
    return Upload(name(step, epoch, saves), at(seconds))


def seen(
    *commits: Commit,
    uploads: Iterable[Upload] = (),
    starts: Iterable[EpochStart] = (),
    **more: object,
) -> Inventory:
    """A store at noon, in which epoch 1 began at dawn by default."""
    begun = dict.fromkeys([*starts, EpochStart(1, 0)], DAWN)
    fields = {"at": NOON, "starts": begun, "claimed_epoch": max(s.epoch for s in begun), **more}
    return Inventory(commits=commits, uploads=tuple(uploads), **fields)


def removed(inventory: Inventory, keep: RetentionPolicy = RetentionPolicy(last=2), *, restoring: bool = False) -> list[int]:  # fmt: skip
    """Steps of the commits to delete."""
    plan = decide(inventory, keep, GRACE, is_restoring=restoring)
    return sorted(deleted.step for deleted in (*plan.superseded, *plan.off_lineage))


def discarded(inventory: Inventory) -> list[int]:
    """Steps of the uploads to delete."""
    return [
        deleted.step
        for deleted in decide(inventory, RetentionPolicy(), GRACE, is_restoring=False).uploads
    ]


FIVE = tuple(commit(step) for step in (10, 20, 30, 40, 50))


@pytest.mark.parametrize(
    ("keep", "deleted"),
    [
        (RetentionPolicy(last=2), [10, 20, 30]),
        (RetentionPolicy(last=4), [10]),
        (RetentionPolicy(last=9), []),
        (RetentionPolicy(last=2, every="20 steps"), [10, 30]),
        (RetentionPolicy(last=2, every="25 steps"), [10, 20]),
        (RetentionPolicy(last=2, every="1000 steps"), [10, 20, 30]),
    ],
)
def test_last_checkpoints_and_milestones_are_kept(
    keep: RetentionPolicy, deleted: list[int]
) -> None:
    assert removed(seen(*FIVE), keep) == deleted


def test_first_checkpoint_of_each_stretch_is_kept() -> None:
    saves = [commit(step) for step in (95, 104, 190, 203, 207, 399, 500, 510)]

    assert removed(seen(*saves), RetentionPolicy(last=2, every="100 steps")) == [95, 190, 207]


LOSSES = (commit(10, loss=0.5), commit(20, loss=0.2), commit(30, loss=0.9), commit(40), commit(50))


@pytest.mark.parametrize(
    ("best", "deleted"),
    [
        (Best(metric="loss", mode=Mode.MIN), [10, 30]),
        (Best(metric="loss", mode=Mode.MAX), [10, 20]),
        (Best(metric="loss", mode=Mode.MIN, count=2), [30]),
        (Best(metric="loss", mode=Mode.MIN, count=9), []),
    ],
)
def test_best_checkpoints_are_kept_and_must_be_measured(best: Best, deleted: list[int]) -> None:
    assert removed(seen(*LOSSES), RetentionPolicy(last=2, best=best)) == deleted


def test_best_is_the_checkpoint_nearest_to_its_validation() -> None:
    measured = Score(0.1, 100)
    saves = [
        replace(commit(step), score=measured if step < 130 else Score(0.3, 130))
        for step in (100, 110, 120, 130, 140, 150, 160)
    ]

    best = Best(metric="loss", mode=Mode.MIN, count=2)

    assert removed(seen(*saves), RetentionPolicy(last=2, best=best)) == [110, 120, 140]


def test_first_of_equally_good_checkpoints_is_best() -> None:
    saves = [commit(step, loss=1.0) for step in (10, 20, 30, 40)]

    assert removed(
        seen(*saves), RetentionPolicy(best=Best(metric="loss", mode=Mode.MAX), last=2)
    ) == [20]


def test_superseded_checkpoint_is_kept_for_the_grace_period() -> None:
    """The third is new.

    Before it, the first was among the last two, and a worker may be reading it.
    """
    saves = [commit(10), commit(20), commit(30, seconds=1000)]

    before = removed(seen(*saves, at=at(1299)))
    after = removed(seen(*saves, at=at(1300)))

    assert (before, after) == ([], [10])


def test_no_checkpoint_is_deleted_during_a_restore() -> None:
    assert removed(seen(*FIVE, claimed_epoch=2)) == []
    assert removed(seen(*FIVE), restoring=True) == []


def test_off_lineage_checkpoint_is_not_counted_and_is_deleted() -> None:
    saves = [commit(10), commit(20), commit(90), commit(30, 2)]

    plan = decide(
        seen(*saves, starts=[EpochStart(2, 20)]), RetentionPolicy(last=2), GRACE, is_restoring=False
    )

    assert plan.off_lineage == (name(90),)
    assert plan.superseded == (name(10),)


def test_off_lineage_checkpoint_is_kept_for_the_grace_period() -> None:
    saves = [commit(10), commit(20), commit(90), commit(30, 2, seconds=900)]
    starts = {EpochStart(1, 0): DAWN, EpochStart(2, 20): at(1000)}
    store = replace(seen(*saves), starts=starts, claimed_epoch=2)

    assert removed(replace(store, at=at(1299))) == [10]
    assert removed(replace(store, at=at(1300))) == [10, 90]


def test_checkpoints_of_an_unknown_epoch_are_not_deleted() -> None:
    saves = [*FIVE, commit(5, 7), commit(6, 7), commit(7, 7)]
    stranger = upload(8, 7)

    plan = decide(
        seen(*saves, uploads=[stranger]), RetentionPolicy(last=2), GRACE, is_restoring=False
    )

    assert [deleted.step for deleted in plan.superseded] == [10, 20, 30]
    assert plan.uploads == ()


def test_store_without_a_start_is_left_unchanged() -> None:
    inventory = Inventory(at=NOON, commits=FIVE, uploads=(upload(60),))

    assert decide(inventory, RetentionPolicy(last=2), GRACE, is_restoring=False) == RetentionPlan()


def test_incomplete_checkpoint_is_not_counted_or_deleted_earlier() -> None:
    saves = [commit(10), commit(20), commit(30), commit(40, whole=False), commit(50, whole=False)]

    assert removed(seen(*saves)) == [10]
    assert removed(seen(*saves, commit(60), commit(70))) == [10, 20, 30, 40, 50]


@pytest.mark.parametrize(
    ("left", "after_s"),
    [
        (upload(15, 1), 300),  # Its epoch is fenced: a later one has begun.
        (upload(90, 2, saves=0), 300),  # Its writer has committed a later one since.
        (upload(90, 2, saves=9), 86_400),  # A machine that was only suspended may still finish it.
        (Upload(CheckpointName(5, 2, "00000abc0001"), DAWN), 86_400),  # Another start of the epoch.
    ],
)  # fmt: skip
def test_orphaned_uploads_are_deleted_after_their_grace(left: Upload, after_s: float) -> None:
    store = seen(commit(60, 2), uploads=[left], starts=[EpochStart(2, 10)])

    assert discarded(replace(store, at=at(after_s - 1))) == []
    assert discarded(replace(store, at=at(after_s))) == [left.name.step]


def test_remains_of_an_interrupted_deletion_are_deleted() -> None:
    """Its commit is deleted already; its epoch is older, but no later start cuts it off."""
    inventory = seen(commit(40), commit(50, 2), uploads=[upload(10)], starts=[EpochStart(2, 40)])

    assert discarded(inventory) == [10]


def test_plan_states_its_next_run() -> None:
    nothing = seen(commit(10), commit(20))
    fresh = replace(seen(commit(10), commit(20), commit(30, seconds=50)), at=at(100))
    waiting = replace(seen(commit(10), uploads=[upload(60, saves=9)]), at=at(100))

    plans = [decide(found, RetentionPolicy(last=2), GRACE, is_restoring=False) for found in (nothing, fresh, waiting)]  # fmt: skip

    assert [plan.next_run_at for plan in plans] == [None, at(400), at(86_400)]


# Comparison with a literal definition


STEPS = st.integers(0, 12)
SECONDS = st.integers(0, 1000)
KEEPS = st.builds(
    RetentionPolicy,
    last=st.integers(2, 4),
    every=st.none() | st.integers(1, 5).map(lambda n: f"{n} steps"),
    best=st.none()
    | st.builds(Best, metric=st.just("loss"), mode=st.sampled_from(Mode), count=st.integers(1, 3)),
)
NAMES = st.builds(
    lambda step, epoch, start, saves: CheckpointName(step, epoch, f"{start:08x}{saves:04x}"),
    STEPS, st.integers(1, 4), st.integers(1, 2), st.integers(1, 4),
)  # fmt: skip
SCORES = st.none() | st.builds(Score, st.sampled_from([0.1, 0.2, 0.3]), st.integers(0, 4))


@st.composite
def inventories(draw: st.DrawFn) -> Inventory:
    names = draw(st.lists(NAMES, unique=True, max_size=10))
    cut = draw(st.integers(0, len(names)))
    commits = [
        Commit(name=n, at=at(draw(SECONDS)), is_whole=draw(st.booleans()), score=draw(SCORES))
        for n in names[:cut]
    ]
    starts = draw(
        st.dictionaries(st.builds(EpochStart, st.integers(1, 4), STEPS), SECONDS, max_size=4)
    )
    return Inventory(
        at=at(draw(st.integers(0, 2000))),
        commits=tuple(commits),
        uploads=tuple(Upload(n, at(draw(SECONDS))) for n in names[cut:]),
        starts={start: at(seconds) for start, seconds in starts.items()},
        claimed_epoch=draw(st.integers(0, 5)),
    )


def on_lineage(inventory: Inventory) -> list[Commit]:
    """Commits of started epochs that no later start cuts off, newest first."""
    cut = Lineage(frozenset(inventory.starts)).superseding_start
    known = [
        c for c in inventory.commits if c.name.epoch <= inventory.newest_epoch and not cut(c.name)
    ]
    return sorted(known, key=lambda c: c.name, reverse=True)


def expected_kept(inventory: Inventory, keep: RetentionPolicy) -> set[CheckpointName]:
    """The checkpoints that the policy requires of all commits, or of the complete ones."""
    every = on_lineage(inventory)
    whole = [c for c in every if c.is_whole]
    return {c.name for among in (every, whole) for c in among if is_asked_for(c, among, keep)}


def without(inventory: Inventory, deleted: Collection[CheckpointName]) -> Inventory:
    """The store after the deletion of commits or uploads. The data of a deleted commit remains."""
    left = [Upload(c.name, c.at) for c in inventory.commits if c.name in deleted]
    return replace(
        inventory,
        commits=tuple(c for c in inventory.commits if c.name not in deleted),
        uploads=(*(u for u in inventory.uploads if u.name not in deleted), *left),
    )


def executed(inventory: Inventory, plan: RetentionPlan) -> Inventory:
    deleted = {*plan.superseded, *plan.off_lineage}
    return without(without(inventory, deleted), {*deleted, *plan.uploads})


@given(inventories(), KEEPS, st.booleans())
def test_required_checkpoints_are_never_deleted(
    inventory: Inventory, keep: RetentionPolicy, restoring: bool
) -> None:
    plan = decide(inventory, keep, GRACE, is_restoring=restoring)

    deleted = {*plan.superseded, *plan.off_lineage}
    ages = {c.name: inventory.at - c.at for c in inventory.commits}
    ages |= {u.name: inventory.at - u.at for u in inventory.uploads}
    newest_two = {c.name for c in on_lineage(inventory)[:2]}
    newest_whole = {c.name for c in [c for c in on_lineage(inventory) if c.is_whole][:2]}
    assert not deleted & (newest_two | newest_whole)
    assert not deleted & expected_kept(inventory, keep)
    assert all(ages[n] >= GRACE.commits for n in {*deleted, *plan.uploads})
    assert all(n.epoch <= inventory.newest_epoch for n in {*deleted, *plan.uploads})
    assert not deleted or (not restoring and inventory.claimed_epoch <= inventory.newest_epoch)
    assert deleted <= {c.name for c in inventory.commits}
    assert set(plan.uploads) <= {u.name for u in inventory.uploads}


@given(inventories(), KEEPS)
def test_executed_plan_leaves_nothing_to_do(inventory: Inventory, keep: RetentionPolicy) -> None:
    plan = decide(inventory, keep, GRACE, is_restoring=False)

    after = executed(inventory, plan)

    again = decide(after, keep, GRACE, is_restoring=False)
    assert (again.superseded, again.off_lineage, again.uploads) == ((), (), ())
    assert expected_kept(after, keep) == expected_kept(inventory, keep)


@given(inventories(), KEEPS, st.data())
def test_next_run_completes_an_interrupted_deletion(
    inventory: Inventory, keep: RetentionPolicy, data: st.DataObject
) -> None:
    plan = decide(inventory, keep, GRACE, is_restoring=False)
    commits = data.draw(st.permutations([*plan.superseded, *plan.off_lineage]))
    reached = data.draw(st.integers(0, len(commits)))

    torn = without(inventory, commits[:reached])

    assert expected_kept(torn, keep) == expected_kept(inventory, keep)
    later = replace(torn, at=torn.at + GRACE.uploads)
    same = replace(executed(inventory, plan), at=later.at)
    ends = [
        executed(found, decide(found, keep, GRACE, is_restoring=False)) for found in (later, same)
    ]
    assert ends[0] == ends[1]


@given(inventories(), KEEPS)
def test_all_unneeded_checkpoints_are_deleted_eventually(
    inventory: Inventory, keep: RetentionPolicy
) -> None:
    later = replace(inventory, at=NOON, claimed_epoch=inventory.newest_epoch)

    rest = executed(later, decide(later, keep, GRACE, is_restoring=False))

    known = {c.name for c in rest.commits if c.name.epoch <= rest.newest_epoch}
    assert known == expected_kept(inventory, keep)
    assert not [u for u in rest.uploads if u.name.epoch <= rest.newest_epoch]
    assert decide(rest, keep, GRACE, is_restoring=False).next_run_at is None


@given(inventories(), KEEPS)
def test_next_run_is_set_iff_more_becomes_due(inventory: Inventory, keep: RetentionPolicy) -> None:
    inventory = replace(inventory, claimed_epoch=inventory.newest_epoch)
    rest = executed(inventory, decide(inventory, keep, GRACE, is_restoring=False))
    again_at = decide(rest, keep, GRACE, is_restoring=False).next_run_at

    at_noon = decide(replace(rest, at=NOON), keep, GRACE, is_restoring=False)

    more = (*at_noon.superseded, *at_noon.off_lineage, *at_noon.uploads)
    assert (again_at is not None) == bool(more)

"""Two attempts write to one bucket at once: the older one has no effect in any bucket."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_s3 import FakeS3
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.storage.base import Store
from hypothesis import given
from hypothesis import strategies as st
from worker.support.stores import LATER_S, InterruptedStore, MemoryStore, RankGroup, newest, resume

COMMITTED, FAILED = ReportKind.CHECKPOINT_COMMITTED, ReportKind.CHECKPOINT_FAILED
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

in_each_cloud = pytest.mark.parametrize("bucket", ["s3", "gs", "az"], indirect=True)


@pytest.fixture(params=["conditional", "overwrites"])
def either(request: pytest.FixtureRequest, s3: FakeS3, bucket: Store) -> Store:
    """A bucket with conditional writes, and one that silently ignores conditions."""
    s3.set(conditional=request.param == "conditional")
    return bucket


def group(store: Store, spool: Path, epoch: int, **rules: object) -> RankGroup:
    """An attempt with one rank."""
    return RankGroup(store, spool, epoch=epoch, ranks=1, **rules)


def steps(store: Store) -> list[tuple[int, int]]:
    """Step and epoch of all commits, newest first."""
    return [(name.step, name.epoch) for name in CheckpointRepository(store).names(LATER_S)]


@in_each_cloud
def test_fenced_attempt_commits_nothing_more(either: Store, tmp_path: Path) -> None:
    old, new = group(either, tmp_path, 1), group(either, tmp_path, 2)
    old.save(10)
    begun = resume(either, 2).name
    new.save(15)

    old.save(20)
    new.save(25)

    assert begun
    assert (begun.step, begun.epoch) == (10, 1)
    assert steps(either) == [(25, 2), (15, 2), (10, 1)]
    assert old.savers[0].fenced.startswith("a newer attempt of this job has taken over (epoch 2")
    assert [len(old.report_bodies(COMMITTED)), len(old.report_bodies(FAILED))] == [1, 0]
    assert newest(either, 1) == (25, [])


@in_each_cloud
def test_racing_commit_is_detected_by_its_writer_and_never_used(
    either: Store, tmp_path: Path
) -> None:
    """The old attempt finds no newer claim; the new one starts and saves; the old one commits."""
    group(either, tmp_path, 1).save(10)

    def take_over() -> None:
        resume(either, 2)
        group(either, tmp_path, 2).save(12)

    late = InterruptedStore(either, "put_if_absent", "commits/", take_over)
    old = group(late, tmp_path / "old", 1)
    old.save(20)
    third = resume(either, 3).name

    assert old.report_bodies(COMMITTED) == []
    assert old.savers[0].fenced.startswith("a newer attempt of this job has saved step 12")
    assert third
    assert (third.step, third.epoch) == (12, 2)


@in_each_cloud
def test_consecutive_claims_get_distinct_epochs(either: Store) -> None:
    claims = CheckpointRepository(either).tokens

    epochs = [claims.acquire_next(f"{number:08x}", LATER_S) for number in range(4)]

    assert epochs == [1, 2, 3, 4]


@given(turns=st.lists(st.tuples(st.sampled_from([1, 2]), st.integers(1, 50)), max_size=10))
def test_newest_epoch_is_restored_in_any_order_of_saves(
    tmp_path_factory: pytest.TempPathFactory, turns: list[tuple[int, int]]
) -> None:
    """Any order of saves by two attempts, each some steps after its last save."""
    store, spool = MemoryStore(), tmp_path_factory.mktemp("spool")
    writers = {epoch: group(store, spool, epoch) for epoch in (1, 2)}
    CheckpointRepository(store).tokens.claim(1, "00000001", LATER_S)
    done = {1: 0}
    for epoch, further in turns:
        if epoch not in done:
            begun = resume(store, epoch).name
            done[epoch] = begun.step if begun else 0
        done[epoch] += further
        writers[epoch].save(done[epoch])

    third = resume(store, 3).name

    newest_epoch = max(done)
    expected = (done[newest_epoch], newest_epoch) if done[newest_epoch] else None
    assert (third and (third.step, third.epoch)) == expected

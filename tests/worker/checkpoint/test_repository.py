"""A checkpoint exists completely or not at all, after any crash and any later damage."""

from __future__ import annotations

import json
import resource
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from holdfast_worker.checkpoint.metadata import CommitMetadata, CorruptCheckpoint
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.state_consistency import InconsistentState
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.run_dir import RunDir
from holdfast_worker.storage.base import StoreRefused
from holdfast_worker.storage.directory import DRAFT, DirectoryStore
from holdfast_worker.watchdog.heartbeat import HeartbeatReader, HeartbeatWriter
from support.requirements import skip_or_fail
from worker.support.stores import (
    LATER_S,
    CrashingStore,
    FlakyStore,
    InterruptedStore,
    MemoryStore,
    RankGroup,
    Scales,
    flaws,
    newest,
    snapshot,
)

COMMITTED, FAILED = ReportKind.CHECKPOINT_COMMITTED, ReportKind.CHECKPOINT_FAILED


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> DirectoryStore:
    return DirectoryStore(root)


def test_checkpoint_is_read_as_it_was_written(store: DirectoryStore, tmp_path: Path) -> None:
    group = RankGroup(store, tmp_path)

    group.save(10)

    [result] = group.report_bodies(COMMITTED)
    assert newest(store) == (10, [])
    assert result["weights_sha256"] == Scales().at(10).digest
    assert result["checkpoint"] == "step-10-e1-000000010001"
    sizes = [len(store.get(key)) for key in store.list("step-")]
    assert result["size_bytes"] == sum(sizes)


def test_record_of_the_same_size_with_other_bytes_is_damaged(
    store: DirectoryStore, tmp_path: Path
) -> None:
    archive = RankGroup(store, tmp_path).archive
    RankGroup(store, tmp_path).save(10)
    [name] = archive.names(LATER_S)
    commit = archive.read_commit(name, LATER_S)
    record = store.get(name.record_key(1))
    other = record.replace(b'"own": ', b'"own":\t')

    store.put(name.record_key(1), other)

    assert len(other) == len(record)
    with pytest.raises(CorruptCheckpoint, match=r"the digest of .*rank-1\.json differs"):
        archive.read_record(commit, 1, LATER_S)


def test_commit_with_one_number_changed_is_damaged(store: DirectoryStore, tmp_path: Path) -> None:
    RankGroup(store, tmp_path).save(10)
    [name] = CheckpointRepository(store).names(LATER_S)
    data = store.get(name.commit_key)

    with pytest.raises(CorruptCheckpoint, match="does not match its own digest"):
        CommitMetadata.parse(data.replace(b'"world_size": 2', b'"world_size": 3'))


def test_digest_of_weights_does_not_depend_on_the_world(tmp_path: Path) -> None:
    digests = set()
    for ranks in (1, 2, 3):
        group = RankGroup(
            DirectoryStore(tmp_path / f"{ranks}"), tmp_path / f"spool-{ranks}", ranks=ranks
        )
        group.save(10)
        digests.add(group.report_bodies(COMMITTED)[0]["weights_sha256"])

    assert digests == {Scales().at(10).digest}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_crash_between_any_operations_leaves_a_whole_checkpoint(tmp_path: Path) -> None:
    """Both ranks crash at the same operation; only earlier operations have an effect."""
    found = set()
    for last in range(40):
        store = DirectoryStore(tmp_path / f"{last}")
        RankGroup(store, tmp_path / "spool", keep=2).save(10)
        RankGroup(store, tmp_path / "spool", keep=2, epoch=2).save(20)
        group = RankGroup(CrashingStore(store, last), tmp_path / f"spool-{last}", keep=2, epoch=3)
        group.save(30)

        step, _ = newest(store)

        assert flaws(store) == []
        found.add(step)
        if step == 30 and not store.list("step-10"):
            break
    else:
        pytest.fail("no crash came late enough to be survived")
    assert found == {20, 30}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("operations", [0, 1, 2])
def test_save_with_a_dead_rank_is_not_committed(
    store: DirectoryStore, tmp_path: Path, operations: int
) -> None:
    """Rank 1 dies after 0 to 2 operations; the leader commits only complete checkpoints."""
    RankGroup(store, tmp_path).save(10)
    is_whole = operations == 2
    group = RankGroup(store, tmp_path, epoch=2, deadline_s=60 if is_whole else 0.5)
    crashing = RankGroup(CrashingStore(store, operations), tmp_path, epoch=2)
    ranks = [group.savers[0], crashing.savers[1]]

    for number, writer in enumerate(ranks):
        writer.save(snapshot(20, number, 2))
    for writer in ranks:
        writer.wait(30)

    assert newest(store) == (20 if is_whole else 10, [])
    failures = [f["detail"] for f in group.report_bodies(FAILED)]
    assert failures == ([] if is_whole else ["rank 1 wrote no shard metadata within 0 s"])


def test_without_the_leader_there_is_no_commit(store: DirectoryStore, tmp_path: Path) -> None:
    group = RankGroup(store, tmp_path)

    group.savers[1].save(snapshot(10, 1, 2))
    group.savers[1].wait(30)

    assert newest(store) == (0, [])
    assert not group.savers[1].is_broken


def test_shard_without_its_record_is_not_committed(store: DirectoryStore, tmp_path: Path) -> None:
    """Rank 1 dies before it writes its record, which the leader waits for."""
    group = RankGroup(store, tmp_path, deadline_s=0.5)
    name = CheckpointName(20, 1, "000000010001")
    store.put(name.part_key(1, 0), b"the shard of rank 1, perhaps not all of it")

    group.savers[0].save(snapshot(20, 0, 2))
    group.savers[0].wait(30)

    assert newest(store) == (0, [])
    assert store.list("commits/") == []


def test_leader_does_not_wait_for_a_failed_rank(store: DirectoryStore, tmp_path: Path) -> None:
    """The leader learns of the failure by the vote between two steps."""
    group = RankGroup(store, tmp_path)
    leader = group.savers[0]
    leader.save(snapshot(20, 0, 2))

    leader.cancel()
    leader.wait(30)

    assert group.report_bodies(FAILED) == [
        {"step": 20, "detail": "another rank failed to write its shard"}
    ]
    assert leader.is_broken


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("rank", [0, 1])
def test_save_ended_by_a_bug_is_marked_broken(
    store: DirectoryStore, tmp_path: Path, rank: int
) -> None:
    group = RankGroup(CrashingStore(store, 0), tmp_path)

    group.savers[rank].save(snapshot(10, rank, 2))
    group.savers[rank].wait(30)

    assert group.savers[rank].is_broken


def test_checkpoints_are_ordered_as_numbers(store: DirectoryStore, tmp_path: Path) -> None:
    for epoch, step in enumerate((9000, 15000, 20), start=9):
        RankGroup(store, tmp_path, epoch=epoch).save(step)

    steps = [(name.step, name.epoch) for name in CheckpointRepository(store).names(LATER_S)]

    assert steps == [(15000, 10), (9000, 9), (20, 11)]
    assert CheckpointName(100, 10, "a") > CheckpointName(100, 9, "b")


def test_old_checkpoints_and_abandoned_uploads_are_removed(
    store: DirectoryStore, tmp_path: Path
) -> None:
    dead = RankGroup(store, tmp_path, epoch=1, deadline_s=0.1)
    dead.savers[0].save(snapshot(15, 0, 2))
    dead.savers[0].wait(30)
    newer_placement = CheckpointName(5, 3, "00000003")
    store.put(newer_placement.part_key(0, 0), b"of somebody who is not us")
    group = RankGroup(store, tmp_path, epoch=2, keep=2)

    for step in (10, 20, 30, 40):
        group.save(step)

    kept = {str(CheckpointName.of_key(key)) for key in store.list("step-")}
    assert kept == {"step-30-e2-000000020003", "step-40-e2-000000020004", str(newer_placement)}
    assert [name.step for name in CheckpointRepository(store).names(LATER_S)] == [40, 30]


def test_worker_removes_nothing_if_the_service_does(store: DirectoryStore, tmp_path: Path) -> None:
    leftover = CheckpointName(5, 1, "00000009")
    store.put(leftover.part_key(0, 0), b"of an upload that died")
    group = RankGroup(store, tmp_path, epoch=2, keep=None)

    for step in (10, 20, 30, 40):
        group.save(step)

    assert [name.step for name in CheckpointRepository(store).names(LATER_S)] == [40, 30, 20, 10]
    assert store.list(leftover.data_prefix)


def test_half_written_files_of_killed_uploads_are_removed(
    store: DirectoryStore, root: Path, tmp_path: Path
) -> None:
    dead = root / "step-15-e1-00000001"
    dead.mkdir(parents=True)
    (dead / f"{DRAFT}ab12-rank-0.json").write_bytes(b"half of a sh")

    RankGroup(store, tmp_path, epoch=2).save(20)

    assert not dead.exists()


def test_damaged_checkpoint_does_not_count_towards_retention(
    store: DirectoryStore, tmp_path: Path
) -> None:
    first = RankGroup(store, tmp_path, keep=2)
    first.save(10)
    first.save(30)
    damaged = CheckpointRepository(store).names(LATER_S)[0]
    store.put(damaged.part_key(0, 0), b"")

    RankGroup(store, tmp_path, epoch=2, keep=2, damaged=[damaged]).save(20)

    assert [name.step for name in CheckpointRepository(store).names(LATER_S)] == [20, 10]
    assert newest(store) == (20, [])


def test_store_timeout_is_retried(root: Path, tmp_path: Path) -> None:
    group = RankGroup(FlakyStore(root, silences=3), tmp_path)

    group.save(10)

    assert newest(DirectoryStore(root)) == (10, [])


def test_unresponsive_store_fails_only_the_checkpoint(root: Path, tmp_path: Path) -> None:
    RankGroup(DirectoryStore(root), tmp_path).save(10)
    group = RankGroup(FlakyStore(root, silences=10**6), tmp_path, epoch=2, deadline_s=0.3)

    group.save(20)

    [failed] = group.report_bodies(FAILED)
    assert failed == {"step": 20, "detail": "come back later"}
    assert newest(DirectoryStore(root)) == (10, [])


def test_commit_with_a_lost_response_succeeds(root: Path, tmp_path: Path) -> None:
    group = RankGroup(FlakyStore(root, loses_answers=True), tmp_path)

    group.save(10)

    assert len(group.report_bodies(COMMITTED)) == 1
    assert group.report_bodies(FAILED) == []


def test_retry_at_the_same_step_uses_other_keys(root: Path, tmp_path: Path) -> None:
    group = RankGroup(FlakyStore(root, refused="0001/rank-0.json"), tmp_path)

    group.save(10)
    group.save(10)

    assert [f["detail"] for f in group.report_bodies(FAILED)] == [
        "no room for step-10-e1-000000010001/rank-0.json"
    ]
    assert newest(DirectoryStore(root)) == (10, [])
    assert {str(CheckpointName.of_key(k)) for k in DirectoryStore(root).list("step-")} == {
        "step-10-e1-000000010002"
    }


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Limit the size of files, like a disk that is full for large files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_file_size_limit_fails_only_the_checkpoint(
    store: DirectoryStore, root: Path, tmp_path: Path
) -> None:
    group = RankGroup(store, tmp_path)
    group.save(10)

    with largest_file(900):
        group.save(20)
    failed = group.report_bodies(FAILED)
    group.save(30)

    assert [f["step"] for f in failed] == [20]
    assert "File too large" in str(failed[0]["detail"])
    assert [name.step for name in CheckpointRepository(store).names(LATER_S)] == [30, 10]
    assert not [file for file in root.rglob("*") if "draft" in file.name]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for one checkpoint."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=48k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        skip_or_fail("mounting a small disk needs root")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


@pytest.mark.needs_root
def test_full_disk_fails_only_the_checkpoint(small_disk: Path, tmp_path: Path) -> None:
    store = DirectoryStore(small_disk)
    group = RankGroup(store, tmp_path)
    group.save(10)
    filler = small_disk / "ballast"
    with filler.open("wb", buffering=0) as file:
        while True:
            try:
                file.write(bytes(4096))
            except OSError:
                break

    group.save(20)
    failed = group.report_bodies(FAILED)
    filler.unlink()
    group.save(30)

    assert [f["step"] for f in failed] == [20]
    assert "No space left on device" in str(failed[0]["detail"])
    assert [name.step for name in CheckpointRepository(store).names(LATER_S)] == [30, 10]
    assert newest(store) == (30, [])


def test_commit_survives_a_round_trip(store: DirectoryStore, tmp_path: Path) -> None:
    RankGroup(store, tmp_path).save(10)
    [name] = CheckpointRepository(store).names(LATER_S)

    data = store.get(name.commit_key)

    assert CommitMetadata.parse(data).dump() == data
    assert CommitMetadata.parse(data).name == name


def test_save_in_progress_is_visible_to_the_wrapper(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path / "run")
    run_dir.clear()
    beat, heartbeats = HeartbeatWriter.create(run_dir, 0), HeartbeatReader(run_dir, [0])
    seen: list[bool] = []
    store = InterruptedStore(
        MemoryStore(), "put", "", lambda: seen.append(heartbeats.read()[0].is_saving)
    )

    RankGroup(store, tmp_path, ranks=1, heartbeat=beat).save(3)

    assert seen == [True]
    assert not heartbeats.read()[0].is_saving


def test_commit_under_a_name_in_use_is_refused(store: DirectoryStore, tmp_path: Path) -> None:
    RankGroup(store, tmp_path, ranks=1).save(10)
    archive = CheckpointRepository(store)
    [name] = archive.names(LATER_S)
    before = store.get(name.commit_key)
    records = [store.get(name.record_key(0))]

    with pytest.raises(StoreRefused, match="was committed by another process"):
        archive.commit(name, "2026-03-01T00:00:00Z", records, LATER_S)

    assert store.get(name.commit_key) == before


def test_ranks_with_different_shared_state_are_not_committed(
    store: DirectoryStore, tmp_path: Path
) -> None:
    RankGroup(store, tmp_path).save(10)
    archive = CheckpointRepository(store)
    [name] = archive.names(LATER_S)
    first, second = (store.get(name.record_key(rank)) for rank in range(2))
    changed = json.dumps({**json.loads(second), "agreed": "another digest"}).encode()

    with pytest.raises(InconsistentState, match="rank 1 differs from that of rank 0"):
        archive.commit(name, "2026-03-01T00:00:00Z", [first, changed], LATER_S)

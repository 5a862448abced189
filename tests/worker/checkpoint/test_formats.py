"""A checkpoint of another format or job is refused with a message, and never removed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from holdfast_worker.checkpoint.metadata import IncompatibleCheckpoint
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.restore import ParentJob, restore
from holdfast_worker.cli.checkpoints import list_checkpoints, verify
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.commit_summary import commit_digest
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.lineage import Lineage
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.storage.base import Store
from holdfast_worker.storage.directory import DirectoryStore
from worker.support.run_driver import DDP_SCRIPT, RunDriver
from worker.support.stores import LATER_S, Fresh, MemoryStore, RankGroup, Replicated, alone, resume

NEWER = (
    "it has checkpoint format 3, and this version reads up to 2: "
    "install the Holdfast version that wrote it, or a newer one, for the service and its nodes"
)
OLDER = (
    "it has checkpoint format 1, and this version reads 2 and newer: "
    "continue the job with the Holdfast version that wrote it"
)


def write_as(store: Store, name: CheckpointName, number: int, *, is_sealed: bool = True) -> None:
    """Rewrite a commit in the format of another version."""
    body = json.loads(store.get(name.commit_key))
    del body["sha256"]
    body["format"] = number
    digest = commit_digest(body) if is_sealed else "computed in another way"
    store.put(name.commit_key, json.dumps({**body, "sha256": digest}).encode())


def objects(store: DirectoryStore) -> dict[str, bytes]:
    return {key: store.get(key) for key in store.list("")}


def forget_job(store: Store, name: CheckpointName) -> None:
    """Rewrite a commit without its job, as older versions wrote it."""
    body = json.loads(store.get(name.commit_key))
    del body["sha256"], body["job"]
    store.put(name.commit_key, json.dumps({**body, "sha256": commit_digest(body)}).encode())


@pytest.mark.parametrize(("number", "why"), [(3, NEWER), (1, OLDER)])
def test_start_on_an_unreadable_format_exits_and_changes_nothing(
    tmp_path: Path, number: int, why: str
) -> None:
    driver = RunDriver(tmp_path)
    assert driver.run_ranks(1, DDP_SCRIPT, "20") == [Exit.DONE]
    store = DirectoryStore(tmp_path / "store" / "lesson")
    newest, *_ = CheckpointRepository(store).names(LATER_S)
    write_as(store, newest, number)
    before = objects(store)

    codes = driver.run_ranks(1, DDP_SCRIPT, "40")

    assert codes == [Exit.UNUSABLE_STORE]
    assert objects(store) == before
    reported = driver.reports(ReportKind.WORKER_LEFT)[-1].body["detail"]
    assert f"checkpoint {newest} cannot be read: {why}" in str(reported)


@pytest.mark.parametrize("is_sealed", [True, False])
def test_format_is_checked_before_the_digest(tmp_path: Path, is_sealed: bool) -> None:
    store = MemoryStore()
    RankGroup(store, tmp_path).save(10)
    [name] = CheckpointRepository(store).names(LATER_S)
    write_as(store, name, 3, is_sealed=is_sealed)

    with pytest.raises(IncompatibleCheckpoint, match="it has checkpoint format 3"):
        CheckpointRepository(store).check_newest(LATER_S)


@pytest.mark.parametrize("bit", range(8))
def test_commit_with_a_flipped_bit_in_its_format_is_damaged(tmp_path: Path, bit: int) -> None:
    """It is skipped, while a commit of another format would end the job."""
    store = MemoryStore()
    group = RankGroup(store, tmp_path)
    group.save(10)
    group.save(20)
    newest, older = CheckpointRepository(store).names(LATER_S)
    flipped = bytearray(store.get(newest.commit_key))
    flipped[flipped.index(b'"format": ') + len(b'"format": ')] ^= 1 << bit
    store.put(newest.commit_key, bytes(flipped))

    CheckpointRepository(store).check_newest(LATER_S)

    assert resume(store).name == older


def test_damaged_checkpoint_does_not_hide_an_older_format(tmp_path: Path) -> None:
    store = MemoryStore()
    group = RankGroup(store, tmp_path)
    group.save(10)
    group.save(20)
    newest, older = CheckpointRepository(store).names(LATER_S)
    store.put(newest.commit_key, b"{")
    write_as(store, older, 1)

    with pytest.raises(IncompatibleCheckpoint):
        CheckpointRepository(store).check_newest(LATER_S)
    with pytest.raises(IncompatibleCheckpoint):
        resume(store)


def test_format_off_the_lineage_does_not_stop_a_start(tmp_path: Path) -> None:
    store = MemoryStore()
    group = RankGroup(store, tmp_path, ranks=1)
    group.save(10)
    group.save(20)
    late, kept = CheckpointRepository(store).names(LATER_S)
    CheckpointRepository(store).tokens.record_start(2, 10, None, Lineage(), LATER_S)
    write_as(store, late, 3)

    CheckpointRepository(store).check_newest(LATER_S)

    assert resume(store, 3).name == kept


def test_pruning_keeps_an_unreadable_format(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = MemoryStore()
    group = RankGroup(store, tmp_path, keep=2)
    group.save(10)
    [name] = CheckpointRepository(store).names(LATER_S)
    write_as(store, name, 3)
    before = {key: store.objects[key] for key in store.list(str(name))}

    for step in (20, 30, 40, 50):
        group.save(step)

    assert [made.step for made in CheckpointRepository(store).names(LATER_S)] == [50, 40, 10]
    assert {key: store.objects[key] for key in store.list(str(name))} == before
    assert capsys.readouterr().err.count(f"checkpoint {name} is kept: {NEWER}") == 1


def test_parent_with_a_newer_format_is_refused(tmp_path: Path) -> None:
    parent_store, own = MemoryStore(), MemoryStore()
    RankGroup(parent_store, tmp_path).save(10)
    [name] = CheckpointRepository(parent_store).names(LATER_S)
    write_as(parent_store, name, 3)
    parent = ParentJob("elder", CheckpointRepository(parent_store))
    tracked = Replicated({"model": Fresh()})

    with pytest.raises(IncompatibleCheckpoint) as refused:
        restore(CheckpointRepository(own), alone(0, 1), tracked, 1, LATER_S, parent_job=parent)

    assert str(refused.value) == f"parent job elder: checkpoint {name} cannot be read: {NEWER}"
    assert own.list("starts/") == []


def test_listing_and_verifying_state_the_format(tmp_path: Path) -> None:
    store = MemoryStore()
    RankGroup(store, tmp_path).save(10)
    [name] = CheckpointRepository(store).names(LATER_S)
    write_as(store, name, 3)

    [listed] = list_checkpoints(CheckpointRepository(store))

    assert NEWER in (listed.flaw or "")
    assert NEWER in (verify(CheckpointRepository(store), name) or "")


def test_checkpoint_of_another_job_is_refused(tmp_path: Path) -> None:
    first = RunDriver(tmp_path)
    assert first.run_ranks(1, DDP_SCRIPT, "20") == [Exit.DONE]
    shutil.copytree(tmp_path / "store" / "lesson", tmp_path / "store" / "other")
    other = RunDriver(tmp_path, extra={"HOLDFAST_JOB": "other"}, attempt=1)
    store = DirectoryStore(tmp_path / "store" / "other")
    before = objects(store)

    codes = other.run_ranks(1, DDP_SCRIPT, "40")
    after = objects(store)
    for name in CheckpointRepository(store).names(LATER_S):
        forget_job(store, name)
    again = other.run_ranks(1, DDP_SCRIPT, "40")

    assert (codes, after) == ([Exit.UNUSABLE_STORE], before)
    reported = other.reports(ReportKind.WORKER_LEFT)[1].body["detail"]
    assert "was saved by job lesson, and this is job other: to continue from job lesson" in str(
        reported
    )
    assert again == [Exit.DONE]
    started = other.reports(ReportKind.TRAINING_STARTED)[-1]
    assert started.body["step"] == 20

"""A job continues from the checkpoints of its parent job without changing them."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast_worker.checkpoint.metadata import PartialLoadError
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.checkpoint.restore import ParentJob, RestoreResult, restore
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.storage.base import StoreError, StoreRefused
from worker.support.run_driver import DDP_SCRIPT, TOTAL, RunDriver
from worker.support.stores import (
    LATER_S,
    Fresh,
    MemoryStore,
    RankGroup,
    Replicated,
    alone,
    garble,
    resume,
)

ENDS_AT_26 = ("--error", "26")


@pytest.fixture
def parent_store(tmp_path: Path) -> MemoryStore:
    """The store of an ended parent job with two checkpoints of two ranks."""
    store = MemoryStore()
    group = RankGroup(store, tmp_path / "elder")
    group.save(10)
    group.save(20)
    return store


def start(own: MemoryStore, parent_store: MemoryStore, fresh: Fresh | None = None) -> RestoreResult:
    """Start the next attempt of the continuing job, up to its first step."""
    archive = CheckpointRepository(own)
    epoch = archive.tokens.acquire_next("0a", LATER_S)
    tracked = Replicated({"model": fresh or Fresh()})
    parent = ParentJob("elder", CheckpointRepository(parent_store))
    return restore(archive, alone(0, 1), tracked, epoch, LATER_S, parent_job=parent)


def names(store: MemoryStore) -> list[CheckpointName]:
    return CheckpointRepository(store).names(LATER_S)


def test_job_without_checkpoints_starts_at_its_parents_newest(
    parent_store: MemoryStore,
) -> None:
    """One rank reads a checkpoint of two ranks."""
    own, fresh, before = MemoryStore(), Fresh(), dict(parent_store.objects)

    restored = start(own, parent_store, fresh)

    assert restored.name == names(parent_store)[0]
    assert restored.checkpoint == f"elder/{restored.name}"
    assert restored.passed_over == []
    assert sorted(restored.owns) == [0, 1]
    assert all((tensor == 20).all() for tensor in fresh.tensors.values())
    assert parent_store.objects == before
    assert own.list("starts/") == ["starts/000000000001-000000000020"]
    assert restored.checkpoint.encode() in own.objects["starts/000000000001-000000000020"]


def test_own_checkpoints_precede_those_of_the_parent(
    parent_store: MemoryStore, tmp_path: Path
) -> None:
    own, fresh = MemoryStore(), Fresh()
    start(own, parent_store)
    RankGroup(own, tmp_path / "own").save(25)

    restored = start(own, parent_store, fresh)

    assert restored.checkpoint == str(names(own)[0])
    assert all((tensor == 25).all() for tensor in fresh.tensors.values())


def test_attempt_lost_before_a_commit_restarts_at_the_parent(
    parent_store: MemoryStore,
) -> None:
    own = MemoryStore()
    first = start(own, parent_store)

    second = start(own, parent_store)

    assert second.checkpoint == first.checkpoint
    assert own.list("starts/") == ["starts/000000000002-000000000020"]


def test_parent_is_used_if_all_own_checkpoints_are_damaged(
    parent_store: MemoryStore, tmp_path: Path
) -> None:
    own, fresh = MemoryStore(), Fresh()
    start(own, parent_store)
    RankGroup(own, tmp_path / "own").save(25)
    [late] = names(own)
    garble(own, late.part_key(0, 0))

    restored = start(own, parent_store, fresh)

    assert restored.checkpoint == f"elder/{names(parent_store)[0]}"
    assert [over.checkpoint for over in restored.passed_over] == [str(late)]
    assert restored.damaged == [late]
    assert all((tensor == 20).all() for tensor in fresh.tensors.values())
    assert CheckpointRepository(own).tokens.lineage(LATER_S).superseding_start(late)


@pytest.mark.parametrize("is_midway", [True, False])
def test_damaged_parent_checkpoint_is_skipped_but_not_marked(
    parent_store: MemoryStore, is_midway: bool
) -> None:
    newest, older = names(parent_store)
    garble(parent_store, newest.part_key(1, 0) if is_midway else newest.commit_key)
    own, fresh, before = MemoryStore(), Fresh(), dict(parent_store.objects)

    restored = start(own, parent_store, fresh)

    assert restored.checkpoint == f"elder/{older}"
    assert [over.checkpoint for over in restored.passed_over] == [f"elder/{newest}"]
    assert restored.damaged == []
    assert all((tensor == 10).all() for tensor in fresh.tensors.values())
    assert parent_store.objects == before
    assert bool(own.list("flawed/")) is is_midway


def test_quarantined_parent_checkpoint_is_not_read(parent_store: MemoryStore) -> None:
    newest, older = names(parent_store)
    CheckpointRepository(parent_store).quarantine.mark(newest, "it was found damaged", LATER_S)

    restored = start(MemoryStore(), parent_store)

    assert restored.checkpoint == f"elder/{older}"
    assert [(o.checkpoint, o.reason) for o in restored.passed_over] == [
        (f"elder/{newest}", "it was found damaged")
    ]


def test_parent_checkpoint_off_the_lineage_is_not_used(
    parent_store: MemoryStore, tmp_path: Path
) -> None:
    """The second attempt began at step 20; the fenced first one saved step 30 after that."""
    resume(parent_store, 2)
    late = MemoryStore()
    RankGroup(late, tmp_path / "late").save(30)
    parent_store.objects |= {
        key: late.objects[key] for key in late.objects if CheckpointName.of_key(key)
    }
    assert names(parent_store)[0].step == 30

    restored = start(MemoryStore(), parent_store)

    assert restored.name
    assert restored.name.step == 20


def test_without_a_usable_parent_checkpoint_starts_at_step_0(
    parent_store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in names(parent_store):
        parent_store.delete(name.record_key(0))
    own = MemoryStore()

    restored = start(own, parent_store)

    assert (restored.name, restored.checkpoint) == (None, None)
    assert len(restored.passed_over) == 2
    assert "no checkpoint of job elder is usable: training begins at step 0" in (
        capsys.readouterr().err
    )
    assert own.list("starts/") == ["starts/000000000001-000000000000"]


def test_all_damaged_midway_makes_the_next_start_at_step_0(
    parent_store: MemoryStore,
) -> None:
    """The job has to record damage of its parent's checkpoints in its own store."""
    for name in names(parent_store):
        garble(parent_store, name.part_key(1, 0))
    own, fresh, before = MemoryStore(), Fresh(), dict(parent_store.objects)

    with pytest.raises(PartialLoadError, match=r"elder/step-10-e1-.* is damaged .* start again"):
        start(own, parent_store)
    restored = start(own, parent_store, fresh)

    assert restored.name is None
    assert len(restored.passed_over) == 2
    assert not any(tensor.any() for tensor in fresh.tensors.values())
    assert parent_store.objects == before


def test_refusing_parent_store_does_not_count_as_empty() -> None:
    class RefusingStore(MemoryStore):
        def list(self, prefix: str) -> list[str]:
            raise StoreRefused(f"AccessDenied: {prefix}")

    own = MemoryStore()

    with pytest.raises(StoreError, match="checkpoints of job elder: AccessDenied"):
        start(own, RefusingStore())

    assert not own.list("starts/")


def successor(path: Path) -> RunDriver:
    """A job in the same store that continues from the job at `path`."""
    own = {"HOLDFAST_JOB": "again", "HOLDFAST_FROM": "lesson"}
    return RunDriver(path / "again", extra={**own, "HOLDFAST_STORE": f"file://{path}/store"})


@pytest.mark.parametrize("ranks", [1, 2])
def test_failed_script_continues_as_another_job(
    tmp_path: Path, undisturbed: RunDriver, ranks: int
) -> None:
    """Bit for bit with as many ranks, and from the same step with another number."""
    driver = RunDriver(tmp_path)
    failed = driver.run_ranks(2, DDP_SCRIPT, TOTAL, *ENDS_AT_26)
    store = tmp_path / "store" / "lesson"
    left = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    next_job = successor(tmp_path)

    codes = next_job.run_ranks(ranks, DDP_SCRIPT, TOTAL)

    [started] = next_job.reports(ReportKind.TRAINING_STARTED)
    saved = [report.body["step"] for report in next_job.reports(ReportKind.CHECKPOINT_COMMITTED)]
    assert failed == [Exit.FAILED, Exit.FAILED]
    assert codes == [0] * ranks
    assert (
        10 <= started.body["step"] < 26
    )  # A save waits for the previous one, and may be a step late.
    assert str(started.body["restored_from"]).startswith(f"lesson/step-{started.body['step']}-e1-")
    assert saved[-1] == int(TOTAL)
    assert {p: p.read_bytes() for p in store.rglob("*") if p.is_file()} == left
    if ranks == 2:
        assert next_job.result == undisturbed.result


def test_job_with_no_steps_left_commits_its_own_last_checkpoint(tmp_path: Path) -> None:
    """The parent failed after its training, for example in an evaluation."""
    driver = RunDriver(tmp_path)
    fallen = driver.run_ranks(1, DDP_SCRIPT, "20", "--after", "3")
    next_job = successor(tmp_path)

    codes = next_job.run_ranks(1, DDP_SCRIPT, "20")

    [saved] = next_job.reports(ReportKind.CHECKPOINT_COMMITTED)
    assert (fallen, codes) == ([3], [0])
    assert saved.body["step"] == 20
    assert next_job.result == driver.result

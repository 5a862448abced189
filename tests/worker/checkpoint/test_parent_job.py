"""A job continues from the checkpoints of another one, and does not change them."""

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
def elder(tmp_path: Path) -> MemoryStore:
    """The store of a job that has ended: two checkpoints of two ranks."""
    store = MemoryStore()
    group = RankGroup(store, tmp_path / "elder")
    group.save(10)
    group.save(20)
    return store


def start(own: MemoryStore, elder: MemoryStore, fresh: Fresh | None = None) -> RestoreResult:
    """The next placement of the job that continues, up to its first step."""
    archive = CheckpointRepository(own)
    epoch = archive.tokens.acquire_next("0a", LATER_S)
    tracked = Replicated({"model": fresh or Fresh()})
    forebear = ParentJob("elder", CheckpointRepository(elder))
    return restore(archive, alone(0, 1), tracked, epoch, LATER_S, parent_job=forebear)


def names(store: MemoryStore) -> list[CheckpointName]:
    return CheckpointRepository(store).names(LATER_S)


def test_job_without_checkpoints_starts_at_its_parents_newest(
    elder: MemoryStore,
) -> None:
    """One rank reads what two have saved."""
    own, fresh, before = MemoryStore(), Fresh(), dict(elder.objects)

    restored = start(own, elder, fresh)

    assert restored.name == names(elder)[0]
    assert restored.checkpoint == f"elder/{restored.name}"
    assert restored.passed_over == []
    assert sorted(restored.owns) == [0, 1]
    assert all((tensor == 20).all() for tensor in fresh.tensors.values())
    assert elder.objects == before
    assert own.list("starts/") == ["starts/000000000001-000000000020"]
    assert restored.checkpoint.encode() in own.objects["starts/000000000001-000000000020"]


def test_its_own_checkpoints_count_more(elder: MemoryStore, tmp_path: Path) -> None:
    own, fresh = MemoryStore(), Fresh()
    start(own, elder)
    RankGroup(own, tmp_path / "own").save(25)

    restored = start(own, elder, fresh)

    assert restored.checkpoint == str(names(own)[0])
    assert all((tensor == 25).all() for tensor in fresh.tensors.values())


def test_attempt_lost_before_a_commit_restarts_at_the_parent(
    elder: MemoryStore,
) -> None:
    own = MemoryStore()
    first = start(own, elder)

    second = start(own, elder)

    assert second.checkpoint == first.checkpoint
    assert own.list("starts/") == ["starts/000000000002-000000000020"]


def test_own_ones_that_are_all_damaged_count_no_more_than_none(
    elder: MemoryStore, tmp_path: Path
) -> None:
    own, fresh = MemoryStore(), Fresh()
    start(own, elder)
    RankGroup(own, tmp_path / "own").save(25)
    [late] = names(own)
    garble(own, late.part_key(0, 0))

    restored = start(own, elder, fresh)

    assert restored.checkpoint == f"elder/{names(elder)[0]}"
    assert [over.checkpoint for over in restored.passed_over] == [str(late)]
    assert restored.damaged == [late]
    assert all((tensor == 20).all() for tensor in fresh.tensors.values())
    assert CheckpointRepository(own).tokens.lineage(LATER_S).superseding_start(late)


@pytest.mark.parametrize("is_midway", [True, False])
def test_damaged_parent_checkpoint_is_skipped_but_not_marked(
    elder: MemoryStore, is_midway: bool
) -> None:
    newest, older = names(elder)
    garble(elder, newest.part_key(1, 0) if is_midway else newest.commit_key)
    own, fresh, before = MemoryStore(), Fresh(), dict(elder.objects)

    restored = start(own, elder, fresh)

    assert restored.checkpoint == f"elder/{older}"
    assert [over.checkpoint for over in restored.passed_over] == [f"elder/{newest}"]
    assert restored.damaged == []
    assert all((tensor == 10).all() for tensor in fresh.tensors.values())
    assert elder.objects == before
    assert bool(own.list("flawed/")) is is_midway


def test_quarantined_parent_checkpoint_is_not_read(elder: MemoryStore) -> None:
    newest, older = names(elder)
    CheckpointRepository(elder).quarantine.mark(newest, "it was found damaged", LATER_S)

    restored = start(MemoryStore(), elder)

    assert restored.checkpoint == f"elder/{older}"
    assert [(o.checkpoint, o.reason) for o in restored.passed_over] == [
        (f"elder/{newest}", "it was found damaged")
    ]


def test_parent_checkpoint_off_the_lineage_is_not_used(elder: MemoryStore, tmp_path: Path) -> None:
    """Its second placement began at step 20; the first one, which could not be ended, saved step 30 after that."""
    resume(elder, 2)
    late = MemoryStore()
    RankGroup(late, tmp_path / "late").save(30)
    elder.objects |= {key: late.objects[key] for key in late.objects if CheckpointName.of_key(key)}
    assert names(elder)[0].step == 30

    restored = start(MemoryStore(), elder)

    assert restored.name
    assert restored.name.step == 20


def test_without_a_usable_parent_checkpoint_starts_at_step_0(
    elder: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in names(elder):
        elder.delete(name.record_key(0))
    own = MemoryStore()

    restored = start(own, elder)

    assert (restored.name, restored.checkpoint) == (None, None)
    assert len(restored.passed_over) == 2
    assert "no checkpoint of job elder is usable: training begins at step 0" in (
        capsys.readouterr().err
    )
    assert own.list("starts/") == ["starts/000000000001-000000000000"]


def test_all_damaged_midway_makes_the_next_start_at_step_0(
    elder: MemoryStore,
) -> None:
    """What this one has learned of the forebear it has to keep in a store of its own."""
    for name in names(elder):
        garble(elder, name.part_key(1, 0))
    own, fresh, before = MemoryStore(), Fresh(), dict(elder.objects)

    with pytest.raises(PartialLoadError, match=r"elder/step-10-e1-.* is damaged .* start again"):
        start(own, elder)
    restored = start(own, elder, fresh)

    assert restored.name is None
    assert len(restored.passed_over) == 2
    assert not any(tensor.any() for tensor in fresh.tensors.values())
    assert elder.objects == before


def test_refusing_parent_store_does_not_count_as_empty() -> None:
    class Closed(MemoryStore):
        def list(self, prefix: str) -> list[str]:
            raise StoreRefused(f"AccessDenied: {prefix}")

    own = MemoryStore()

    with pytest.raises(StoreError, match="checkpoints of job elder: AccessDenied"):
        start(own, Closed())

    assert not own.list("starts/")


def successor(path: Path) -> RunDriver:
    """A job that continues from the one whose stage is at this path, over the same store."""
    own = {"HOLDFAST_JOB": "again", "HOLDFAST_FROM": "lesson"}
    return RunDriver(path / "again", extra={**own, "HOLDFAST_STORE": f"file://{path}/store"})


@pytest.mark.parametrize("ranks", [1, 2])
def test_failed_script_continues_as_another_job(
    tmp_path: Path, undisturbed: RunDriver, ranks: int
) -> None:
    """With as many ranks to the last bit; with another number from the same step."""
    driver = RunDriver(tmp_path)
    failed = driver.run_ranks(2, DDP_SCRIPT, TOTAL, *ENDS_AT_26)
    store = tmp_path / "store" / "lesson"
    left = {path: path.read_bytes() for path in store.rglob("*") if path.is_file()}
    onward = successor(tmp_path)

    codes = onward.run_ranks(ranks, DDP_SCRIPT, TOTAL)

    [started] = onward.reports(ReportKind.TRAINING_STARTED)
    saved = [report.body["step"] for report in onward.reports(ReportKind.CHECKPOINT_COMMITTED)]
    assert failed == [Exit.FAILED, Exit.FAILED]
    assert codes == [0] * ranks
    assert (
        10 <= started.body["step"] < 26
    )  # A save waits for the one before, and may come a step late.
    assert str(started.body["restored_from"]).startswith(f"lesson/step-{started.body['step']}-e1-")
    assert saved[-1] == int(TOTAL)
    assert {p: p.read_bytes() for p in store.rglob("*") if p.is_file()} == left
    if ranks == 2:
        assert onward.result == undisturbed.result


def test_job_with_no_steps_left_commits_its_own_last_checkpoint(tmp_path: Path) -> None:
    """The forebear fell after its training, as it evaluated, say."""
    driver = RunDriver(tmp_path)
    fallen = driver.run_ranks(1, DDP_SCRIPT, "20", "--after", "3")
    onward = successor(tmp_path)

    codes = onward.run_ranks(1, DDP_SCRIPT, "20")

    [saved] = onward.reports(ReportKind.CHECKPOINT_COMMITTED)
    assert (fallen, codes) == ([3], [0])
    assert saved.body["step"] == 20
    assert onward.result == driver.result

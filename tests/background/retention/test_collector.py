"""The checkpoint collector: which checkpoints it deletes, in which order, and its events."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from holdfast.domain.events import Event, Removal
from holdfast.domain.jobs.job import Job
from holdfast.store.journal import Journal
from holdfast_worker.protocol.checkpoint_keys import quarantine_key
from sqlalchemy import Engine
from support.events import lost, ready, restoring, saved, training
from support.fakes import FixedClock
from support.retention import GRACE_S, JOB, NewRetentionHarness, RetentionHarness, name


class ProcessKilled(BaseException):
    """The process was killed; no code remains that could catch this exception."""


def test_superseded_checkpoints_are_deleted_after_grace(
    new_harness: NewRetentionHarness,
) -> None:
    harness = new_harness()
    harness.save_five()

    harness.visit(0)
    at_once = harness.committed()
    for _ in range(10):
        harness.visit()

    assert at_once == [10, 20, 30, 40, 50]
    assert harness.committed() == harness.data() == [40, 50]
    assert [step for _, steps in harness.told_gone() for step in steps] == [10, 20, 30]
    assert {event.removal for event in harness.removals()} == {Removal.SUPERSEDED}
    assert sum(event.size_bytes for event in harness.removals()) == 60
    assert harness.tidiness.error is None


def test_deletions_of_one_run_are_one_event(new_harness: NewRetentionHarness) -> None:
    harness = new_harness()
    harness.save_five()

    harness.visit(GRACE_S)

    assert harness.told_gone() == [("superseded", [10, 20, 30])]
    assert harness.removals()[0].at == harness.clock.now()


def test_best_checkpoint_follows_the_report_or_the_commit(
    new_harness: NewRetentionHarness,
) -> None:
    best = {"metric": "loss", "mode": "min", "count": 2}
    harness = new_harness(keep={"last": 2, "best": best})
    harness.bucket_objects.begin(1, 0)
    for step, loss in [
        (10, 0.4),
        (20, 0.1),
        (30, None),
        (40, 0.2),
        (50, 0.3),
        (60, 0.5),
        (70, 0.6),
    ]:
        harness.save(step, is_told=step != 20, loss=loss)

    harness.visit(GRACE_S)

    assert harness.committed() == [20, 40, 60, 70]


def test_unreadable_commit_does_not_count(
    new_harness: NewRetentionHarness,
) -> None:
    harness = new_harness()
    harness.bucket_objects.begin(1, 0)
    for step in (10, 20, 30):
        harness.save(step, is_told=False)
    harness.bucket_objects.put(name(30).commit_key, b'{"size_bytes": 20}')

    harness.visit(GRACE_S)

    assert harness.committed() == [10, 20, 30]


@pytest.mark.parametrize("step", [10, 50])
def test_unknown_checkpoint_format_blocks_all_deletions(
    new_harness: NewRetentionHarness, step: int
) -> None:
    """This holds for reported and unreported checkpoints, newest or due for deletion."""
    harness = new_harness()
    harness.save_five()
    harness.bucket_objects.put(
        name(step).commit_key, json.dumps({"format": 3, "sha256": "of 3"}).encode()
    )

    for _ in range(10):
        harness.visit(GRACE_S)

    assert harness.committed() == harness.data() == [10, 20, 30, 40, 50]
    assert harness.removals() == []
    assert harness.tidiness.error == (
        f"s3://bucket/runs/job-1: no checkpoint is deleted because {name(step)} cannot be read: "
        "it has checkpoint format 3, and this version reads up to 2: "
        "install the Holdfast version that wrote it, or a newer one, for the service and its nodes"
    )


def test_incomplete_checkpoint_does_not_count_as_kept(
    new_harness: NewRetentionHarness,
) -> None:
    harness = new_harness()
    harness.save_five()
    del harness.bucket_objects.objects[name(50).part_key(1, 0)]

    harness.visit(GRACE_S)

    assert harness.committed() == [30, 40, 50]


def test_quarantined_checkpoint_is_deleted_with_its_mark(
    new_harness: NewRetentionHarness,
) -> None:
    harness = new_harness()
    harness.save_five()
    for step in (20, 50):
        harness.bucket_objects.put(
            quarantine_key(name(step)), b'{"reason": "does not have the digest"}'
        )

    harness.visit(GRACE_S)
    first = harness.committed()
    harness.visit(86_400)

    assert first == [30, 40, 50]
    assert harness.bucket_objects.keys("flawed/") == [quarantine_key(name(50))]


def test_quarantine_mark_of_a_parent_stays_until_a_commit(
    new_harness: NewRetentionHarness,
) -> None:
    """A job that continues from a parent's checkpoint has to know which of them is unreadable.

    It may wait for long.
    """
    harness = new_harness()
    harness.bucket_objects.put(quarantine_key(name(90)), b'{"reason": "does not have the digest"}')

    harness.visit(2 * 86_400)
    alone = harness.bucket_objects.keys("flawed/")
    harness.save_five()
    harness.visit(2 * 86_400)

    assert alone == [quarantine_key(name(90))]
    assert harness.bucket_objects.keys("flawed/") == []


def test_no_checkpoint_is_deleted_during_a_restore(
    new_harness: NewRetentionHarness,
) -> None:
    harness = new_harness()
    harness.save_five()
    harness.tell(lost(400), ready(500, attempt=2), restoring(510, attempt=2))

    harness.visit(GRACE_S)
    before_end = harness.committed()
    harness.tell(training(900, attempt=2, step=50))
    harness.visit(600)

    assert before_end == [10, 20, 30, 40, 50]
    assert harness.committed() == [40, 50]


def test_fencing_token_without_a_start_blocks_deletion(
    new_harness: NewRetentionHarness,
) -> None:
    harness = new_harness()
    harness.save_five()
    harness.bucket_objects.put("claims/000000000002")

    harness.visit(GRACE_S)
    before_end = harness.committed()
    harness.bucket_objects.begin(2, 50)
    harness.visit(600)

    assert before_end == [10, 20, 30, 40, 50]
    assert harness.committed() == [40, 50]


def test_orphaned_uploads_are_deleted_and_active_ones_stay(
    new_harness: NewRetentionHarness,
) -> None:
    harness = new_harness()
    harness.save_five()
    harness.upload(35)
    harness.clock.advance(GRACE_S)
    harness.upload(60)
    orphan = "commits/.draft-ab12-000000000070-e1-00000001.json"
    harness.bucket_objects.put(orphan)
    harness.bucket_objects.put("probes/ab12")

    harness.visit(0)
    first, probes = harness.data(), harness.bucket_objects.keys("probes/")
    harness.visit(86_400)

    assert first == [40, 50, 60]
    assert probes == ["probes/ab12"]
    assert harness.data() == [40, 50]
    assert not {orphan, "probes/ab12"} & set(harness.bucket_objects.keys())
    assert [each for each in harness.told_gone() if each[0] == "dead_upload"] == [
        ("dead_upload", [35]),
        ("dead_upload", [60]),
    ]


def test_late_commit_of_an_upload_is_not_deleted(
    new_harness: NewRetentionHarness,
) -> None:
    """A stale listing does not name the checkpoint; the store itself does."""
    harness = new_harness()
    harness.save_five()
    late = harness.upload(60)

    def commit_it(operation: str, key: str) -> None:
        if (operation, key) == ("has", late.commit_key):
            harness.bucket_objects.put(late.commit_key, b"{}")

    harness.janitor = harness.new_janitor(commit_it)
    harness.visit(86_400)

    assert 60 in harness.data()


def test_off_lineage_checkpoints_are_deleted_as_such(
    new_harness: NewRetentionHarness,
) -> None:
    harness = new_harness()
    harness.save_five()
    harness.bucket_objects.begin(2, 20)
    harness.tell(lost(400), ready(500, attempt=2), training(510, attempt=2, step=20))
    harness.save(25, 2)

    harness.visit(GRACE_S)

    assert harness.committed() == [20, 25]
    assert harness.told_gone() == [("superseded", [10]), ("off_lineage", [30, 40, 50])]


# Killed at any operation


def test_collector_killed_anywhere_leaves_whole_checkpoints(
    tmp_path: Path, pattern: Path, open_engine: Callable[[str], Engine]
) -> None:
    left_over = set()
    for deadly in range(100):
        engine = open_engine(f"sqlite:///{shutil.copy(pattern, tmp_path / f'{deadly}.db')}")
        harness = RetentionHarness(engine, FixedClock())
        harness.save_five()
        harness.upload(35)
        countdown = iter(range(deadly + 1))

        def die(operation: str, key: str, countdown: Any = countdown, deadly: int = deadly) -> None:
            if next(countdown) == deadly:
                raise ProcessKilled

        harness.clock.advance(GRACE_S)
        lease, *_ = harness.upkeep.claim(harness.clock.now(), 600, 9)
        try:
            harness.new_janitor(die).collect(lease)
        except ProcessKilled:
            pass
        else:
            break
        whole = [
            s
            for s in harness.committed()
            if len(harness.bucket_objects.keys(name(s).data_prefix)) == 4
        ]
        assert whole == harness.committed()
        assert whole[-2:] == [40, 50]
        left_over.add(tuple(harness.data()))
        for _ in range(3):
            harness.janitor = harness.new_janitor()
            harness.visit(600)
        assert harness.committed() == harness.data() == [40, 50]
        gone = sorted(step for _, steps in harness.told_gone() for step in steps)
        assert gone in ([10, 20, 30], [10, 20, 30, 35])
        assert len(gone) == len(set(gone))
    else:
        pytest.fail("no death came late enough to be survived")
    assert len(left_over) > 3


def test_externally_deleted_checkpoint_is_recorded_once(new_harness: NewRetentionHarness) -> None:
    harness = new_harness(keep=5)
    harness.save_five()
    for key in (name(20).commit_key, *harness.bucket_objects.keys(name(20).data_prefix)):
        del harness.bucket_objects.objects[key]

    harness.visit(GRACE_S)
    harness.visit(600)

    assert harness.told_gone() == [("found_gone", [20])]
    assert harness.removals()[0].size_bytes == 20


def test_stale_list_does_not_mark_a_checkpoint_as_missing(
    new_harness: NewRetentionHarness,
) -> None:
    harness = new_harness(keep=5)
    harness.save_five()
    hidden = harness.bucket_objects.objects.pop(name(50).commit_key)

    def show(operation: str, key: str) -> None:
        if operation == "has":
            harness.bucket_objects.objects[name(50).commit_key] = hidden

    harness.janitor = harness.new_janitor(show)
    harness.visit(GRACE_S)

    assert harness.told_gone() == []


def test_just_reported_checkpoint_is_not_yet_missing(new_harness: NewRetentionHarness) -> None:
    harness = new_harness()
    harness.save_five()
    harness.tell(saved(301, step=60, name=str(name(60))))

    harness.visit(0)

    assert harness.told_gone() == []


def test_concurrent_worker_report_is_not_overwritten(new_harness: NewRetentionHarness) -> None:
    harness = new_harness()
    harness.save_five()
    reports = iter([saved(600, step=55, name=str(name(55)))])

    class InterleavingJournal(Journal):
        """A worker reports just before the collector appends its first event."""

        def append(self, job: Job, events: Sequence[Event]) -> Job:
            if event := next(reports, None):
                super().append(self.read(JOB), [event])
            return super().append(job, events)

    harness.journal = InterleavingJournal(harness.engine, harness.clock)
    harness.janitor = harness.new_janitor()
    harness.visit(GRACE_S)

    assert next(reports, None) is None
    assert harness.told_gone() == [("superseded", [10, 20, 30])]


def test_concurrent_collectors_record_each_deletion_once(new_harness: NewRetentionHarness) -> None:
    harness = new_harness()
    harness.save_five()
    harness.clock.advance(GRACE_S)
    [lease] = harness.upkeep.claim(harness.clock.now(), 600, 9)
    other = harness.new_janitor()

    def interfere(operation: str, key: str) -> None:
        if (operation, key) == ("delete", name(20).commit_key):
            other.collect(lease)

    harness.new_janitor(interfere).collect(lease)

    assert harness.committed() == harness.data() == [40, 50]
    gone = sorted(step for _, steps in harness.told_gone() for step in steps)
    assert gone == [10, 20, 30]

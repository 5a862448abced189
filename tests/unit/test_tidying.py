"""The janitor: what goes, in which order, and what is written down of it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from fakes import FixedClock
from histories import lost, ready, restoring, saved, training
from holdfast.domain.events import Event, Removal
from holdfast.domain.jobs.job import Job
from holdfast.store.journal import Journal
from holdfast_worker.protocol.checkpoint_keys import quarantine_key
from sqlalchemy import Engine
from yard import GRACE_S, JOB, NewYard, Yard, name


class Gone(BaseException):
    """The process is gone; nobody is left to catch this."""


def test_what_is_not_to_be_kept_goes_after_the_grace_and_is_written_down(new_yard: NewYard) -> None:
    yard = new_yard()
    yard.save_five()

    yard.visit(0)
    at_once = yard.committed()
    for _ in range(10):
        yard.visit()

    assert at_once == [10, 20, 30, 40, 50]
    assert yard.committed() == yard.data() == [40, 50]
    assert [step for _, steps in yard.told_gone() for step in steps] == [10, 20, 30]
    assert {fact.removal for fact in yard.removals()} == {Removal.SUPERSEDED}
    assert sum(fact.size_bytes for fact in yard.removals()) == 60
    assert yard.tidiness.trouble is None


def test_many_that_go_in_one_visit_are_one_fact(new_yard: NewYard) -> None:
    yard = new_yard()
    yard.save_five()

    yard.visit(GRACE_S)

    assert yard.told_gone() == [("superseded", [10, 20, 30])]
    assert yard.removals()[0].at == yard.clock.now()


def test_the_best_is_told_by_what_the_worker_reported_or_by_the_commit_if_it_fell(
    new_yard: NewYard,
) -> None:
    best = {"metric": "loss", "mode": "min", "count": 2}
    yard = new_yard(keep={"last": 2, "best": best})
    yard.shed.begin(1, 0)
    for step, loss in [
        (10, 0.4),
        (20, 0.1),
        (30, None),
        (40, 0.2),
        (50, 0.3),
        (60, 0.5),
        (70, 0.6),
    ]:
        yard.save(step, is_told=step != 20, loss=loss)

    yard.visit(GRACE_S)

    assert yard.committed() == [20, 40, 60, 70]


def test_a_commit_that_cannot_be_read_is_none_of_the_best_and_counts_for_nothing(
    new_yard: NewYard,
) -> None:
    yard = new_yard()
    yard.shed.begin(1, 0)
    for step in (10, 20, 30):
        yard.save(step, is_told=False)
    yard.shed.put(name(30).commit_key, b'{"size_bytes": 20}')

    yard.visit(GRACE_S)

    assert yard.committed() == [10, 20, 30]


@pytest.mark.parametrize("step", [10, 50])
def test_nothing_goes_while_a_format_cannot_be_read(new_yard: NewYard, step: int) -> None:
    """Reported or not, and whether it is the newest or one that was to go."""
    yard = new_yard()
    yard.save_five()
    yard.shed.put(name(step).commit_key, json.dumps({"format": 3, "sha256": "of 3"}).encode())

    for _ in range(10):
        yard.visit(GRACE_S)

    assert yard.committed() == yard.data() == [10, 20, 30, 40, 50]
    assert yard.removals() == []
    assert yard.tidiness.trouble == (
        f"s3://bucket/runs/job-1: no checkpoint is removed, as {name(step)} cannot be read: "
        "it has checkpoint format 3, and this version reads up to 2: "
        "install the Holdfast version that wrote it, or a newer one, for the service and its nodes"
    )


def test_a_checkpoint_that_lost_bytes_does_not_count_as_one_to_keep(new_yard: NewYard) -> None:
    yard = new_yard()
    yard.save_five()
    del yard.shed.objects[name(50).part_key(1, 0)]

    yard.visit(GRACE_S)

    assert yard.committed() == [30, 40, 50]


def test_a_checkpoint_that_a_worker_found_damaged_does_not_count_and_its_mark_goes_with_it(
    new_yard: NewYard,
) -> None:
    yard = new_yard()
    yard.save_five()
    for step in (20, 50):
        yard.shed.put(quarantine_key(name(step)), b'{"reason": "does not have the digest"}')

    yard.visit(GRACE_S)
    first = yard.committed()
    yard.visit(86_400)

    assert first == [30, 40, 50]
    assert yard.shed.keys("flawed/") == [quarantine_key(name(50))]


def test_a_mark_of_another_jobs_checkpoint_stays_until_the_job_has_one_of_its_own(
    new_yard: NewYard,
) -> None:
    """A job that goes on from another one's has to know, however long it waits, which of them it cannot read."""
    yard = new_yard()
    yard.shed.put(quarantine_key(name(90)), b'{"reason": "does not have the digest"}')

    yard.visit(2 * 86_400)
    alone = yard.shed.keys("flawed/")
    yard.save_five()
    yard.visit(2 * 86_400)

    assert alone == [quarantine_key(name(90))]
    assert yard.shed.keys("flawed/") == []


def test_while_a_placement_looks_for_a_checkpoint_none_goes(new_yard: NewYard) -> None:
    yard = new_yard()
    yard.save_five()
    yard.tell(lost(400), ready(500, attempt=2), restoring(510, attempt=2))

    yard.visit(GRACE_S)
    meanwhile = yard.committed()
    yard.tell(training(900, attempt=2, step=50))
    yard.visit(600)

    assert meanwhile == [10, 20, 30, 40, 50]
    assert yard.committed() == [40, 50]


def test_a_claim_alone_holds_all_up_where_no_worker_can_be_heard(new_yard: NewYard) -> None:
    yard = new_yard()
    yard.save_five()
    yard.shed.put("claims/000000000002")

    yard.visit(GRACE_S)
    meanwhile = yard.committed()
    yard.shed.begin(2, 50)
    yard.visit(600)

    assert meanwhile == [10, 20, 30, 40, 50]
    assert yard.committed() == [40, 50]


def test_parts_of_dead_uploads_go_and_the_upload_under_way_stays(new_yard: NewYard) -> None:
    yard = new_yard()
    yard.save_five()
    yard.upload(35)
    yard.clock.advance(GRACE_S)
    yard.upload(60)
    stray = "commits/.draft-ab12-000000000070-e1-00000001.json"
    yard.shed.put(stray)
    yard.shed.put("probes/ab12")

    yard.visit(0)
    first, strays = yard.data(), yard.shed.keys("probes/")
    yard.visit(86_400)

    assert first == [40, 50, 60]
    assert strays == ["probes/ab12"]
    assert yard.data() == [40, 50]
    assert not {stray, "probes/ab12"} & set(yard.shed.keys())
    assert [told for told in yard.told_gone() if told[0] == "dead_upload"] == [
        ("dead_upload", [35]),
        ("dead_upload", [60]),
    ]


def test_an_upload_that_was_committed_after_all_is_a_checkpoint(new_yard: NewYard) -> None:
    """A list that comes late does not name it; the store itself does."""
    yard = new_yard()
    yard.save_five()
    late = yard.upload(60)

    def commit_it(operation: str, key: str) -> None:
        if (operation, key) == ("has", late.commit_key):
            yard.shed.put(late.commit_key, b"{}")

    yard.janitor = yard.new_janitor(commit_it)
    yard.visit(86_400)

    assert 60 in yard.data()


def test_what_a_later_attempt_left_behind_goes_with_its_reason(new_yard: NewYard) -> None:
    yard = new_yard()
    yard.save_five()
    yard.shed.begin(2, 20)
    yard.tell(lost(400), ready(500, attempt=2), training(510, attempt=2, step=20))
    yard.save(25, 2)

    yard.visit(GRACE_S)

    assert yard.committed() == [20, 25]
    assert yard.told_gone() == [("superseded", [10]), ("off_lineage", [30, 40, 50])]


# Cut off anywhere


def test_cut_off_at_any_request_it_leaves_checkpoints_that_are_whole_and_ends_up_the_same(
    tmp_path: Path, pattern: Path, open_engine: Callable[[str], Engine]
) -> None:
    left_over = set()
    for deadly in range(100):
        engine = open_engine(f"sqlite:///{shutil.copy(pattern, tmp_path / f'{deadly}.db')}")
        yard = Yard(engine, FixedClock())
        yard.save_five()
        yard.upload(35)
        countdown = iter(range(deadly + 1))

        def die(operation: str, key: str, countdown: Any = countdown, deadly: int = deadly) -> None:
            if next(countdown) == deadly:
                raise Gone

        yard.clock.advance(GRACE_S)
        turn, *_ = yard.upkeep.claim(yard.clock.now(), 600, 9)
        try:
            yard.new_janitor(die).tidy(turn)
        except Gone:
            pass
        else:
            break
        whole = [s for s in yard.committed() if len(yard.shed.keys(name(s).data_prefix)) == 4]
        assert whole == yard.committed()
        assert whole[-2:] == [40, 50]
        left_over.add(tuple(yard.data()))
        for _ in range(3):
            yard.janitor = yard.new_janitor()
            yard.visit(600)
        assert yard.committed() == yard.data() == [40, 50]
        gone = sorted(step for _, steps in yard.told_gone() for step in steps)
        assert gone in ([10, 20, 30], [10, 20, 30, 35])
        assert len(gone) == len(set(gone))
    else:
        pytest.fail("no death came late enough to be survived")
    assert len(left_over) > 3


def test_what_was_removed_by_others_is_written_down_once(new_yard: NewYard) -> None:
    yard = new_yard(keep=5)
    yard.save_five()
    for key in (name(20).commit_key, *yard.shed.keys(name(20).data_prefix)):
        del yard.shed.objects[key]

    yard.visit(GRACE_S)
    yard.visit(600)

    assert yard.told_gone() == [("found_gone", [20])]
    assert yard.removals()[0].size_bytes == 20


def test_what_a_late_list_does_not_name_is_there_if_the_store_says_so(new_yard: NewYard) -> None:
    yard = new_yard(keep=5)
    yard.save_five()
    hidden = yard.shed.objects.pop(name(50).commit_key)

    def show(operation: str, key: str) -> None:
        if operation == "has":
            yard.shed.objects[name(50).commit_key] = hidden

    yard.janitor = yard.new_janitor(show)
    yard.visit(GRACE_S)

    assert yard.told_gone() == []


def test_what_was_just_reported_is_not_missed_yet(new_yard: NewYard) -> None:
    yard = new_yard()
    yard.save_five()
    yard.tell(saved(301, step=60, name=str(name(60))))

    yard.visit(0)

    assert yard.told_gone() == []


def test_a_worker_that_speaks_meanwhile_is_not_overrun(new_yard: NewYard) -> None:
    yard = new_yard()
    yard.save_five()
    spoken = iter([saved(600, step=55, name=str(name(55)))])

    class Busy(Journal):
        """A worker speaks just before the first thing that the janitor has to say."""

        def append(self, job: Job, events: Sequence[Event]) -> Job:
            if fact := next(spoken, None):
                super().append(self.read(JOB), [fact])
            return super().append(job, events)

    yard.journal = Busy(yard.engine, yard.clock)
    yard.janitor = yard.new_janitor()
    yard.visit(GRACE_S)

    assert next(spoken, None) is None
    assert yard.told_gone() == [("superseded", [10, 20, 30])]


def test_two_that_tidy_at_once_write_everything_down_once(new_yard: NewYard) -> None:
    yard = new_yard()
    yard.save_five()
    yard.clock.advance(GRACE_S)
    [turn] = yard.upkeep.claim(yard.clock.now(), 600, 9)
    other = yard.new_janitor()

    def interfere(operation: str, key: str) -> None:
        if (operation, key) == ("delete", name(20).commit_key):
            other.tidy(turn)

    yard.new_janitor(interfere).tidy(turn)

    assert yard.committed() == yard.data() == [40, 50]
    gone = sorted(step for _, steps in yard.told_gone() for step in steps)
    assert gone == [10, 20, 30]

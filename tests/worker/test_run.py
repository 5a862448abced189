"""Whole runs of two ranks that are really killed, and end with the weights of a run that was left alone."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from holdfast_worker.wire import Exit, ReportKind

from worker.stage import LESSON, Stage

TOTAL = "40"


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A run that nobody disturbed."""
    stage = Stage(tmp_path_factory.mktemp("undisturbed"))
    assert stage.run_ranks(2, LESSON, TOTAL) == [0, 0]
    return stage


def test_an_undisturbed_run_tells_its_story(undisturbed: Stage) -> None:
    reports = [r for r in undisturbed.reports() if r.kind is not ReportKind.PROGRESS]

    assert [r.n for r in undisturbed.reports()] == list(range(1, len(undisturbed.reports()) + 1))
    assert [r.kind for r in reports] == [
        ReportKind.RESTORE_STARTED,
        ReportKind.TRAINING_STARTED,
        *[ReportKind.CHECKPOINT_COMMITTED] * 4,
        ReportKind.WORKER_LEFT,
    ]
    assert [r.body["step"] for r in reports[2:6]] == [10, 20, 30, 40]
    assert reports[5].body["weights_sha256"] == undisturbed.result
    last_point = undisturbed.reports(ReportKind.PROGRESS)[-1]
    assert last_point.body["step"] == 40


def test_a_notice_at_one_rank_makes_all_leave_on_the_same_step(
    tmp_path: Path, undisturbed: Stage
) -> None:
    stage = Stage(tmp_path)

    codes = stage.run_ranks(2, LESSON, TOTAL, "--fall", f"1:17:{signal.SIGTERM}")
    [noticed] = stage.reports(ReportKind.PREEMPTION_NOTICED)
    [left] = stage.reports(ReportKind.WORKER_LEFT)
    left_file = json.loads((stage.run_dir / "left.json").read_text())
    again = stage.run_ranks(2, LESSON, TOTAL)

    assert codes == [Exit.PREEMPTED, Exit.PREEMPTED]
    assert noticed.body["step"] == left.body["step"] == left_file["step"] == 17
    assert left.body["reason"] == left_file["reason"] == "preempted"
    assert stage.reports(ReportKind.TRAINING_STARTED)[-1].body["step"] == 17
    assert again == [0, 0]
    assert stage.result == undisturbed.result


def test_a_killed_rank_costs_no_more_than_the_steps_since_the_checkpoint(
    tmp_path: Path, undisturbed: Stage
) -> None:
    stage = Stage(tmp_path)

    codes = stage.run_ranks(2, LESSON, TOTAL, "--fall", f"1:26:{signal.SIGKILL}")
    [left] = stage.reports(ReportKind.WORKER_LEFT)
    again = stage.run_ranks(2, LESSON, TOTAL)

    assert codes == [1, -signal.SIGKILL]
    assert left.body["reason"] == "failed"
    assert stage.reports(ReportKind.TRAINING_STARTED)[-1].body["step"] == 20
    assert again == [0, 0]
    assert stage.result == undisturbed.result


def test_another_number_of_ranks_is_refused_in_words(undisturbed: Stage) -> None:
    codes = undisturbed.run_ranks(1, LESSON, "60")

    [left] = undisturbed.reports(ReportKind.WORKER_LEFT)[-1:]
    assert codes == [Exit.USAGE]
    assert "was saved by 2 ranks, and now there are 1" in undisturbed.log(0)
    assert left.body["exit_code"] == Exit.USAGE
    assert "use 2, or start with a new store" in str(left.body["detail"])

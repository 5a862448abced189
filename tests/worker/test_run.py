"""Whole runs of two ranks that are killed and end with the weights of an uninterrupted run."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import fake_s3
import pytest
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.protocol.store_usage import StoreUsage

from worker.support.run_driver import DDP_SCRIPT, TIMEOUT_S, TOTAL, RunDriver
from worker.support.s3_servers import BUCKET, credentials, moto

STRANGER = str(Path(__file__).parents[2] / "examples" / "stranger.py")
HALF_BLIND = """
import os, runpy, sys

_, rank, store, *sys.argv = sys.argv
if os.environ["RANK"] == rank:
    os.environ["HOLDFAST_STORE"] = store
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A script in which one rank reads checkpoints from another store."""

PREEMPTED = """
import os, runpy, signal, sys
from holdfast_worker import Run

_, steps, *sys.argv = sys.argv
ended = []


def end_step(run, end_step=Run._end_step):
    end_step(run)
    ended.append(run.step)
    if len(ended) == int(steps):
        os.kill(os.getpid(), signal.SIGTERM)


Run._end_step = end_step
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""A script that has a termination notice after a number of steps."""


def test_undisturbed_run_reports_its_lifecycle(undisturbed: RunDriver) -> None:
    reports = [r for r in undisturbed.reports() if r.kind is not ReportKind.PROGRESS]

    assert [r.n for r in undisturbed.reports()] == list(range(1, len(undisturbed.reports()) + 1))
    assert [r.kind for r in reports[:3]] == [
        ReportKind.RESTORE_STARTED,
        ReportKind.RUN_DESCRIBED,
        ReportKind.TRAINING_STARTED,
    ]
    assert {r.kind for r in reports[3:-1]} == {ReportKind.CHECKPOINT_COMMITTED}
    assert reports[-1].kind is ReportKind.WORKER_LEFT
    assert [reports[3].body["step"], reports[-2].body["step"]] == [10, 40]
    manifest = reports[1].body["manifest"]
    assert isinstance(manifest, dict)
    assert (manifest["world_size"], manifest["script"]) == (2, "ddp.py")
    assert reports[-2].body["weights_sha256"] == undisturbed.result
    last_point = undisturbed.reports(ReportKind.PROGRESS)[-1]
    assert last_point.body["step"] == 40


def test_reports_count_the_requests_of_all_ranks(undisturbed: RunDriver) -> None:
    [restoring] = undisturbed.reports(ReportKind.RESTORE_STARTED)
    [started] = undisturbed.reports(ReportKind.TRAINING_STARTED)
    commits = undisturbed.reports(ReportKind.CHECKPOINT_COMMITTED)

    assert restoring.body["store_place"] == "files"
    usages = [StoreUsage.parse(report.body["store_usage"]) for report in (started, *commits)]
    assert usages[0].puts > 0
    assert usages[0].gets >= 2, "each rank has seen the probe"
    sizes = [report.body["size_bytes"] for report in commits]
    for number, (before, after) in enumerate(pairwise(usages), 1):
        assert not after.is_behind(before)
        assert after.puts >= before.puts + 2, "each rank has written"
        assert after.uploaded_bytes >= sum(int(str(size)) for size in sizes[:number])


def test_notice_at_one_rank_ends_all_ranks_at_the_same_step(
    tmp_path: Path, undisturbed: RunDriver
) -> None:
    driver = RunDriver(tmp_path)

    codes = driver.run_ranks(2, DDP_SCRIPT, TOTAL, "--fall", f"1:17:{signal.SIGTERM}")
    [noticed] = driver.reports(ReportKind.PREEMPTION_NOTICED)
    [left] = driver.reports(ReportKind.WORKER_LEFT)
    left_file = json.loads((driver.run_dir / "left.json").read_text())
    again = driver.run_ranks(2, DDP_SCRIPT, TOTAL)

    assert codes == [Exit.PREEMPTED, Exit.PREEMPTED]
    assert noticed.body["step"] == left.body["step"] == left_file["step"] == 17
    assert left.body["reason"] == left_file["reason"] == "preempted"
    assert driver.reports(ReportKind.TRAINING_STARTED)[-1].body["step"] == 17
    assert again == [0, 0]
    assert driver.result == undisturbed.result


def test_killed_rank_loses_only_the_steps_since_the_checkpoint(
    tmp_path: Path, undisturbed: RunDriver
) -> None:
    driver = RunDriver(tmp_path)

    codes = driver.run_ranks(2, DDP_SCRIPT, TOTAL, "--fall", f"1:26:{signal.SIGKILL}")
    [left] = driver.reports(ReportKind.WORKER_LEFT)
    [*_, saved] = driver.reports(ReportKind.CHECKPOINT_COMMITTED)
    again = driver.run_ranks(2, DDP_SCRIPT, TOTAL)

    assert codes == [1, -signal.SIGKILL]
    assert left.body["reason"] == "failed"
    assert driver.reports(ReportKind.TRAINING_STARTED)[-1].body["step"] == saved.body["step"]
    assert again == [0, 0]
    assert driver.result == undisturbed.result


@pytest.mark.parametrize("ranks", [1, 3])
def test_run_resumes_with_another_number_of_ranks(
    tmp_path: Path, undisturbed: RunDriver, ranks: int
) -> None:
    driver = RunDriver(tmp_path, attempt=undisturbed.attempt)
    shutil.copytree(undisturbed.path / "store", tmp_path / "store")

    codes = driver.run_ranks(ranks, DDP_SCRIPT, "60")

    [started] = driver.reports(ReportKind.TRAINING_STARTED)
    assert codes == [0] * ranks
    assert started.body["step"] == int(TOTAL)
    assert driver.reports(ReportKind.CHECKPOINT_COMMITTED)[-1].body["step"] == 60


def test_resume_without_a_step_left_restores_the_generators(
    tmp_path: Path, undisturbed: RunDriver
) -> None:
    """Random numbers that the script draws after its loop are unchanged."""
    driver = RunDriver(tmp_path, attempt=undisturbed.attempt)
    shutil.copytree(undisturbed.path / "store", tmp_path / "store")

    codes = driver.run_ranks(2, DDP_SCRIPT, TOTAL)

    drawn = [(at.path / "result.drawn").read_text() for at in (driver, undisturbed)]
    assert codes == [0, 0]
    assert driver.result == undisturbed.result
    assert drawn[0] == drawn[1]


def test_service_retention_needs_no_delete_permission_on_nodes(
    tmp_path: Path, undisturbed: RunDriver
) -> None:
    with fake_s3.in_thread() as s3:
        denied = s3.fault("error", code="AccessDenied", on="DeleteObject")
        to_bucket = {**credentials(s3.endpoint), "HOLDFAST_STORE": f"s3://{BUCKET}/runs"}
        driver = RunDriver(tmp_path, extra={**to_bucket, "HOLDFAST_TIDY": "service"})
        codes = driver.run_ranks(2, DDP_SCRIPT, TOTAL)
        commits = s3.keys(BUCKET, "runs/lesson/commits/")
        delete_requests = s3.triggered(denied)
        probes = s3.keys(BUCKET, "runs/lesson/probes/")

    reports = driver.reports(ReportKind.CHECKPOINT_COMMITTED)
    assert codes == [0, 0]
    assert len(commits) == len(reports)
    assert (delete_requests, len(probes)) == (1, 1)
    assert driver.result == undisturbed.result
    metrics = reports[-1].body["metrics"]
    assert isinstance(metrics, dict)
    assert metrics["loss"]["step"] == reports[-1].body["step"]


def test_kill_during_an_upload_resumes_from_the_previous_commit(
    tmp_path: Path, undisturbed: RunDriver
) -> None:
    """The kill is in the second save; the first is complete, and rank 0 has written its shard."""
    with moto() as (endpoint, gate):
        to_bucket = {**credentials(endpoint), "HOLDFAST_STORE": f"s3://{BUCKET}/runs"}
        driver = RunDriver(tmp_path, extra=to_bucket)
        gate.close_for("0002/rank-1/000000")

        ranks = driver.start_ranks(2, DDP_SCRIPT, TOTAL)
        assert gate.is_reached.wait(TIMEOUT_S)
        for rank in ranks:
            rank.kill()
        killed = [rank.wait(TIMEOUT_S) for rank in ranks]
        gate.open()
        again = driver.run_ranks(2, DDP_SCRIPT, TOTAL)

    [_, started] = driver.reports(ReportKind.TRAINING_STARTED)
    assert killed == [-signal.SIGKILL, -signal.SIGKILL]
    assert str(started.body["restored_from"]).startswith("step-10-e1-")
    assert started.body["passed_over"] == []
    assert again == [0, 0]
    assert driver.result == undisturbed.result


def test_damaged_checkpoint_is_skipped_by_all_ranks(tmp_path: Path, undisturbed: RunDriver) -> None:
    driver = RunDriver(tmp_path, attempt=undisturbed.attempt)
    shutil.copytree(undisturbed.path / "store", tmp_path / "store")
    [newest] = (tmp_path / "store" / "lesson").glob("step-40-*")
    (newest / "rank-1" / "000000").unlink()

    codes = driver.run_ranks(2, DDP_SCRIPT, TOTAL)

    [started] = driver.reports(ReportKind.TRAINING_STARTED)
    [*_, before, _] = undisturbed.reports(ReportKind.CHECKPOINT_COMMITTED)
    assert codes == [0, 0]
    assert started.body["step"] == before.body["step"]
    assert started.body["passed_over"] == [
        {
            "checkpoint": newest.name,
            "reason": f"{newest.name}/rank-1/000000 is missing",
        }
    ]
    assert driver.result == undisturbed.result


def test_twice_preempted_user_script_ends_with_equal_weights(
    tmp_path: Path,
) -> None:
    uninterrupted, interrupted = (
        RunDriver(tmp_path / "uninterrupted"),
        RunDriver(tmp_path / "interrupted", every="auto"),
    )
    steps = "300"
    preempted = tmp_path / "preempted.py"
    preempted.write_text(PREEMPTED)

    assert uninterrupted.run_ranks(1, STRANGER, steps) == [0]
    for _ in range(2):
        codes = interrupted.run_ranks(1, str(preempted), "100", STRANGER, steps)
        assert codes == [Exit.PREEMPTED]
    assert interrupted.run_ranks(1, STRANGER, steps) == [0]

    begun = [r.body["step"] for r in interrupted.reports(ReportKind.TRAINING_STARTED)]
    left = [r.body["step"] for r in interrupted.reports(ReportKind.WORKER_LEFT)]
    assert begun == [0, 100, 200]
    assert left == [100, 200, 300]
    weights = [
        driver.reports(ReportKind.CHECKPOINT_COMMITTED)[-1].body["weights_sha256"]
        for driver in (uninterrupted, interrupted)
    ]
    assert weights[0] == weights[1]


def test_script_runs_without_a_launcher(tmp_path: Path) -> None:
    clean = {k: v for k, v in RunDriver(tmp_path).environment().items() if "HOLDFAST" not in k}

    bare = subprocess.run(
        [sys.executable, STRANGER, "5"], env=clean, capture_output=True, text=True, check=False
    )

    assert bare.returncode == 0
    assert bare.stdout == "done after 5 steps\n"
    assert bare.stderr.startswith("holdfast: no HOLDFAST_STORE: this run makes no checkpoints\n")


def test_unusable_store_is_reported_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "a-file").touch()
    driver = RunDriver(tmp_path, extra={"HOLDFAST_STORE": f"file://{tmp_path}/a-file"})

    codes = driver.run_ranks(2, DDP_SCRIPT, TOTAL)

    [left] = driver.reports(ReportKind.WORKER_LEFT)
    sentence = f"the checkpoint store file://{tmp_path}/a-file cannot be used: Not a directory"
    assert codes == [Exit.UNUSABLE_STORE, Exit.UNUSABLE_STORE]
    assert f"holdfast: {sentence}" in driver.log(0)
    assert "Traceback" not in driver.log(0) + driver.log(1)
    assert str(left.body["detail"]).startswith(sentence)
    assert not (driver.run_dir / "trained").exists()


@pytest.mark.parametrize("blind", [0, 1])
def test_checkpoint_unreadable_by_one_rank_fails_all_ranks(tmp_path: Path, blind: int) -> None:
    """Without a common error the other ranks would fail later, for a different reason."""
    driver = RunDriver(tmp_path)
    assert driver.run_ranks(2, DDP_SCRIPT, "10") == [0, 0]
    script = tmp_path / "half_blind.py"
    script.write_text(HALF_BLIND)
    elsewhere = _without_data(tmp_path / "store" / "lesson", tmp_path / "elsewhere" / "lesson")

    codes = driver.run_ranks(
        2, str(script), str(blind), f"file://{elsewhere.parent}", DDP_SCRIPT, TOTAL
    )

    [*_, left] = driver.reports(ReportKind.WORKER_LEFT)
    sentence = "the checkpoints cannot be read: step-10-"
    assert codes == [Exit.FAILED, Exit.FAILED]
    assert str(left.body["detail"]).startswith(sentence)
    assert f"holdfast: {sentence}" in driver.log(0)
    assert "Too many levels of symbolic links" in str(left.body["detail"])
    assert "Traceback" not in driver.log(0) + driver.log(1)


def _without_data(store: Path, elsewhere: Path) -> Path:
    """A view of the store without read permission for the data of checkpoints."""
    (store / "probes").mkdir()
    (store / "probes" / "kept").touch()
    elsewhere.mkdir(parents=True)
    for folder in store.iterdir():
        if folder.name.startswith("step-"):
            (elsewhere / folder.name).mkdir()
            for file in folder.iterdir():
                (elsewhere / folder.name / file.name).symlink_to(file.name)
        else:
            (elsewhere / folder.name).symlink_to(folder)
    return elsewhere

"""Whole runs of two ranks over a failing store: training continues, failures are reported."""

from __future__ import annotations

import re
import signal
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fake_s3 import FakeS3
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.cli.checkpoints import list_checkpoints, verify
from holdfast_worker.clock import now
from holdfast_worker.protocol.environment import Env, Exit
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.run_dir import RunDir
from holdfast_worker.storage.base import Store
from support.cloud_servers import FAKE_CLOUDS, CloudServer

from worker.support.run_driver import DDP_SCRIPT, TIMEOUT_S, RunDriver, wait_until
from worker.support.s3_servers import RUNS, credentials

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

LONG = "400"
"""Steps of a training that is long enough for many failing saves."""
ENDLESS = "1000000"
SETTLED = ("--settle", "100")
"""However slow the store is, there are saves in steps 10, 20, ..., 100."""
DATA = "*/step-*"
FIRST = 4
"""Objects of a checkpoint of two ranks, without the commit."""


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> RunDriver:
    """The long training script without failures."""
    driver = RunDriver(tmp_path_factory.mktemp("calm"))
    assert driver.run_ranks(2, DDP_SCRIPT, LONG) == [0, 0]
    return driver


@pytest.fixture
def driver(request: pytest.FixtureRequest, s3: FakeS3, tmp_path: Path) -> RunDriver:
    """A job with its checkpoints in the fake S3, or with the protocol of another cloud."""
    if cloud := FAKE_CLOUDS.get(getattr(request, "param", "s3")):
        server = cloud(s3)
        return RunDriver(tmp_path, extra={**server.variables, "HOLDFAST_STORE": server.runs})
    return RunDriver(tmp_path, extra={**credentials(s3.endpoint), "HOLDFAST_STORE": RUNS})


in_each_cloud = pytest.mark.parametrize(
    ("driver", "bucket"), [(name, name) for name in ("s3", "gs", "az")], indirect=True
)


def bodies(driver: RunDriver, kind: ReportKind) -> list[dict[str, Any]]:
    """Bodies of the reports of one kind, over all attempts."""
    return [dict(report.body) for report in driver.reports(kind)]


def committed(driver: RunDriver) -> list[int]:
    """Steps with a reported checkpoint."""
    return [body["step"] for body in bodies(driver, ReportKind.CHECKPOINT_COMMITTED)]


def step_of(driver: RunDriver) -> int:
    """The last reported step."""
    return max((body["step"] for body in bodies(driver, ReportKind.PROGRESS)), default=0)


@pytest.mark.full
@in_each_cloud
def test_store_failing_a_third_of_all_requests_costs_no_work(
    driver: RunDriver, s3: FakeS3, bucket: Store, uninterrupted: RunDriver
) -> None:
    s3.fault("error", code="SlowDown", chance=0.2)
    s3.fault("error", code="InternalError", chance=0.05)
    s3.fault("reset", on="PUT", at=0.5, chance=0.05)
    s3.fault("lost", on="PUT", chance=0.03)

    codes = driver.run_ranks(2, DDP_SCRIPT, LONG)

    s3.calm()
    archive = CheckpointRepository(bucket)
    kept = list_checkpoints(archive)
    reported = [body["checkpoint"] for body in bodies(driver, ReportKind.CHECKPOINT_COMMITTED)]
    assert codes == [0, 0]
    assert driver.result == uninterrupted.result
    assert reported[-1].startswith(f"step-{LONG}-")
    # Reported checkpoints exist and are whole, except those that newer ones replaced.
    assert [item.checkpoint for item in kept] == reported[::-1][: len(kept)]
    assert [verify(archive, name) for name in archive.names(float("inf"))] == [None] * len(kept)
    assert len(kept) >= min(3, len(reported))


def test_killed_ranks_resume_from_a_container_of_azurite(
    azurite: CloudServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uninterrupted: RunDriver
) -> None:
    bucket = azurite.open(monkeypatch, "killed")
    store = azurite.runs.replace("/runs", "/killed")
    driver = RunDriver(tmp_path, extra={**azurite.variables, "HOLDFAST_STORE": store})

    archive = CheckpointRepository(bucket)
    ranks = driver.start_ranks(2, DDP_SCRIPT, LONG, "--hold", "20")
    wait_until(lambda: bool(committed(driver)))
    for rank in ranks:
        rank.kill()
    codes = [rank.wait(TIMEOUT_S) for rank in ranks]
    newest, *_ = archive.names(float("inf"))
    again = driver.run_ranks(2, DDP_SCRIPT, LONG)

    names = list(archive.names(float("inf")))
    assert codes == [-signal.SIGKILL] * 2
    assert again == [0, 0]
    assert bodies(driver, ReportKind.TRAINING_STARTED)[-1]["step"] == newest.step
    assert driver.result == uninterrupted.result
    assert names[0].step == int(LONG)
    assert [verify(archive, name) for name in names] == [None] * len(names)


def test_training_continues_while_the_store_hangs(driver: RunDriver, s3: FakeS3) -> None:
    """A request hangs for the time of a hundred steps, and no step waits for it."""
    hang = s3.fault("stall", on="PutObject", key=f"{DATA}/rank-1/*", skip=1, count=1)

    ranks = driver.start_ranks(2, DDP_SCRIPT, ENDLESS)
    assert s3.triggered(hang, times=1, timeout_s=TIMEOUT_S) == 1
    saved, begun = len(committed(driver)), step_of(driver)
    wait_until(lambda: step_of(driver) >= begun + 100)
    is_saved_during_hang = len(committed(driver)) > saved + 1
    s3.calm(hang)
    wait_until(lambda: len(committed(driver)) >= saved + 2)
    for rank in ranks:
        rank.send_signal(signal.SIGTERM)

    assert [rank.wait(TIMEOUT_S) for rank in ranks] == [Exit.PREEMPTED, Exit.PREEMPTED]
    assert not is_saved_during_hang
    assert bodies(driver, ReportKind.CHECKPOINT_FAILED) == []


@pytest.mark.parametrize(
    "driver", ["s3", "gs", pytest.param("az", marks=pytest.mark.full)], indirect=True
)
def test_three_failed_saves_stop_a_run_and_a_restart_resumes(
    driver: RunDriver, s3: FakeS3, uninterrupted: RunDriver
) -> None:
    s3.fault("error", code="AccessDenied", status=403, on="PutObject", key=DATA, skip=FIRST)

    codes = driver.run_ranks(2, DDP_SCRIPT, LONG, *SETTLED)
    [warning] = bodies(driver, ReportKind.SAVING_FAILED)
    [left] = bodies(driver, ReportKind.WORKER_LEFT)
    log = driver.log(0)
    s3.calm()
    again = driver.run_ranks(2, DDP_SCRIPT, LONG)

    sentence = "3 consecutive checkpoints failed; the last durable checkpoint is step 10: "
    assert codes == [Exit.UNSAVED, Exit.UNSAVED]
    assert len(bodies(driver, ReportKind.CHECKPOINT_FAILED)) == 3
    assert (warning["failures"], warning["safe_step"], warning["policy"]) == (3, 10, "stop")
    assert re.search("AccessDenied|AuthorizationPermissionMismatch", warning["detail"])
    assert (left["reason"], left["exit_code"]) == ("failed", Exit.UNSAVED)
    assert left["detail"].startswith(sentence)
    assert f"holdfast: {sentence}" in log
    assert "Traceback" not in log
    assert again == [0, 0]
    assert bodies(driver, ReportKind.TRAINING_STARTED)[-1]["step"] == 10
    assert driver.result == uninterrupted.result


def test_continue_policy_keeps_training_and_logs_the_recovery(
    driver: RunDriver, s3: FakeS3, uninterrupted: RunDriver
) -> None:
    driver.extra = {**driver.extra, Env.ON_SAVE_FAILURE: "continue"}
    failing = 4  # Saves in which the writes of both ranks are refused.
    s3.fault(
        "error", code="AccessDenied", status=403, on="PutObject", key=DATA, skip=FIRST, count=2 * failing
    )  # fmt: skip

    codes = driver.run_ranks(2, DDP_SCRIPT, LONG, *SETTLED)

    [warning] = bodies(driver, ReportKind.SAVING_FAILED)
    kinds = [r.kind for r in driver.reports() if r.kind is not ReportKind.PROGRESS]
    after = kinds[kinds.index(ReportKind.SAVING_FAILED) :]
    assert codes == [0, 0]
    assert (warning["failures"], warning["safe_step"], warning["policy"]) == (3, 10, "continue")
    assert len(bodies(driver, ReportKind.CHECKPOINT_FAILED)) == failing
    assert ReportKind.CHECKPOINT_COMMITTED in after
    assert (
        f"holdfast: saving checkpoints works again after {failing} consecutive failures"
        in driver.log(0)
    )
    assert driver.result == uninterrupted.result


def test_failed_save_of_the_last_step_fails_the_run(driver: RunDriver, s3: FakeS3) -> None:
    s3.fault("error", code="AccessDenied", status=403, on="PutObject", key=DATA)

    codes = driver.run_ranks(2, DDP_SCRIPT, "10")

    [left] = bodies(driver, ReportKind.WORKER_LEFT)
    assert codes == [Exit.UNSAVED, Exit.UNSAVED]
    assert left["exit_code"] == Exit.UNSAVED
    assert re.match("the last step, 10, could not be saved: .*AccessDenied", left["detail"])


def test_failing_script_does_not_hang_on_a_failing_store(driver: RunDriver, s3: FakeS3) -> None:
    """A regression test: upload threads kept the process alive for ten minutes."""
    s3.fault("error", code="SlowDown", on="PutObject", key=DATA)

    codes = driver.run_ranks(1, DDP_SCRIPT, ENDLESS, "--error", "30")

    [left] = bodies(driver, ReportKind.WORKER_LEFT)
    assert codes == [Exit.FAILED]
    assert left["detail"] == "ValueError: this lesson ends at step 30"


def test_notice_lets_the_running_save_finish_and_saves_again(driver: RunDriver, s3: FakeS3) -> None:
    hang = s3.fault("stall", on="PutObject", key=f"{DATA}/rank-1/*", skip=1, count=1)

    ranks = driver.start_ranks(2, DDP_SCRIPT, ENDLESS)
    assert s3.triggered(hang, times=1, timeout_s=TIMEOUT_S) == 1
    wait_until(lambda: step_of(driver) > 30)
    RunDir(driver.run_dir).record_notice(now() + timedelta(seconds=600))
    ranks[0].send_signal(signal.SIGTERM)
    wait_until(lambda: bool(bodies(driver, ReportKind.PREEMPTION_NOTICED)))
    s3.calm(hang)
    codes = [rank.wait(TIMEOUT_S) for rank in ranks]

    [noticed] = bodies(driver, ReportKind.PREEMPTION_NOTICED)
    assert codes == [Exit.PREEMPTED, Exit.PREEMPTED]
    assert committed(driver) == [10, committed(driver)[1], noticed["step"]]
    assert 10 < committed(driver)[1] < noticed["step"]


def test_store_guarantee_is_reported_at_the_start(driver: RunDriver, s3: FakeS3) -> None:
    s3.set(conditional=False)

    assert driver.run_ranks(2, DDP_SCRIPT, "10") == [0, 0]
    overwrites = driver.log(0)
    s3.set(conditional=True)
    assert driver.run_ranks(2, DDP_SCRIPT, "20") == [0, 0]

    reported = [body["guarantee"] for body in bodies(driver, ReportKind.RESTORE_STARTED)]
    assert reported == ["overwrites", "conditional"]
    assert "holdfast: the checkpoint store has no conditional writes: if two attempts" in overwrites
    assert "the checkpoint store" not in driver.log(0)
    assert "the checkpoint store" not in driver.log(1)


def test_interrupted_attempts_are_counted_from_the_store_alone(
    tmp_path: Path,
) -> None:
    """Of a script error, a killed rank and a normal end, only the second is an interruption."""
    driver = RunDriver(tmp_path, every="auto")

    assert driver.run_ranks(2, DDP_SCRIPT, ENDLESS, "--error", "20") == [1, 1]
    ranks = driver.start_ranks(2, DDP_SCRIPT, ENDLESS)
    wait_until((driver.run_dir / "trained").exists)
    ranks[1].kill()
    assert [rank.wait(TIMEOUT_S) for rank in ranks] == [1, -signal.SIGKILL]
    assert driver.run_ranks(2, DDP_SCRIPT, "20") == [0, 0]
    assert driver.run_ranks(2, DDP_SCRIPT, "40") == [0, 0]

    intervals = [body["interval"] for body in bodies(driver, ReportKind.CHECKPOINT_COMMITTED)]
    losses = [interval["losses"] for interval in intervals]
    assert losses == [1, 1]
    assert intervals[0]["interval_s"] in {60, 120, 180}
    assert 0 < intervals[0]["between_failures_s"] < 7200
    assert re.search(
        r"holdfast: checkpoints are now saved every \d+ min: a checkpoint stalls training for .* "
        r"the estimated time between failures is 9\d min, after 1 interrupted attempt so far",
        driver.log(0),
    )


def test_invalid_policy_is_refused_with_a_message(tmp_path: Path) -> None:
    driver = RunDriver(tmp_path, extra={Env.ON_SAVE_FAILURE: "pray"})

    code, _, err = driver.run_wrapper(DDP_SCRIPT, "10")

    assert code == Exit.USAGE
    assert "HOLDFAST_ON_SAVE_FAILURE is 'pray'; write stop or continue" in err

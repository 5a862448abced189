"""Whole runs under a launcher that recovers jobs itself, without attempt numbers."""

from __future__ import annotations

import fcntl
import re
import signal
from datetime import timedelta
from pathlib import Path

from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.clock import now
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.run_dir import RunDir
from holdfast_worker.storage.directory import LOCK, DirectoryStore

from worker.support.metadata_servers import Ec2, serve
from worker.support.recovering_launcher import RecoveringLauncher
from worker.support.report_server import ReportServer
from worker.support.run_driver import (
    DDP_SCRIPT,
    TIMEOUT_S,
    TOTAL,
    RunDriver,
    free_port,
    read_until,
    wait_until,
)

ENDLESS = "1000000"
TWO_RANKS = ("--nproc-per-node", "2")


def store_of(driver: RunDriver) -> DirectoryStore:
    return DirectoryStore(driver.path / "store" / "lesson")


def all_reports_arrived(driver: RecoveringLauncher, service: ReportServer, attempt: int) -> bool:
    """Whether the service has all reports of the attempt."""
    return service.received.get(attempt) == [report.n for report in driver.reports()]


def test_recovered_job_equals_an_uninterrupted_one(tmp_path: Path, undisturbed: RunDriver) -> None:
    service, port = ReportServer(refusals=[503]), free_port()
    launcher = RecoveringLauncher(tmp_path, extra={"HOLDFAST_URL": f"http://127.0.0.1:{port}"})

    with service.opened(port):
        fall = ("--fall", f"1:26:{signal.SIGKILL}")
        killed, _, _ = launcher.run_wrapper(*TWO_RANKS, DDP_SCRIPT, TOTAL, *fall)
        is_first_reported = all_reports_arrived(launcher, service, 1)
        [first] = launcher.reports(ReportKind.TRAINING_STARTED)
        code, _, _ = launcher.run_wrapper(*TWO_RANKS, DDP_SCRIPT, TOTAL)
        is_second_reported = all_reports_arrived(launcher, service, 2)
    [second] = launcher.reports(ReportKind.TRAINING_STARTED)

    assert killed == 128 + signal.SIGKILL
    assert code == Exit.DONE
    assert launcher.result == undisturbed.result
    assert first.body["restored_from"] is None
    assert re.match(r"step-\d+-e1-", str(second.body["restored_from"]))
    assert is_first_reported
    assert is_second_reported
    assert list(service.attempts.values()) == [1, 2]
    assert store_of(launcher).list("claims/") == ["claims/000000000002"]


def test_unreachable_service_does_not_stop_training(tmp_path: Path) -> None:
    launcher = RecoveringLauncher(
        tmp_path, extra={"HOLDFAST_URL": f"http://127.0.0.1:{free_port()}"}
    )

    wrapper = launcher.start_wrapper(DDP_SCRIPT, "20")
    wait_until(lambda: bool(launcher.reports(ReportKind.WORKER_LEFT)))
    wrapper.kill()

    [left] = launcher.reports(ReportKind.WORKER_LEFT)
    assert left.body["reason"] == "finished"


def test_resumed_stale_attempt_commits_nothing_and_exits(tmp_path: Path) -> None:
    """Both ranks are suspended while their successor starts, like a machine that seemed lost."""
    driver = RunDriver(tmp_path)
    old = driver.start_ranks(2, DDP_SCRIPT, ENDLESS)
    old_dir = driver.run_dir
    wait_until(lambda: bool(store_of(driver).list("commits/")))
    for rank in old:
        rank.send_signal(signal.SIGSTOP)

    new = driver.start_ranks(2, DDP_SCRIPT, ENDLESS)
    wait_until((driver.run_dir / "trained").exists)
    for rank in old:
        rank.send_signal(signal.SIGCONT)
    codes = [rank.wait(TIMEOUT_S) for rank in old]
    for rank in new:
        rank.send_signal(signal.SIGTERM)
    left = RunDir(old_dir).exit_reason()

    assert codes == [Exit.FENCED, Exit.FENCED]
    assert [rank.wait(TIMEOUT_S) for rank in new] == [Exit.PREEMPTED, Exit.PREEMPTED]
    assert left
    assert left.exit_code == Exit.FENCED
    # It may have been suspended while it committed.
    assert re.match(
        r"a newer attempt of this job has (taken over|saved step \d+) \(epoch 2", left.detail
    )
    log = (old_dir / "ranks" / "rank-0.log").read_text()
    assert f"holdfast: {left.detail}" in log
    assert "Traceback" not in log
    assert [r.attempt for r in driver.reports(ReportKind.WORKER_LEFT)] == [2]
    [started] = [r for r in driver.reports(ReportKind.TRAINING_STARTED) if r.attempt == 2]
    begun = int(str(started.body["step"]))
    archive = CheckpointRepository(store_of(driver))
    late = [n for n in archive.names(float("inf")) if n.epoch == 1 and n.step > begun]
    lineage = archive.tokens.lineage(float("inf"))
    # A save may have been in progress when it was suspended. It is never used.
    assert len(late) <= 1
    assert all(lineage.superseding_start(name) for name in late)


def test_stale_directory_lock_does_not_block_training(
    tmp_path: Path,
) -> None:
    driver = RunDriver(tmp_path)
    root = tmp_path / "store" / "lesson"
    root.mkdir(parents=True)

    with (root / LOCK).open("wb") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        codes = driver.run_ranks(1, DDP_SCRIPT, "10")

    assert codes == [0]
    assert "was not released within" in driver.log(0)
    assert store_of(driver).list("commits/")


def test_lower_attempt_number_is_fenced_before_the_first_step(tmp_path: Path) -> None:
    driver = RunDriver(tmp_path, attempt=4)
    assert driver.run_ranks(1, DDP_SCRIPT, "10") == [0]
    driver.attempt = 1

    code, _, _ = driver.run_wrapper(*TWO_RANKS, DDP_SCRIPT, "10")

    assert code == Exit.FENCED
    assert "(epoch 5 in the checkpoint store): this attempt, of epoch 2" in driver.log(0)
    assert [r.attempt for r in driver.reports(ReportKind.WORKER_LEFT)] == [5]


def test_replaced_worker_ends_on_all_nodes(tmp_path: Path) -> None:
    service, port = ReportServer(), free_port()
    ranks = {
        "HOLDFAST_URL": f"http://127.0.0.1:{port}",
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1",
        "HOLDFAST_MASTER_PORT": str(free_port()),
    }
    nodes = [RecoveringLauncher(tmp_path, extra=ranks, node=rank) for rank in (0, 1)]

    with service.opened(port):
        wrappers = [node.start_watched(DDP_SCRIPT, ENDLESS) for node in nodes]
        wait_until(lambda: all(node.is_connected for node in nodes))
        wait_until((nodes[0].run_dir / "trained").exists)
        service.replaced = {"*"}
        held = "waiting up to 300 s for the termination of the node"
        errs = [read_until(wrapper, held) for wrapper in wrappers]
        for wrapper in wrappers:
            wrapper.send_signal(signal.SIGTERM)
            wrapper.communicate(timeout=TIMEOUT_S)

    assert len(service.registrations) == 1
    assert [wrapper.returncode for wrapper in wrappers] == [Exit.FENCED, Exit.FENCED]
    assert "or its job has ended: another worker has mustered since\n" in errs[0]
    assert "holdfast: ending all ranks: another worker has mustered since\n" in errs[1]
    assert nodes[0].reports(ReportKind.WORKER_LEFT) == []


def test_service_request_saves_and_exits_before_release(
    tmp_path: Path,
) -> None:
    service, port = ReportServer(), free_port()
    launcher = RecoveringLauncher(tmp_path, extra={"HOLDFAST_URL": f"http://127.0.0.1:{port}"})

    with service.opened(port):
        wrapper = launcher.start_wrapper(*TWO_RANKS, DDP_SCRIPT, ENDLESS)
        wait_until((launcher.run_dir / "trained").exists)
        service.leave_within_s = 600.0
        err = read_until(wrapper, "for the termination of the node")
        wait_until(lambda: all_reports_arrived(launcher, service, 1))
        wrapper.send_signal(signal.SIGTERM)
        wrapper.communicate(timeout=TIMEOUT_S)

    [left] = launcher.reports(ReportKind.WORKER_LEFT)
    [noticed] = launcher.reports(ReportKind.PREEMPTION_NOTICED)
    assert wrapper.returncode == Exit.PREEMPTED
    assert left.body["reason"] == "preempted"
    assert 300 < float(str(noticed.body["left_s"])) <= 600
    newest, *_ = CheckpointRepository(store_of(launcher)).names(float("inf"))
    assert newest.step == left.body["step"]
    assert "holdfast: the service asks this job to save its work and exit by " in err


def test_cloud_notice_makes_all_ranks_save_and_exit(tmp_path: Path) -> None:
    metadata = Ec2()
    aws_reported = {"SKYPILOT_CLUSTER_INFO": '{"cloud": "AWS"}'}
    launcher = RecoveringLauncher(tmp_path, extra=aws_reported)

    with serve(metadata) as address:
        wrapper = launcher.start_with_metadata(address, 2, DDP_SCRIPT, ENDLESS)
        wait_until((launcher.run_dir / "trained").exists)
        metadata.action_at = now() + timedelta(seconds=600)
        err = read_until(wrapper, "for the termination of the node")
        wrapper.send_signal(signal.SIGTERM)
        wrapper.communicate(timeout=TIMEOUT_S)

    [noticed] = launcher.reports(ReportKind.PREEMPTION_NOTICED)
    [left] = launcher.reports(ReportKind.WORKER_LEFT)
    assert wrapper.returncode == Exit.PREEMPTED
    held = re.search(r"waiting up to (\d+) s", err)
    assert held
    assert 480 < int(held[1]) < 780
    assert 300 < float(str(noticed.body["left_s"])) < 600
    assert left.body["reason"] == "preempted"
    newest, *_ = CheckpointRepository(store_of(launcher)).names(float("inf"))
    assert newest.step == left.body["step"] == noticed.body["step"]
    assert f"termination notice: this node stops at {metadata.action_at:%H:%M:%S} UTC;" in err


def test_rebalance_recommendation_saves_without_exiting(tmp_path: Path) -> None:
    metadata = Ec2(rebalance_at=now())
    launcher = RecoveringLauncher(
        tmp_path, every="1000h", extra={"SKYPILOT_CLUSTER_INFO": '{"cloud": "AWS"}'}
    )

    with serve(metadata) as address:
        wrapper = launcher.start_with_metadata(address, 1, DDP_SCRIPT, ENDLESS)
        wait_until(lambda: bool(launcher.reports(ReportKind.CHECKPOINT_COMMITTED)))
        wrapper.send_signal(signal.SIGTERM)
        _, err = wrapper.communicate(timeout=TIMEOUT_S)

    assert len(launcher.reports(ReportKind.CHECKPOINT_COMMITTED)) == 2
    assert wrapper.returncode == Exit.PREEMPTED
    assert "rebalance recommendation: this node may be preempted soon" in err
    assert "waiting" not in err


def test_signal_ends_an_attempt_without_delay(tmp_path: Path) -> None:
    launcher = RecoveringLauncher(tmp_path)
    wrapper = launcher.start_wrapper(DDP_SCRIPT, ENDLESS)
    wait_until((launcher.run_dir / "trained").exists)

    wrapper.send_signal(signal.SIGTERM)
    _, err = wrapper.communicate(timeout=TIMEOUT_S)

    assert wrapper.returncode == Exit.PREEMPTED
    assert "waiting" not in err

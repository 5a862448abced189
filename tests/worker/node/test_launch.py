"""`holdfast-worker run`: processes it starts, notices it forwards, reports and final output."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, TypeVar

import psutil
import pytest
from holdfast_worker.console import log_info
from holdfast_worker.node.agent_process import LogTail
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.run_dir import ExitReason, RunDir
from holdfast_worker.topology.nodes import Topology
from holdfast_worker.topology.rendezvous import MASTER_PORT
from worker.support.report_server import ReportServer
from worker.support.run_driver import (
    DDP_SCRIPT,
    TIMEOUT_S,
    RunDriver,
    free_port,
    is_gone,
    wait_until,
)

F = TypeVar("F", bound="IO[str] | IO[bytes]")
ENDLESS = "1000000"
FULL = """
import errno, os, sys
from holdfast_worker.config import Config, environment
from holdfast_worker.node.launch import NodeLauncher
from holdfast_worker.preemption.notice_sources import NoticeSources
from holdfast_worker.run_dir import RunDir
from holdfast_worker.topology.nodes import RankLayout
from holdfast_worker.topology.nodes import Topology

class FullDisk(RunDir):
    def record_notice(self, deadline):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

config = Config.of_node(environment())
node = NodeLauncher(Topology.read(environment()), FullDisk(config.run_dir), config, NoticeSources(None, None), {})
sys.exit(node.run(sys.argv[1:], RankLayout((1,))))
"""
"""The wrapper, on a full disk."""


@pytest.fixture
def driver(tmp_path: Path) -> RunDriver:
    return RunDriver(tmp_path)


def test_notice_reaches_ranks_and_reports_reach_the_service(tmp_path: Path) -> None:
    service, port = ReportServer(), free_port()
    driver = RunDriver(tmp_path, extra={"HOLDFAST_URL": f"http://127.0.0.1:{port}"})

    with service.opened(port):
        wrapper = driver.start_wrapper(DDP_SCRIPT, ENDLESS)
        wait_until((driver.run_dir / "trained").exists)
        wrapper.send_signal(signal.SIGTERM)
        wrapper.communicate(timeout=TIMEOUT_S)

    [left] = driver.reports(ReportKind.WORKER_LEFT)
    [*_, last_saved] = driver.reports(ReportKind.CHECKPOINT_COMMITTED)
    assert wrapper.returncode == Exit.PREEMPTED
    assert json.loads((driver.run_dir / "notice.json").read_text()) == {"deadline": None}
    assert left.body["reason"] == "preempted"
    assert left.body["step"] == last_saved.body["step"]
    assert service.received == {1: [report.n for report in driver.reports()]}


def test_signal_to_all_processes_leaves_ranks_time_to_save(
    driver: RunDriver,
) -> None:
    """Slurm signals all processes: torchrun would kill the ranks, and a rank gets two signals."""
    wrapper = driver.start_wrapper("--nproc-per-node", "2", DDP_SCRIPT, ENDLESS)
    wait_until((driver.run_dir / "trained").exists)

    processes = [psutil.Process(wrapper.pid)]
    processes += processes[0].children(recursive=True)
    # None acts on its signal before all have theirs.
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGCONT):
        for process in processes:
            process.send_signal(number)
    out, _ = wrapper.communicate(timeout=TIMEOUT_S)

    [left] = driver.reports(ReportKind.WORKER_LEFT)
    [*_, last_saved] = driver.reports(ReportKind.CHECKPOINT_COMMITTED)
    banners = sorted(line for line in out.splitlines() if line.startswith("[RANK "))
    assert wrapper.returncode == Exit.PREEMPTED
    assert left.body["reason"] == "preempted"
    assert left.body["step"] == last_saved.body["step"]
    assert banners == ["[RANK 0] WORLD_SIZE=2", "[RANK 1] WORLD_SIZE=2"]


def test_script_error_is_printed_reported_and_returned(driver: RunDriver) -> None:
    code, out, _ = driver.run_wrapper(DDP_SCRIPT, "9", "--error", "5")

    [left] = driver.reports(ReportKind.WORKER_LEFT)
    assert code == Exit.FAILED
    assert "Traceback (most recent call last)" in out
    assert left.body == {
        "step": 4,
        "reason": "failed",
        "exit_code": 1,
        "detail": "ValueError: this lesson ends at step 5",
    }


@pytest.mark.parametrize("code", [0, 3])
def test_exit_code_is_kept_after_a_handled_error(driver: RunDriver, code: int) -> None:
    """Shells inside a script, such as IPython, leave a handled error in `sys.last_value`."""
    script = driver.path / "script.py"
    script.write_text(
        "import code, sys\n"
        "code.InteractiveInterpreter().runsource('1 / 0')\n"
        f"assert sys.last_value\nsys.exit({code})\n"
    )

    assert driver.run_wrapper(str(script))[0] == code


def test_a_killed_rank_is_reported_by_the_wrapper(driver: RunDriver) -> None:
    code, _, _ = driver.run_wrapper(DDP_SCRIPT, ENDLESS, "--fall", f"0:12:{signal.SIGKILL}")

    [left] = driver.reports(ReportKind.WORKER_LEFT)
    assert code == 128 + signal.SIGKILL
    assert left.body["reason"] == "failed"
    assert left.body["exit_code"] == 137
    assert left.body["detail"] == "rank 0 was killed by signal 9"


def test_nodes_of_a_failed_program_are_kept(driver: RunDriver) -> None:
    driver.extra = {"HOLDFAST_KEEP_FAILED": "600"}
    wrapper = driver.start_wrapper(DDP_SCRIPT, ENDLESS, "--fall", f"0:12:{signal.SIGKILL}")
    wait_until(lambda: bool(driver.reports(ReportKind.NODES_KEPT)))
    [left] = driver.reports(ReportKind.WORKER_LEFT)
    has_stayed = wrapper.poll() is None

    wrapper.send_signal(signal.SIGTERM)
    _, err = wrapper.communicate(timeout=TIMEOUT_S)

    assert (has_stayed, wrapper.returncode) == (True, 128 + signal.SIGKILL)
    assert left.body["reason"] == "failed"
    assert "this node is kept and billed until" in err


def test_kept_nodes_end_in_time(driver: RunDriver) -> None:
    driver.extra = {"HOLDFAST_KEEP_FAILED": "1"}

    code, _, _ = driver.run_wrapper(DDP_SCRIPT, ENDLESS, "--fall", f"0:12:{signal.SIGKILL}")

    assert code == 128 + signal.SIGKILL
    assert len(driver.reports(ReportKind.NODES_KEPT)) == 1


def test_program_that_succeeds_keeps_no_nodes(driver: RunDriver) -> None:
    driver.extra = {"HOLDFAST_KEEP_FAILED": "600"}

    code, _, _ = driver.run_wrapper(DDP_SCRIPT, "3")

    assert (code, driver.reports(ReportKind.NODES_KEPT)) == (0, [])


def test_script_error_after_training_fails_the_run(driver: RunDriver) -> None:
    code, _, _ = driver.run_wrapper(DDP_SCRIPT, "3", "--after", "3")

    [left] = driver.reports(ReportKind.WORKER_LEFT)
    assert code == 3
    assert left.body["reason"] == "finished"


def test_script_without_a_run_is_reported(driver: RunDriver) -> None:
    script = driver.path / "plain.py"
    script.write_text("import sys\nprint('so far', sys.argv[1:])\nsys.exit('so good')\n")

    code, out, _ = driver.run_wrapper("--nproc-per-node", "1", str(script), "--nproc", "x")

    [left] = driver.reports(ReportKind.WORKER_LEFT)
    assert code == Exit.FAILED
    assert "so far ['--nproc', 'x']" in out
    assert left.body["detail"] == "rank 0: so good"


def test_notice_before_the_start_prevents_the_start(driver: RunDriver) -> None:
    run_dir = RunDir(driver.path / "run-1")
    run_dir.path.mkdir()
    run_dir.record_notice(datetime(2030, 1, 1, tzinfo=UTC))

    code, _, _ = driver.run_wrapper(DDP_SCRIPT, ENDLESS)

    assert code == Exit.PREEMPTED
    assert not (run_dir.path / "trained").exists()
    assert [r.body["reason"] for r in driver.reports()] == ["preempted"]


def test_notice_on_a_full_disk_still_saves_a_checkpoint(driver: RunDriver) -> None:
    """The checkpoint goes to the store; the file that cannot be written holds only the deadline."""
    wrapper = driver.start_python(FULL, DDP_SCRIPT, ENDLESS)
    wait_until((driver.run_dir / "trained").exists)

    wrapper.send_signal(signal.SIGTERM)
    _, err = wrapper.communicate(timeout=TIMEOUT_S)

    [left] = driver.reports(ReportKind.WORKER_LEFT)
    [*_, last_saved] = driver.reports(ReportKind.CHECKPOINT_COMMITTED)
    assert wrapper.returncode == Exit.PREEMPTED
    assert left.body["step"] == last_saved.body["step"]
    assert "holdfast: the run directory cannot be written: [Errno 28]" in err
    assert "Traceback" not in err


def test_full_disk_for_output_and_stderr_raises_nothing(tmp_path: Path) -> None:
    log, full = tmp_path / "log", Path("/dev/full")
    with _unclosable(full.open("w")) as stderr, _unclosable(full.open("wb")) as output:
        log_tail = LogTail(log, output)
        log.write_text("a step\n")

        with redirect_stderr(stderr):
            log_info("the run directory cannot be written")
        log_tail.copy()


@contextmanager
def _unclosable(file: F) -> Iterator[F]:
    """A file whose `close` raises the error of the full disk again."""
    yield file
    with suppress(OSError):
        file.close()


def test_preemption_of_one_node_ends_both_nodes_together(tmp_path: Path) -> None:
    nodes = {
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1",
        "SKYPILOT_NUM_GPUS_PER_NODE": "0",
        "HOLDFAST_MASTER_PORT": str(free_port()),
    }
    first = RunDriver(tmp_path / "0", extra={**nodes, "SKYPILOT_NODE_RANK": "0"})
    store = f"file://{tmp_path}/0/store"
    second = RunDriver(
        tmp_path / "1", extra={**nodes, "SKYPILOT_NODE_RANK": "1", "HOLDFAST_STORE": store}
    )

    wrappers = [node.start_wrapper(DDP_SCRIPT, ENDLESS) for node in (first, second)]
    wait_until((second.run_dir / "trained").exists)
    wrappers[1].send_signal(signal.SIGTERM)
    for wrapper in wrappers:
        wrapper.communicate(timeout=TIMEOUT_S)

    exit_records = [json.loads((n.run_dir / "left.json").read_text()) for n in (first, second)]
    assert [wrapper.returncode for wrapper in wrappers] == [Exit.PREEMPTED, Exit.PREEMPTED]
    assert exit_records[0] == exit_records[1]
    assert [r.body["world_size"] for r in first.reports(ReportKind.TRAINING_STARTED)] == [2]
    assert second.reports() == []


def test_ranks_end_with_a_killed_wrapper(driver: RunDriver) -> None:
    wrapper = driver.start_wrapper(DDP_SCRIPT, ENDLESS)
    wait_until((driver.run_dir / "trained").exists)
    [rank] = RunDir(driver.run_dir).registered_pids().values()
    process = psutil.Process(rank)

    wrapper.kill()
    wrapper.communicate(timeout=TIMEOUT_S)

    wait_until(lambda: is_gone(process))


def test_missing_script_is_reported_in_one_sentence(driver: RunDriver) -> None:
    code, _, err = driver.run_wrapper("trian.py")

    [left] = driver.reports()
    assert code == Exit.USAGE
    assert err == f"holdfast: {left.body['detail']}\n"
    assert left.body == {
        "step": 0,
        "reason": "failed",
        "exit_code": 2,
        "detail": f"there is no script trian.py in {Path.cwd()}",
    }


def test_invalid_environment_is_reported_in_one_sentence(tmp_path: Path) -> None:
    driver = RunDriver(tmp_path, every="sometimes")

    code, _, err = driver.run_wrapper(DDP_SCRIPT, "1")

    assert code == Exit.USAGE
    assert err.startswith("holdfast: HOLDFAST_EVERY: 'sometimes' is not a cadence: write auto")


def test_nodes_are_parsed_for_every_launcher() -> None:
    topology = Topology.read(
        {
            "SKYPILOT_NUM_NODES": "3",
            "SKYPILOT_NODE_RANK": "2",
            "SKYPILOT_NODE_IPS": "10.0.0.4\n10.0.0.5\n10.0.0.6\n",
            "SKYPILOT_NUM_GPUS_PER_NODE": "8",
        }
    )

    assert topology == Topology(3, 2, 8, "10.0.0.4", MASTER_PORT)


def test_without_a_launcher_one_node_uses_a_free_port() -> None:
    topology = Topology.read({})

    assert (topology.nodes, topology.node_rank, topology.gpus_per_node) == (1, 0, None)
    assert topology.master_address == "127.0.0.1"
    assert topology.master_port != MASTER_PORT


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"SKYPILOT_NUM_NODES": "2", "SKYPILOT_NODE_IPS": "10.0.0.4"}, "names 1"),
        ({"SKYPILOT_NODE_RANK": "1"}, "1 of 1 nodes"),
    ],
)
def test_contradictory_node_variables_are_refused(env: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Topology.read(env)


def test_first_exit_reason_is_kept(tmp_path: Path) -> None:
    run_dir = RunDir(tmp_path)

    run_dir.record_exit(ExitReason("failed", 1, 7, "the cause"))
    run_dir.record_exit(ExitReason("failed", 1, 7, "a consequence"))

    assert run_dir.exit_reason() == ExitReason("failed", 1, 7, "the cause")


def test_notice_with_a_deadline_is_not_overwritten(tmp_path: Path) -> None:
    run_dir, deadline = RunDir(tmp_path), datetime(2030, 1, 1, tzinfo=UTC)

    run_dir.record_notice(deadline)
    run_dir.record_notice(None)

    assert run_dir.deadline() == deadline


def test_log_tail_copies_only_lines_written_since_its_start(tmp_path: Path) -> None:
    log, result = tmp_path / "log", io.BytesIO()
    log.write_text("of an earlier run\n")
    log_tail = LogTail(log, result)

    with log.open("a") as file:
        file.write("one\n")
    log_tail.copy()
    log_tail.copy()
    with log.open("a") as file:
        file.write("two\n")
    log_tail.copy()

    assert result.getvalue() == b"one\ntwo\n"


ADDS_UP = """
import torch
import torch.distributed as dist
from holdfast_worker import Run

run = Run.start()
total = torch.tensor([run.rank + 1.0])
dist.all_reduce(total)
print(run.rank, run.world_size, dist.get_backend(), run.device, int(total))
"""


def test_eight_ranks_without_gpus_form_one_process_group(driver: RunDriver) -> None:
    script = driver.path / "train.py"
    script.write_text(ADDS_UP)

    code, out, err = driver.run_wrapper("--nproc-per-node", "8", str(script))

    assert code == Exit.DONE, err
    started = sorted(line for line in out.splitlines() if line.startswith("[RANK"))
    assert started == [f"[RANK {rank}] WORLD_SIZE=8" for rank in range(8)]
    printed = [driver.log(rank).splitlines()[-1] for rank in range(8)]
    assert printed == [f"{rank} 8 gloo cpu 36" for rank in range(8)]

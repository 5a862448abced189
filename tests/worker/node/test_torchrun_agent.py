"""Attribution of the first failed rank if several have failed at the time of the check."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from holdfast_worker.node import torchrun_agent
from holdfast_worker.run_dir import Failure, RunDir


def ended(code: int) -> subprocess.Popen[bytes]:
    """An unreaped child that exited with `code`, or by signal `-code` if negative."""
    program = (
        f"import sys; sys.exit({code})"
        if code >= 0
        else f"import os; os.kill(os.getpid(), {-code})"
    )
    child = subprocess.Popen([sys.executable, "-c", program])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return child


def ended_ranks(path: Path, *codes: int) -> tuple[RunDir, list[subprocess.Popen[bytes]]]:
    """A run directory, and ranks that ended with these codes."""
    run_dir = RunDir(path)
    children = [ended(code) for code in codes]
    for rank, child in enumerate(children):
        run_dir.register(rank, child.pid)
    return run_dir, children


def test_terminated_rank_records_the_failure_of_one_that_raised(tmp_path: Path) -> None:
    run_dir, children = ended_ranks(tmp_path, 1, -signal.SIGTERM)

    torchrun_agent._wait_for(run_dir, 1, children[1].pid)

    assert run_dir.failure() == Failure(0, 1)
    assert [child.wait() for child in children] == [1, -signal.SIGTERM]


def test_killed_rank_counts_as_failed_before_one_that_raised(
    tmp_path: Path,
) -> None:
    run_dir, children = ended_ranks(tmp_path, 1, -signal.SIGKILL)

    torchrun_agent._wait_for(run_dir, 0, children[0].pid)

    assert run_dir.failure() == Failure(1, 128 + signal.SIGKILL)
    assert [child.wait() for child in children] == [1, -signal.SIGKILL]


def test_rank_that_raised_is_blamed_before_a_terminated_one(tmp_path: Path) -> None:
    run_dir, children = ended_ranks(tmp_path, 1, -signal.SIGTERM)

    torchrun_agent._wait_for(run_dir, 0, children[0].pid)

    assert run_dir.failure() == Failure(0, 1)
    assert [child.wait() for child in children] == [1, -signal.SIGTERM]


def test_no_failure_is_recorded_if_torchrun_reaped_another_rank(tmp_path: Path) -> None:
    run_dir, children = ended_ranks(tmp_path, 1, -signal.SIGKILL)
    children[1].wait()

    torchrun_agent._wait_for(run_dir, 0, children[0].pid)

    assert run_dir.failure() is None
    assert children[0].wait() == 1


def test_rank_that_raised_during_training_failed_first(tmp_path: Path) -> None:
    run_dir, [child] = ended_ranks(tmp_path, 3)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        run_dir.register(1, other.pid)

        torchrun_agent._wait_for(run_dir, 0, child.pid)

        assert run_dir.failure() == Failure(0, 3)
        assert other.poll() is None
        other.communicate(b"\n")
    assert child.wait() == 3

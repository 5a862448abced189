"""Attribution of the first failed rank if several have failed at the time of the check."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from holdfast_worker.node import torchrun_agent
from holdfast_worker.run_dir import Failure, RunDir
from torch.distributed.elastic.multiprocessing.errors import ProcessFailure
from worker.support.run_driver import wait_until

TERMINATING = f"""
import ctypes, os, sys, threading

def end():
    print(flush=True)
    sys.stdin.read()
    os.kill(os.getpid(), {signal.SIGKILL.value})

threading.Thread(target=end).start()
ctypes.CDLL(None).syscall(60, 0)  # exit(2): the first thread ends alone.
"""
"""A process that cannot be waited for yet, although its first thread has ended."""


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


def test_terminating_rank_is_blamed_once_it_has_ended(tmp_path: Path) -> None:
    run_dir, [raised] = ended_ranks(tmp_path, 1)
    pipe = subprocess.PIPE
    killed = subprocess.Popen([sys.executable, "-c", TERMINATING], stdin=pipe, stdout=pipe)
    assert killed.stdin
    assert killed.stdout
    run_dir.register(1, killed.pid)
    killed.stdout.readline()
    wait_until(lambda: not torchrun_agent._has_memory(killed.pid))

    later = threading.Timer(0.3, killed.stdin.close)
    later.start()
    torchrun_agent._wait_for(run_dir, 0, raised.pid)
    later.join()

    assert run_dir.failure() == Failure(1, 128 + signal.SIGKILL)
    killed.stdout.close()
    assert [raised.wait(), killed.wait()] == [1, -signal.SIGKILL]


@pytest.mark.parametrize("delay_s", [0, 1])
def test_killed_rank_precedes_one_that_raised_a_second_earlier(delay_s: int) -> None:
    def failure(rank: int, code: int, at_s: int) -> ProcessFailure:
        file = "/nonexistent"
        failure = ProcessFailure(local_rank=rank, pid=rank, exitcode=code, error_file=file)
        failure.timestamp = at_s
        return failure

    failures = {0: failure(0, 1, 100), 1: failure(1, -signal.SIGKILL, 100 + delay_s)}

    assert torchrun_agent._first_failure(failures)[0] == 1

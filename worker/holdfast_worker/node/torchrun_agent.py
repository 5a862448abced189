"""Runs torchrun and records the exit code of the first rank to fail, which torchrun hides."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from contextlib import suppress
from typing import Final

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from holdfast_worker.config import AGENT, Config, environment, export_variable
from holdfast_worker.parent_process import die_with_parent
from holdfast_worker.run_dir import Failure, RunDir

POLL_S: Final = 0.1
"""Interval of checks for new ranks.
A lower value burns a core; a higher value misses the exit of a rank that fails at once."""

_CONSEQUENCE_SIGNALS: Final = (signal.SIGTERM, signal.SIGABRT)
"""Signals that end a rank after the failure of another one.
They come from torchrun, and from torch in a broken collective."""

_KILLED, _RAISED, _CONSEQUENCE = range(3)

_WRITE_LOCK: Final = threading.Lock()
"""Held while writing, as all threads use the same draft file of the process."""


def main() -> None:
    """Run torchrun with the arguments of this process.

    Raises:
        SystemExit: a rank failed; the run directory has the rank and its exit code.
    """
    config = Config.of_node(environment())
    die_with_parent(config.wrapper)
    export_variable(AGENT, str(os.getpid()))
    # Slurm signals all processes of a node at once: the ranks save first, while torchrun would kill them.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    run_dir = config.run_dir
    if run_dir:
        watch = threading.Thread(target=_watch, args=(RunDir(run_dir),), daemon=True)
        watch.start()
    try:
        torchrun.main(sys.argv[1:])
    except ChildFailedError as error:
        rank, first = min(error.failures.items(), key=lambda f: _order(f[1]))
        if run_dir:
            code = first.exitcode
            with _WRITE_LOCK:
                RunDir(run_dir).record_failure(Failure(rank, 128 - code if code < 0 else code))
        raise SystemExit(1) from None


def _watch(run_dir: RunDir) -> None:
    """Record the first failure as it happens.

    Torchrun reports it only after all ranks have ended.
    """
    watched: set[int] = set()
    while True:
        for rank, pid in run_dir.registered_pids().items():
            if rank not in watched:
                watched.add(rank)
                threading.Thread(target=_wait_for, args=(run_dir, rank, pid), daemon=True).start()
        time.sleep(POLL_S)


def _wait_for(run_dir: RunDir, rank: int, pid: int) -> None:
    """Record how a rank ends, without reaping it, as torchrun waits for it."""
    with suppress(ChildProcessError):  # torchrun was faster, and reports how the rank ended.
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        if end and end.si_status:
            failure = _earlier_failure(run_dir, rank, end) or Failure(rank, _exit_code(end))
            # On a full disk, the exit code of torchrun is used.
            with suppress(OSError), _WRITE_LOCK:
                run_dir.record_failure(failure)


def _earlier_failure(run_dir: RunDir, failed: int, end: os.waitid_result) -> Failure | None:
    """A different rank that has ended and is closer to the cause than this one.

    None without one.

    A rank raises after its connection to a killed rank breaks, and torchrun ends ranks after another one raised. On a busy
    machine several ranks have ended before a thread runs, and the order of the checks is then random.

    Raises:
        ChildProcessError: torchrun has already reaped another rank.
    """
    others = [
        (rank, os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG))
        for rank, pid in run_dir.registered_pids().items()
        if rank != failed
    ]
    ended = [(rank, other) for rank, other in others if other and other.si_status]
    for weight in (_KILLED, _RAISED)[: _distance_from_cause(end)]:
        for rank, other in ended:
            if _distance_from_cause(other) == weight:
                return Failure(rank, _exit_code(other))
    return None


def _distance_from_cause(end: os.waitid_result) -> int:
    """Distance of a rank's end from the cause of the failure; the lowest is closest."""
    if end.si_code == os.CLD_EXITED:
        return _RAISED
    return _CONSEQUENCE if end.si_status in _CONSEQUENCE_SIGNALS else _KILLED


def _exit_code(end: os.waitid_result) -> int:
    return end.si_status if end.si_code == os.CLD_EXITED else 128 + end.si_status


def _order(failure: ProcessFailure) -> tuple[int, bool, int]:
    """Sort key of failures; the first failure sorts first.

    Within a second, a rank killed by a signal is more likely the cause than one that raised. SIGTERM is excluded, as torchrun
    sends it to the other ranks.
    """
    return failure.timestamp, failure.exitcode == -signal.SIGTERM, failure.exitcode


if __name__ == "__main__":
    main()

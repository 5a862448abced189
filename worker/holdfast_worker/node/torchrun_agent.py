"""Runs torchrun and records the exit code of the first rank to fail, which torchrun hides."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
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
        rank, first = _first_failure(error.failures)
        if run_dir:
            code = first.exitcode
            if config.node_ranks:  # torchrun counts the ranks of this node alone.
                rank += config.node_ranks.first
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
        (rank, _end_of(pid)) for rank, pid in run_dir.registered_pids().items() if rank != failed
    ]
    ended = [(rank, other) for rank, other in others if other and other.si_status]
    for weight in (_KILLED, _RAISED)[: _distance_from_cause(end)]:
        for rank, other in ended:
            if _distance_from_cause(other) == weight:
                return Failure(rank, _exit_code(other))
    return None


def _end_of(pid: int) -> os.waitid_result | None:
    """How a rank has ended; None while it runs.

    A killed process closes its connections before it can be waited for, and on a busy machine the other ranks fail in
    the meantime. It has no memory at that time.

    Raises:
        ChildProcessError: torchrun has already reaped it.
    """
    options = os.WEXITED | os.WNOWAIT
    if _has_memory(pid):
        options |= os.WNOHANG
    return os.waitid(os.P_PID, pid, options)


def _has_memory(pid: int) -> bool:
    try:
        return "\nVmSize:" in Path(f"/proc/{pid}/status").read_text()
    except OSError:  # It is reaped already, or this is not Linux.
        return True


def _distance_from_cause(end: os.waitid_result) -> int:
    """Distance of a rank's end from the cause of the failure; the lowest is closest."""
    if end.si_code == os.CLD_EXITED:
        return _RAISED
    return _CONSEQUENCE if end.si_status in _CONSEQUENCE_SIGNALS else _KILLED


def _exit_code(end: os.waitid_result) -> int:
    return end.si_status if end.si_code == os.CLD_EXITED else 128 + end.si_status


def _first_failure(failures: Mapping[int, ProcessFailure]) -> tuple[int, ProcessFailure]:
    """The rank that failed first, with its failure.

    Times are in whole seconds. Among failures a second apart, a rank killed by a signal is more likely the cause than one
    that raised. SIGTERM is excluded, as torchrun sends it to the other ranks.
    """
    first_s = min(failure.timestamp for failure in failures.values())
    early = {rank: each for rank, each in failures.items() if each.timestamp <= first_s + 1}
    return min(
        early.items(), key=lambda each: (each[1].exitcode == -signal.SIGTERM, each[1].exitcode)
    )


if __name__ == "__main__":
    main()

"""torchrun, and the exit code that it hides: the first rank to fall is written to the run directory."""

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

from holdfast_worker.config import AGENT, Config, environment, hand_down
from holdfast_worker.parent_process import die_with_parent
from holdfast_worker.run_dir import Failure, RunDir

LOOK_S: Final = 0.1
"""How often ranks are looked for that have just begun. Longer misses how one fell that falls at once, shorter burns a core."""

_CONSEQUENCES: Final = (signal.SIGTERM, signal.SIGABRT)
"""What kills a rank because another one fell: torchrun, and torch where an exchange between ranks cannot end."""

_KILLED, _RAISED, _DRAWN_ALONG = range(3)

_PEN: Final = threading.Lock()
"""Held by the one thread that writes: a file is drafted under a name of the process before it is put in place."""


def main() -> None:
    """torchrun with the arguments of this process.

    Raises:
        SystemExit: a rank failed; which one and how stands in the run directory.
    """
    config = Config.of_node(environment())
    die_with_parent(config.wrapper)
    hand_down(AGENT, str(os.getpid()))
    # Where everything on a node is told to end at once, as by Slurm, the ranks save first; torchrun would kill them.
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
            with _PEN:
                RunDir(run_dir).fail(Failure(rank, 128 - code if code < 0 else code))
        raise SystemExit(1) from None


def _watch(run_dir: RunDir) -> None:
    """Write down the first fall as it happens. torchrun tells of it only when the other ranks are gone, too."""
    watched: set[int] = set()
    while True:
        for rank, pid in run_dir.registered().items():
            if rank not in watched:
                watched.add(rank)
                threading.Thread(target=_wait_for, args=(run_dir, rank, pid), daemon=True).start()
        time.sleep(LOOK_S)


def _wait_for(run_dir: RunDir, rank: int, pid: int) -> None:
    """Write down how a rank ends, and leave it to torchrun to find out, too."""
    with suppress(ChildProcessError):  # torchrun was quicker. It will say how the rank ended.
        end = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        if end and end.si_status:
            failure = _cause(run_dir, rank, end) or Failure(rank, _exit_code(end))
            # Without room to write, the exit code of torchrun has to do.
            with suppress(OSError), _PEN:
                run_dir.fail(failure)


def _cause(run_dir: RunDir, fallen: int, end: os.waitid_result) -> Failure | None:
    """Another rank that is gone by now, and rather the cause than this one; None where there is none.

    A rank raises because the connection to one that was killed breaks, and is ended by torchrun because another one raised. On a
    busy machine both are gone before anybody is woken to look, and then it is chance which of them is looked at first.

    Raises:
        ChildProcessError: torchrun has seen the end of another rank already.
    """
    others = [
        (rank, os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT | os.WNOHANG))
        for rank, pid in run_dir.registered().items()
        if rank != fallen
    ]
    ended = [(rank, other) for rank, other in others if other and other.si_status]
    for weight in (_KILLED, _RAISED)[: _weight(end)]:
        for rank, other in ended:
            if _weight(other) == weight:
                return Failure(rank, _exit_code(other))
    return None


def _weight(end: os.waitid_result) -> int:
    """How far from the cause of a fall a rank is that ended so; the lowest is nearest."""
    if end.si_code == os.CLD_EXITED:
        return _RAISED
    return _DRAWN_ALONG if end.si_status in _CONSEQUENCES else _KILLED


def _exit_code(end: os.waitid_result) -> int:
    return end.si_status if end.si_code == os.CLD_EXITED else 128 + end.si_status


def _order(failure: ProcessFailure) -> tuple[int, bool, int]:
    """What sorts first fell first. Of those found within a second, one killed by a signal is rather the cause than one
    that raised; but SIGTERM is what torchrun itself sends to the others.
    """
    return failure.timestamp, failure.exitcode == -signal.SIGTERM, failure.exitcode


if __name__ == "__main__":
    main()

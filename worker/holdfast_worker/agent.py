"""torchrun, and the exit code that it hides: the first rank to fall is written to the run directory."""

from __future__ import annotations

import signal
import sys

from torch.distributed import run as torchrun
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError, ProcessFailure

from holdfast_worker.config import Config, surroundings
from holdfast_worker.rundir import Failure, RunDir
from holdfast_worker.tether import tie_to_parent


def main() -> None:
    """torchrun with the arguments of this process.

    Raises:
        SystemExit: a rank failed; which one and how stands in the run directory.
    """
    tie_to_parent()
    run_dir = Config.read(surroundings()).run_dir
    try:
        torchrun.main(sys.argv[1:])
    except ChildFailedError as error:
        rank, first = min(error.failures.items(), key=lambda f: _order(f[1]))
        if run_dir:
            code = first.exitcode
            RunDir(run_dir).fail(Failure(rank, 128 - code if code < 0 else code))
        raise SystemExit(1) from None


def _order(failure: ProcessFailure) -> tuple[int, bool, int]:
    """What sorts first fell first. Of those found within a second, one killed by a signal is rather the cause than one
    that raised; but SIGTERM is what torchrun itself sends to the others.
    """
    return failure.timestamp, failure.exitcode == -signal.SIGTERM, failure.exitcode


if __name__ == "__main__":
    main()

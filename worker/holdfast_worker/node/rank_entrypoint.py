"""Entry point of a rank: redirect its output to its log, handle notices, and run the script."""

from __future__ import annotations

import atexit
import os
import runpy
import sys
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from holdfast_worker.config import Config, environment, export_variable
from holdfast_worker.console import print_line
from holdfast_worker.node import numpy_compat
from holdfast_worker.parent_process import allow_ptrace, die_with_parent
from holdfast_worker.preemption.notice import NOTICE
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import RANK_LINE
from holdfast_worker.run_dir import RunDir
from holdfast_worker.watchdog import stack_dump

_ENDED_BY: Final[list[BaseException | None]] = []
"""The error that has ended the script, None without one; empty until it has ended."""


@cache
def register_exit_handler() -> None:
    """Have a rank exit at once after an error; no effect if this is registered.

    The first registered handler runs last, after those of the script and its libraries.
    """
    atexit.register(_exit_immediately)


def main() -> None:
    """Run the script in the arguments as if it were started directly."""
    register_exit_handler()
    node_ranks = Config.of_node(environment()).node_ranks
    if node_ranks:
        local_rank = int(environment()["LOCAL_RANK"])
        for name, value in node_ranks.variables(local_rank).items():
            export_variable(name, value)
    config = Config.read(environment())
    die_with_parent(config.agent)
    if config.wrapper:
        # Printed to the output of the node, with the lines of its other ranks. Later output goes to the log of the rank.
        print_line(RANK_LINE.format(rank=config.rank, world_size=config.world_size))
    if config.run_dir:
        _register(RunDir(config.run_dir), config.rank)
    if config.run_dir and config.wrapper:
        allow_ptrace(config.wrapper)
        with suppress(OSError):  # Without it, only py-spy can locate a hang.
            stack_dump.install_stack_dump_handler(
                RunDir(config.run_dir).stack_dump_file(config.rank)
            )
    numpy_compat.install()
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    if not sys.flags.safe_path:
        del sys.path[0]  # The current directory, which `-m` put there.
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        _ENDED_BY.append(sys.exc_info()[1])


def _exit_immediately() -> None:
    """Skip Python's cleanup after an error: with torch it takes seconds while all nodes wait.

    `sys.last_value` is unsuitable: debuggers and shells inside a script set it for errors that they handle.
    """
    if not any(isinstance(error, Exception) for error in _ENDED_BY):
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(Exit.FAILED)


def _register(run_dir: RunDir, rank: int) -> None:
    """Install the handler, register the process id, then check for a notice, to miss none."""
    _redirect_output(run_dir.log_file(rank))
    NOTICE.handle_sigterm(run_dir)
    run_dir.register(rank, os.getpid())
    if run_dir.is_noticed():
        NOTICE.raise_()


def _redirect_output(log: Path) -> None:
    """Redirect stdout and stderr to `log`, also of C++ and child processes."""
    log.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(file, stream.fileno())
    os.close(file)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)


if __name__ == "__main__":
    main()

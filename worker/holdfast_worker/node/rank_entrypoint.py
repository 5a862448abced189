"""The first thing that a rank runs: its output goes to its log, its notices are heard, then the script begins."""

from __future__ import annotations

import atexit
import os
import runpy
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from holdfast_worker.config import Config, environment
from holdfast_worker.console import print_line
from holdfast_worker.parent_process import allow_ptrace, die_with_parent
from holdfast_worker.preemption.notice import NOTICE
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import RANK_LINE
from holdfast_worker.run_dir import RunDir
from holdfast_worker.watchdog import stack_dump


def main() -> None:
    """The script named by the arguments, run as if it had been started itself."""
    # The first handler that is registered runs last, after those of the script and its libraries.
    ended_by: list[BaseException | None] = []
    atexit.register(_end_at_once, ended_by)
    config = Config.read(environment())
    die_with_parent(config.agent)
    if config.wrapper:
        # In the output of the node, where those of all its ranks are together. What follows goes to a log of the rank's own.
        print_line(RANK_LINE.format(rank=config.rank, world_size=config.world_size))
    if config.run_dir:
        _report_for_duty(RunDir(config.run_dir), config.rank)
    if config.run_dir and config.wrapper:
        allow_ptrace(config.wrapper)
        with suppress(OSError):  # Then only py-spy can say where it hangs.
            stack_dump.answer_to_asking(RunDir(config.run_dir).answers(config.rank))
    script = sys.argv[1]
    sys.argv = sys.argv[1:]
    if not sys.flags.safe_path:
        del sys.path[0]  # The current directory, which `-m` put there.
    sys.path.insert(0, str(Path(script).resolve().parent))
    try:
        runpy.run_path(script, run_name="__main__")
    finally:
        ended_by.append(sys.exc_info()[1])


def _end_at_once(ended_by: Sequence[BaseException | None]) -> None:
    """End a rank that an error has ended without taking its memory apart: beside torch that takes seconds, for which all nodes wait.

    `sys.last_value` does not say it: debuggers and shells inside of a script set it for errors that they handle.
    """
    if not any(isinstance(error, Exception) for error in ended_by):
        return
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError):
            stream.flush()
    os._exit(Exit.FAILED)


def _report_for_duty(run_dir: RunDir, rank: int) -> None:
    """Handler, then process id, then a look at the notice: whenever the notice comes, one of the three sees it."""
    _redirect_output(run_dir.log(rank))
    NOTICE.listen(run_dir)
    run_dir.register(rank, os.getpid())
    if run_dir.is_noticed():
        NOTICE.raise_()


def _redirect_output(log: Path) -> None:
    """Send stdout and stderr to `log`, below Python, so that what C++ and child processes say is there too."""
    log.parent.mkdir(parents=True, exist_ok=True)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(file, stream.fileno())
    os.close(file)
    if hasattr(sys.stdout, "reconfigure"):
        sys.stdout.reconfigure(line_buffering=True)


if __name__ == "__main__":
    main()

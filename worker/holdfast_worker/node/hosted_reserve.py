"""A process that waits to become the wrapper of a hosted node (`hosted_nodes.py`).

It imports what ranks import while training runs. When it is needed, it forks the agent of the node, which forks the ranks as usual
(`fork_server.py`), and runs the wrapper itself. Ranks of a lost node thus start without an interpreter or an import.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, NoReturn

from holdfast_worker.config import Config, environment
from holdfast_worker.node import fork_obstacles, fork_server
from holdfast_worker.node.fork_server import Program, Spare
from holdfast_worker.parent_process import die_with_parent
from holdfast_worker.topology.nodes import parse_counts

PROGRAM: Final = (
    "import sys; sys.flags.safe_path or sys.path.pop(0); "
    "from holdfast_worker.node.hosted_reserve import main; main()"
)
"""As `fork_server.PROGRAM`."""
OUTPUTS: Final = (1, 2)
"""Files that it shares with the wrapper that started it."""


class HostedReserve:
    """The reserve of a wrapper."""

    def __init__(self, script: Sequence[str], ranks: int) -> None:
        """`ranks`: of a hosted node.

        Raises:
            OSError: no process can be created.
        """
        connection, other_end = socket.socketpair()
        with other_end:
            words = [sys.executable, "-u", "-c", PROGRAM]
            numbers = (os.getpid(), other_end.fileno(), ranks)
            self._process = subprocess.Popen(
                [*words, *map(str, numbers), script[0]],
                stdin=subprocess.DEVNULL,
                pass_fds=[other_end.fileno()],
                start_new_session=True,
            )
        self._spare = Spare(0, connection)

    def run(self, words: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes] | None:
        """Have it run `python WORDS`, a wrapper; None if it has ended or does not respond."""
        program = Program(
            words=words,
            cwd=str(Path.cwd()),
            env=env,
            files=OUTPUTS,
            is_session=False,
            ignored=fork_server.ignored_signals(),
        )
        try:
            self._spare.run(program, OUTPUTS)
        except OSError:
            self.end()
            return None
        return self._process

    def end(self) -> None:
        """End it."""
        self._spare.disconnect()
        self._process.kill()
        self._process.wait()


def main() -> NoReturn:
    """Import what ranks import, and wait for the words of a wrapper."""
    parent, handover, ranks = map(int, sys.argv[1:4])
    script = Path(sys.argv[4])
    die_with_parent(parent)
    from holdfast_worker.node import rank_entrypoint  # noqa: PLC0415 - it is run by name elsewhere

    rank_entrypoint.register_exit_handler()
    if fork_obstacles.before_imports(environment(), script):
        sys.exit()
    fork_server.preload(Config.of_node(environment()), script, ranks)
    if fork_obstacles.after_imports(script):
        sys.exit()
    # The agent imports these as well, and the wrapper has threads by then.
    from holdfast_worker.node import launch, torchrun_agent  # noqa: F401, PLC0415 - it takes torch

    program = Spare(0, socket.socket(fileno=handover)).wait_for_program(None)
    agent: Spare | None = Spare.fork()
    assert agent, "a fork has two sides"
    if not agent.pid:
        _run_agent(agent.wait_for_program(os.getppid()))
    if fork_obstacles.threads():
        agent.end()
        agent = None
    # After `-m holdfast_worker run --nproc-per-node`.
    counts, *words = program.words[4:]
    sys.exit(launch.launch(words, parse_counts(counts), successor=agent))


def _run_agent(program: Program) -> NoReturn:
    # After `-u`, `-c` and the program.
    sys.argv = ["-c", *program.words[3:]]
    fork_server.main()
    sys.exit()

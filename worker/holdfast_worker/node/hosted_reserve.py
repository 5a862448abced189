"""A process that waits to become the wrapper of a hosted node (`hosted_nodes.py`).

It imports what ranks import while training runs. When it is needed, it forks the agent of the node, which forks the ranks as usual
(`fork_server.py`), and runs the wrapper itself. Ranks of a lost node thus start without an interpreter or an import.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path
from typing import NoReturn

from holdfast_worker.config import Config, environment
from holdfast_worker.node import fork_obstacles, fork_server, launch
from holdfast_worker.node.fork_server import Program, Spare
from holdfast_worker.parent_process import die_with_parent
from holdfast_worker.topology.nodes import parse_counts


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
    # The agent imports it as well, and the wrapper has threads by then.
    from holdfast_worker.node import torchrun_agent  # noqa: F401, PLC0415 - it imports torch

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

"""The guard of one node: a process between the supervisor and the program, which sees to it that nothing stays behind.

It ends everything below it when the program ends, when the supervisor asks, and when the supervisor dies. If the
guard itself is killed, the kernel kills the program and the supervisor inherits the rest. It is a fork, not a program of
its own: nothing has to be handed over, and a node costs no second interpreter.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NoReturn

from holdfast_worker.protocol.environment import Exit

from holdfast.launchers.local import process_cleanup
from holdfast.launchers.local.launch_dir import NodeFolder
from holdfast.launchers.local.sandbox import Sandbox

LEAVE: Final = signal.SIGUSR1
"""Tells a guard that its node will be taken: it passes SIGTERM on to the program, and lets it save its work. Must be
blocked by whoever starts a guard, or one that arrives early kills it."""
_END: Final = signal.SIGTERM
_WATCHED: Final = frozenset({LEAVE, _END, signal.SIGCHLD})
SCRIPTS: Final = ("setup", "run")
"""In the order in which a node runs them; one that is not in its folder is passed over."""


def start(node: NodeFolder, env: Mapping[str, str], cell: Sandbox | None = None) -> int:
    """Pid of a new guard, which runs the node's scripts in its workdir and ends as they do.

    It exits with the code of the first script that fails, 128 + n for one that signal n has killed, or 0. A guard
    that dies by a signal itself is a node that is lost.
    """
    supervisor = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        # The lock is among these: it must go with the supervisor alone.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        process_cleanup.become_subreaper()
        process_cleanup.die_with(supervisor, _END)
        os._exit(_Guard(node, env, cell).keep())
    finally:  # Here only with an exception, which must not climb into the supervisor's frames.
        sys.excepthook(*sys.exc_info())
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(slots=True)
class _Guard:
    node: NodeFolder
    env: Mapping[str, str]
    cell: Sandbox | None
    """None: the program has the service's rights."""
    told: bool = False
    """True once the node was told that it will be taken."""

    def keep(self) -> int:
        for script in map(self.node.script, SCRIPTS):
            if not script.exists():
                continue
            code = self._watch(self._start(str(script)))
            if code:
                return code
            if self.told and script.stem != SCRIPTS[-1]:
                return Exit.PREEMPTED  # Ready to go on, but there is no time left to.
        return Exit.DONE

    def _start(self, script: str) -> int:
        """Pid of the program, which leads a session and a process group of its own.

        Plain bash, as SkyPilot runs it: no `-e`, no `pipefail`. From a file, as one argument cannot be longer than 128 KiB.
        """
        guard = os.getpid()

        def bind() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            if self.cell:
                self.cell.enter()
            process_cleanup.die_with(
                guard, signal.SIGKILL
            )  # After the change of account, which would undo it.

        with self.node.log.open("ab") as log:
            program = subprocess.Popen(
                ["bash", script],
                cwd=self.node.workdir,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=bind,  # noqa: PLW1509 - a guard has one thread
            )
        program.returncode = 0  # Reaped in _watch, by pid.
        return program.pid

    def _watch(self, program: int) -> int:
        """Exit code of the program, once nothing below this guard runs any more."""
        code: int | None = None
        # A shell dies of SIGTERM at once, while what it ran still saves its work: a node that was told to leave has
        # left when its last process has.
        while code is None or (self.told and not process_cleanup.alone()):
            match signal.sigwait(_WATCHED):
                case signal.SIGCHLD:
                    for pid, status in process_cleanup.ended_children():
                        code = status if pid == program else code
                case signal.SIGUSR1:
                    self.told = True
                    if code is None:
                        os.killpg(program, signal.SIGTERM)
                case _:
                    _end()
        process_cleanup.end_descendants()
        return code if code >= 0 else 128 - code


def _end() -> NoReturn:
    process_cleanup.end_descendants()
    os._exit(Exit.FAILED)

"""The guard of one node: a process that ends everything the node started.

It runs between supervisor and program. It does so when the program ends, when the supervisor requests it, and when the
supervisor dies. If the guard itself is killed, the kernel kills the program and the supervisor adopts the rest. The
guard is a fork: it inherits its data and needs no second interpreter.
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
from holdfast.launchers.local.launch_dir import NodeDir
from holdfast.launchers.local.sandbox import Sandbox

NOTICE_SIGNAL: Final = signal.SIGUSR1
"""Signal that announces a preemption to a guard.
The guard passes SIGTERM on to the program and lets it save. The process that starts a guard must block this signal,
because an early one would kill the guard."""
_END_SIGNAL: Final = signal.SIGTERM
_WATCHED: Final = frozenset({NOTICE_SIGNAL, _END_SIGNAL, signal.SIGCHLD})
SCRIPTS: Final = ("setup", "run")
"""Scripts in the order a node runs them; missing ones are skipped."""


def start(node: NodeDir, env: Mapping[str, str], cell: Sandbox | None = None) -> int:
    """Start a guard that runs the node's scripts in its workdir; return its pid.

    It exits with the code of the first failing script, 128 + n for a script killed by signal n, or 0. A guard that dies
    by a signal itself represents a lost node.
    """
    supervisor = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    try:
        # These include the lock, which must be released with the supervisor.
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.setsid()
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        process_cleanup.become_subreaper()
        process_cleanup.set_parent_death_signal(supervisor, _END_SIGNAL)
        os._exit(_Guard(node, env, cell).run())
    finally:  # Reached only by an exception, which must not propagate into the supervisor's frames.
        sys.excepthook(*sys.exc_info())
        os.kill(os.getpid(), signal.SIGKILL)


@dataclass(slots=True)
class _Guard:
    node: NodeDir
    env: Mapping[str, str]
    sandbox: Sandbox | None
    """Sandbox of the program; None: it has the service's rights."""
    is_notified: bool = False
    """True once the node has received a preemption notice."""

    def run(self) -> int:
        for script in map(self.node.script, SCRIPTS):
            if not script.exists():
                continue
            code = self._wait(self._start(str(script)))
            if code:
                return code
            if self.is_notified and script.stem != SCRIPTS[-1]:
                return Exit.PREEMPTED  # Setup is done, but no time is left to run.
        return Exit.DONE

    def _start(self, script: str) -> int:
        """Start the program in its own session and process group; return its pid.

        Runs plain bash like SkyPilot: no `-e`, no `pipefail`. The script is a file, because one argument is limited to
        128 KiB.
        """
        guard = os.getpid()

        def bind() -> None:
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            if self.sandbox:
                self.sandbox.enter()
            process_cleanup.set_parent_death_signal(
                guard, signal.SIGKILL
            )  # Set after the change of account, which would reset it.

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

    def _wait(self, program: int) -> int:
        """Return the program's exit code once everything below this guard has ended."""
        code: int | None = None
        # A shell dies of SIGTERM at once while its children still save. A notified node has therefore ended only when
        # its last process has.
        while code is None or (self.is_notified and not process_cleanup.has_no_children()):
            match signal.sigwait(_WATCHED):
                case signal.SIGCHLD:
                    for pid, status in process_cleanup.ended_children():
                        code = status if pid == program else code
                case signal.SIGUSR1:
                    self.is_notified = True
                    if code is None:
                        os.killpg(program, signal.SIGTERM)
                case _:
                    _end_node()
        process_cleanup.kill_descendants()
        return code if code >= 0 else 128 - code


def _end_node() -> NoReturn:
    process_cleanup.kill_descendants()
    os._exit(Exit.FAILED)

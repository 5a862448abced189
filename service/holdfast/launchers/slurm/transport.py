"""Runs commands on a machine that has Slurm: this one, or a login node through ssh."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.errors import LauncherUnreachable

LIMIT_S: Final = 60.0
"""Limit of one command.
With a lower value, a busy controller appears unreachable; a higher value blocks jobs longer on a command that hangs."""
CONNECT_S: Final = 10
"""Limit of connecting to a login node.
With a lower value, a slow node appears unreachable; with a higher value, a dead one delays its jobs."""
PERSIST_S: Final = 120
"""Time a connection stays open.
With a lower value, each observation pays for a new one; with a higher value, idle sessions remain on the login node."""
SSH_FAILED: Final = 255
"""Exit code of ssh if the connection failed."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    """Result of a command."""

    code: int
    out: bytes
    err: str
    """Error output, as one line."""


@dataclass(frozen=True, slots=True)
class Transport:
    """Runs bash on a machine that has Slurm."""

    prefix: tuple[str, ...] = ()
    """Command prefix that reaches the machine; empty for this one."""
    is_remote: bool = False
    """Whether a remote shell splits the words again."""
    programs: str = ""
    """Directory of Slurm's commands; empty if they are on PATH."""
    folder: Path | None = None
    """Working directory of the prefix's command; None for this process's."""

    def bash(self, text: str, *words: str, given: bytes = b"") -> CommandResult:
        """Run a bash script with `words` as arguments and `given` as input. Blocking.

        Raises:
            LauncherUnreachable: the command was not delivered or took too long; it may have run.
        """
        if self.programs:
            text = f"PATH={shlex.quote(self.programs)}:$PATH\n{text}"
        command = ["bash", "-c", text, "holdfast", *words]
        argv = [*self.prefix, *([shlex.join(command)] if self.is_remote else command)]
        try:
            # Written to a file, because ssh before 8.5 keeps a pipe open as long as the connection.
            with tempfile.TemporaryFile() as error_output:
                done = subprocess.run(
                    argv,
                    input=given,
                    stdout=subprocess.PIPE,
                    stderr=error_output,
                    cwd=self.folder,
                    timeout=LIMIT_S,
                    check=False,
                )
                error_output.seek(0)
                words_of_it = " ".join(error_output.read().decode(errors="replace").split())
        except subprocess.TimeoutExpired as error:
            raise LauncherUnreachable(
                f"{self._target} did not respond within {LIMIT_S:.0f} s"
            ) from error
        except OSError as error:
            raise LauncherUnreachable(f"cannot run {argv[0]}: {error.strerror}") from error
        if self.is_remote and done.returncode == SSH_FAILED:
            raise LauncherUnreachable(f"cannot reach {self._target}: {words_of_it}")
        return CommandResult(done.returncode, done.stdout, words_of_it)

    @property
    def _target(self) -> str:
        return f"the login node {self.prefix[-2]}" if self.is_remote else "Slurm"


def local(programs: Path | None = None) -> Transport:
    """Return a transport that runs Slurm's commands on this machine."""
    return Transport(programs=str(programs or ""))


def ssh(
    host: str, sockets: Path, *, program: str = "ssh", programs: Path | None = None
) -> Transport:
    """Return a transport to a login node.

    Its user, keys and jump hosts come from ssh's configuration. `sockets` is a directory for persistent connections,
    created if missing, so that commands need no new login.
    """
    sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
    options = {
        "BatchMode": "yes",  # No user is present to type a password.
        "ConnectTimeout": CONNECT_S,
        "ServerAliveInterval": CONNECT_S,
        "ControlMaster": "auto",
        "ControlPath": "./%C",  # Relative to ssh's working directory, because a socket path is limited to 107 characters.
        "ControlPersist": PERSIST_S,
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    reach = (program, *words, host, "--")
    return Transport(reach, is_remote=True, programs=str(programs or ""), folder=sockets)

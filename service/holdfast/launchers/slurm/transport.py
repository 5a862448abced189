"""Commands on a machine that has Slurm's programs: this one, or a login node behind ssh."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.errors import LauncherUnreachable

LIMIT_S: Final = 60.0
"""For one command. Smaller: a controller that is busy looks unreachable. Bigger: a job hangs on one that hangs."""
CONNECT_S: Final = 10
"""For a connection to a login node. Smaller: a slow one looks unreachable. Bigger: a dead one holds up its jobs."""
KEPT_S: Final = 120
"""For which a connection stays open. Smaller: each look pays for a new one. Bigger: idle sessions on a login node."""
UNREACHED: Final = 255
"""What ssh ends with where it did not come through."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What became of a command."""

    code: int
    out: bytes
    err: str
    """What it said beside, as one line."""


@dataclass(frozen=True, slots=True)
class Transport:
    """A way to run bash where Slurm is."""

    reach: tuple[str, ...] = ()
    """Words before a command that bring it there; none for this machine."""
    is_remote: bool = False
    """Whether there is a shell on the way, which takes the words apart once more."""
    programs: str = ""
    """Folder of Slurm's commands there; empty where they are on its PATH."""
    folder: Path | None = None
    """Where the first of the words is run; None for wherever this process is."""

    def bash(self, text: str, *words: str, given: bytes = b"") -> Reply:
        """What a text for bash did with `words` as its arguments, and `given` as its input. Blocking.

        Raises:
            LauncherUnreachable: it did not get there, or took too long; nobody knows whether it was done.
        """
        if self.programs:
            text = f"PATH={shlex.quote(self.programs)}:$PATH\n{text}"
        command = ["bash", "-c", text, "holdfast", *words]
        whole = [*self.reach, *([shlex.join(command)] if self.is_remote else command)]
        try:
            # Into a file: ssh before 8.5 holds the end of a pipe for as long as it keeps the connection.
            with tempfile.TemporaryFile() as beside:
                done = subprocess.run(
                    whole,
                    input=given,
                    stdout=subprocess.PIPE,
                    stderr=beside,
                    cwd=self.folder,
                    timeout=LIMIT_S,
                    check=False,
                )
                beside.seek(0)
                words_of_it = " ".join(beside.read().decode(errors="replace").split())
        except subprocess.TimeoutExpired as error:
            raise LauncherUnreachable(
                f"{self._place} has not answered for {LIMIT_S:.0f} s"
            ) from error
        except OSError as error:
            raise LauncherUnreachable(f"{whole[0]} cannot be run: {error.strerror}") from error
        if self.is_remote and done.returncode == UNREACHED:
            raise LauncherUnreachable(f"{self._place} cannot be reached: {words_of_it}")
        return Reply(done.returncode, done.stdout, words_of_it)

    @property
    def _place(self) -> str:
        return f"the login node {self.reach[-2]}" if self.is_remote else "Slurm"


def local(programs: Path | None = None) -> Transport:
    """Slurm's commands on this machine."""
    return Transport(programs=str(programs or ""))


def ssh(
    host: str, sockets: Path, *, program: str = "ssh", programs: Path | None = None
) -> Transport:
    """Slurm's commands on a login node, as ssh knows it: user, keys and jumps stand in its own configuration.

    `sockets` is a folder for connections that are kept, so that a look does not log in. It is made if need be.
    """
    sockets.mkdir(mode=0o700, parents=True, exist_ok=True)
    options = {
        "BatchMode": "yes",  # Nobody is there to type a password.
        "ConnectTimeout": CONNECT_S,
        "ServerAliveInterval": CONNECT_S,
        "ControlMaster": "auto",
        "ControlPath": "./%C",  # From where ssh is run: a socket has 107 letters for its whole path.
        "ControlPersist": KEPT_S,
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    reach = (program, *words, host, "--")
    return Transport(reach, is_remote=True, programs=str(programs or ""), folder=sockets)

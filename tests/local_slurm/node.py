"""One node: namespaces around a bash that is its process 1. When that dies, the kernel takes everything along."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil

HERE = Path(__file__).parent
KINDS = ("--net", "--mount", "--uts", "--ipc", "--pid")
SINCE_BOOT = Path("/proc/self/ns/time")
"""There where a node can have an uptime of its own; elsewhere it has the machine's."""


class Node:
    """A running node."""

    def __init__(self, script: str, arguments: Sequence[str], log: Path) -> None:
        """Start it. It ends with this process, however that ends."""
        with log.open("wb") as words:
            # Two deaths in a row: setpriv ties unshare to us, and unshare ties process 1 to itself.
            self._outer = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "--", "unshare", *_clock(), *KINDS),
                    *("--fork", "--kill-child=KILL", "--propagation", "private"),
                    *("bash", str(HERE / script), *arguments),
                ],
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
                start_new_session=True,
            )

    @property
    def stands(self) -> bool:
        """Whether its process 1 has not ended."""
        return self._outer.poll() is None

    @property
    def pid(self) -> int | None:
        """Process 1, as others see it; None while there is none."""
        children = psutil.Process(self._outer.pid).children()
        return children[0].pid if children else None

    @property
    def has_booted(self) -> bool:
        """Whether a compute node sees its own files by now."""
        return Path(f"/proc/{self.pid}/root/run/fakegpu").exists()

    def inside(self, *words: str, folder: str | None = None) -> list[str]:
        """The words of a command as one that runs in it."""
        assert self.pid, "it does not stand yet"
        kinds = ("-m", "-n", "-u", "-i", "-p", *(("-T",) if SINCE_BOOT.exists() else ()))
        wdns = () if folder is None else (f"--wdns={folder}",)
        return ["nsenter", "-t", str(self.pid), *kinds, *wdns, "--", *words]

    def end(self) -> None:
        """Kill it. When this returns, nothing of it runs: the kernel ends process 1 last."""
        if inner := self.pid:
            os.kill(inner, signal.SIGKILL)
        else:
            self._outer.kill()
        self._outer.wait()


def _clock() -> Sequence[str]:
    """Words that set the uptime back to 0, so that Slurm can tell a boot from a daemon that was restarted."""
    if not SINCE_BOOT.exists():
        return ()
    uptime_s = Path("/proc/uptime").read_text().partition(".")[0]
    return ("--time", "--boottime", f"-{uptime_s}")

"""One node: namespaces around a bash as process 1; the kernel ends all processes with it."""

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
"""Exists if a node can have its own uptime; otherwise it has the machine's."""


class Node:
    """A running node."""

    def __init__(self, script: str, arguments: Sequence[str], log: Path) -> None:
        """Start the node. It ends with this process, also if that is killed."""
        with log.open("wb") as output:
            # setpriv ends unshare with this process, and unshare ends process 1 with itself.
            self._outer = subprocess.Popen(
                [
                    *("setpriv", "--pdeathsig", "KILL", "--", "unshare", *_clock(), *KINDS),
                    *("--fork", "--kill-child=KILL", "--propagation", "private"),
                    *("bash", str(HERE / script), *arguments),
                ],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Whether process 1 of the node is running."""
        return self._outer.poll() is None

    @property
    def pid(self) -> int | None:
        """Id of process 1 in the namespace of the host; None before it starts."""
        children = psutil.Process(self._outer.pid).children()
        return children[0].pid if children else None

    @property
    def has_booted(self) -> bool:
        """Whether a compute node has mounted its own files."""
        return Path(f"/proc/{self.pid}/root/run/fakegpu").exists()

    def inside(self, *arguments: str, folder: str | None = None) -> list[str]:
        """Prefix a command so that it runs in the node."""
        assert self.pid, "the node has not started"
        kinds = ("-m", "-n", "-u", "-i", "-p", *(("-T",) if SINCE_BOOT.exists() else ()))
        wdns = () if folder is None else (f"--wdns={folder}",)
        return ["nsenter", "-t", str(self.pid), *kinds, *wdns, "--", *arguments]

    def end(self) -> None:
        """Kill all processes of the node and wait; the kernel ends process 1 last."""
        if inner := self.pid:
            os.kill(inner, signal.SIGKILL)
        else:
            self._outer.kill()
        self._outer.wait()


def _clock() -> Sequence[str]:
    """Options that set the uptime to 0, by which Slurm detects a boot."""
    if not SINCE_BOOT.exists():
        return ()
    uptime_s = Path("/proc/uptime").read_text().partition(".")[0]
    return ("--time", "--boottime", f"-{uptime_s}")

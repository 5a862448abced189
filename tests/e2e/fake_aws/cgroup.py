"""Cgroups of processes that are frozen and killed together with their descendants."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

_FAMILY: Final = "holdfast-skycloud"
_PATIENCE_S: Final = 20.0
_ENTER: Final = 'echo $$ > "$0" && exec "$@"'

_STARTED: Final[list[subprocess.Popen[bytes]]] = []
"""Child processes that are reaped after they were killed."""


class NoCgroups(Exception):
    """Raised if no writable cgroup2 file system exists."""


class Cgroup:
    """A cgroup of version 2. Its processes and their descendants stay in it."""

    def __init__(self, name: str) -> None:
        self._folder = _root() / _FAMILY / name

    @property
    def pids(self) -> list[int]:
        """Process ids in the cgroup."""
        if not self._folder.exists():
            return []
        return [int(line) for line in (self._folder / "cgroup.procs").read_text().split()]

    @property
    def cpu_s(self) -> float:
        """CPU seconds used by all past and present processes of the cgroup."""
        stat = dict(line.split() for line in (self._folder / "cpu.stat").read_text().splitlines())
        return int(stat["usage_usec"]) / 1e6

    def start(
        self, argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None, log: Path
    ) -> None:
        """Start a process in the cgroup and in a new session; append its output to `log`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as file:
            child = subprocess.Popen(
                ["sh", "-c", _ENTER, self._folder / "cgroup.procs", *argv],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        _STARTED.append(child)

    def freeze(self) -> None:
        """Freeze the processes until `thaw`. Their sockets stay open."""
        self._write("cgroup.freeze", "1")
        self._wait(lambda: "frozen 1" in (self._folder / "cgroup.events").read_text(), "freeze")

    def thaw(self) -> None:
        """Let the processes continue."""
        self._write("cgroup.freeze", "0")

    def kill(self) -> None:
        """Kill all processes at once (SIGKILL), and remove the cgroup."""
        if not self._folder.exists():
            return
        self._write("cgroup.kill", "1")
        self._write("cgroup.freeze", "0")
        self._wait(lambda: "populated 0" in (self._folder / "cgroup.events").read_text(), "end")
        self._folder.rmdir()
        _STARTED[:] = [child for child in _STARTED if child.poll() is None]

    def _write(self, name: str, text: str) -> None:
        (self._folder / name).write_text(text)

    def _wait(self, true: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + _PATIENCE_S
        while not true():
            assert time.monotonic() < deadline_s, (
                f"{self._folder.name} does not {what}: {self.pids}"
            )
            time.sleep(0.02)


def all_cgroups() -> list[Cgroup]:
    """All cgroups of this harness on this machine, including those of killed sessions."""
    family = _root() / _FAMILY
    return (
        [Cgroup(path.name) for path in family.iterdir() if path.is_dir()] if family.exists() else []
    )


def _root() -> Path:
    """The directory of version 2 cgroups, alone or beside those of version 1.

    Raises:
        NoCgroups: none exists.
    """
    for line in Path("/proc/mounts").read_text().splitlines():
        _, folder, kind, options, *_ = line.split()
        if kind == "cgroup2" and options.split(",")[0] == "rw":
            return Path(folder)
    raise NoCgroups("no writable cgroup2 file system; in a container, run it with --privileged")

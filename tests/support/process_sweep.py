"""Ends all processes that a test run started, however the run ends.

The test run continues in a grandchild of the started process. The process between them is the reaper of all
its descendants, including daemons with their own session and environment: it waits until the run or its
starter has ended, and kills the rest. It also reports each descendant that listens beyond loopback.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

import psutil
import pytest

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
LISTENS = "0A"
"""The state of a listening socket in /proc/net/tcp."""
LOOPBACK = re.compile(r"([0-9A-F]{16}FFFF0000)?[0-9A-F]{6}7F|0{24}01000000")
"""127.0.0.0/8, also within IPv6, and ::1, as little-endian machines write them in that file."""
LOOK_EVERY_S = 1.0
"""Seconds between two looks at the sockets.

A lower value costs CPU time; a higher value misses more sockets that are open briefly.
"""


class Sweep:
    """A plugin that fails a run in which a process listened beyond loopback."""

    def __init__(self) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._reports, writer = os.pipe()
        starter = os.getpid()
        reaper = os.fork()
        if reaper:
            _wait_for(reaper)
        _become_reaper(starter, writer)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Read the report of the reaper."""
        os.set_blocking(self._reports, False)
        with suppress(BlockingIOError):
            found = os.read(self._reports, 1 << 16).decode()
            print(f"\nlistens beyond loopback:\n{found}", file=sys.__stderr__)
            session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _wait_for(reaper: int) -> NoReturn:
    """Return the exit code of the run; pass on an interrupt that was sent to this process alone."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGCHLD})
    while True:
        got = signal.sigwaitinfo({signal.SIGINT, signal.SIGCHLD})
        ended, status = os.waitpid(reaper, os.WNOHANG)
        if ended:
            os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
        if (
            got.si_signo == signal.SIGINT and got.si_pid
        ):  # 0: sent by the terminal to the whole process group.
            os.kill(reaper, signal.SIGINT)


def _become_reaper(starter: int, writer: int) -> None:
    """Fork the test run, and return in the fork."""
    waited_for = {signal.SIGINT, signal.SIGTERM, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, waited_for)
    libc = ctypes.CDLL(None)
    libc.prctl(PR_SET_CHILD_SUBREAPER, 1)
    _tie(libc, starter, signal.SIGTERM)
    reaper = os.getpid()
    run = os.fork()
    if not run:
        os.close(writer)
        _tie(libc, reaper, signal.SIGKILL)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return
    seen: set[str] = set()
    while True:
        got = signal.sigtimedwait(waited_for, LOOK_EVERY_S)
        code = _reap(run)
        if code is not None or (got and got.si_signo == signal.SIGTERM):
            break
        if got and got.si_signo == signal.SIGINT and got.si_pid == starter:
            os.kill(run, signal.SIGINT)
        for line in _listeners_beyond_loopback(seen):
            os.write(writer, f"{line}\n".encode())
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with suppress(psutil.NoSuchProcess):
                child.kill()
        with suppress(ChildProcessError):
            os.waitpid(-1, 0)
    os._exit(1 if code is None else code & 0xFF)


def _tie(libc: ctypes.CDLL, parent: int, by: signal.Signals) -> None:
    libc.prctl(PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:  # The parent ended before the signal was requested.
        os.kill(os.getpid(), by)


def _reap(run: int) -> int | None:
    """Reap all terminated child processes; return the exit code of the run if it is among them."""
    code = None
    with suppress(ChildProcessError):
        while True:
            ended, status = os.waitpid(-1, os.WNOHANG)
            if not ended:
                break
            if ended == run:
                code = os.waitstatus_to_exitcode(status)
    return code


def _listeners_beyond_loopback(seen: set[str]) -> Iterator[str]:
    """Yield sockets of descendants in this network namespace that listen beyond loopback."""
    found = dict(_open_to_others()) if _has_way_out() else {}
    new = {inode: port for inode, port in found.items() if inode not in seen}
    seen.update(new)
    if not new:
        return
    for child in psutil.Process().children(recursive=True):
        with suppress(OSError, psutil.Error):
            files = {str(file.readlink()) for file in Path(f"/proc/{child.pid}/fd").iterdir()}
            if may_listen_anywhere(Path(f"/proc/{child.pid}/maps").read_text()):
                continue
            for inode in files & {f"socket:[{inode}]" for inode in new}:
                yield f"port {new[inode[8:-1]]}: {' '.join(child.cmdline())[:200]}"


def may_listen_anywhere(maps: str) -> bool:
    """Whether a process with this memory map may listen beyond loopback.

    The rendezvous store of torch listens on all addresses, and has no setting for that. A terminating process has
    no memory while it still has its sockets.
    """
    return not maps or "libtorch" in maps


def _has_way_out() -> bool:
    """Whether a default route exists. Without one, tests may listen on any address."""
    routes = Path("/proc/net/route").read_text().splitlines()[1:]
    return any(line.split()[1] == "00000000" for line in routes)


def _open_to_others() -> Iterator[tuple[str, int]]:
    """Yield inode and port of every socket, of any process, that listens beyond loopback."""
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            address, _, port = local.partition(":")
            if state == LISTENS and not LOOPBACK.fullmatch(address):
                yield inode, int(port, 16)

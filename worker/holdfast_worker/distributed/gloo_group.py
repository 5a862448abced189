"""A gloo group whose connections can be ended at any time, so that no collective hangs.

`abort` of gloo closes the connections, but a collective that begins at the same moment may then wait until its timeout, as gloo
records no error for it. If the other end closes a connection, gloo does record one. Therefore this shuts the sockets down, which has the
same effect as the loss of all other ranks.

gloo passes that error on to the buffers that wait for a message, but not to those with a message that is being sent or received
(`Pair::signalException`), and it does not notice the end of a connection with half a message for a buffer that is gone (`Pair::prepareRead`).
Then a collective waits until its timeout, while nothing changes its tensors. Such a group is abandoned.
"""

from __future__ import annotations

import ctypes
import os
import select
import socket
import stat
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store, TCPStore

FILES: Final = Path("/proc/self/fd")
"""The open files of this process; absent on other systems than Linux."""
POLLER: Final = "anon_inode:[eventpoll]"
"""What the kernel calls a file with which a thread waits for several others."""
TASKS: Final = Path("/proc/self/task")
"""The threads of this process; absent on other systems than Linux."""
COLLECTIVES: Final = "pt_gloo_runloop"
"""Name of the threads in which gloo runs collectives."""
CONNECTIONS: Final = "gloo_tcp_loop"
"""Name of the threads in which gloo reads and writes connections. They wait for at most 10 ms at a time."""
ASLEEP_S: Final = 0.25
"""Time for which collectives have to sleep before they count as stopped.
A lower value may take one for stopped that is about to be woken; a higher value delays the next step."""
PASSES: Final = 4
"""How often the other threads have to wait in the meantime.
A lower value may miss a message that one of them hands over; a higher value delays the next step."""


@dataclass(frozen=True, slots=True)
class _Threads:
    """How often each thread of gloo has begun to wait."""

    collectives: Mapping[int, int]
    connections: Mapping[int, int]
    are_asleep: bool
    """Whether no collective runs."""
    at_s: float

    def have_slept_since(self, earlier: _Threads) -> bool:
        """Whether no collective has run since an earlier look."""
        is_same = self.are_asleep and self.collectives == earlier.collectives
        return is_same and self.at_s - earlier.at_s > ASLEEP_S

    def have_looked_since(self, earlier: _Threads) -> bool:
        """Whether all messages that had arrived before an earlier look have been handed over."""
        return all(
            waits >= earlier.connections.get(thread, 0) + PASSES
            for thread, waits in self.connections.items()
        )


class GlooGroup:
    """A gloo group and its sockets."""

    def __init__(self, store: PrefixStore, rank: int, size: int, timeout: timedelta) -> None:
        """Connect to all other ranks.

        Raises:
            RuntimeError: a rank is missing after `timeout`.
        """
        port = _store_port(store)
        before = _connections(port)
        self.collectives: Any = ProcessGroupGloo(store, rank, size, timeout)
        """The process group of torch."""
        added = _connections(port).items() - before.items()
        # Other threads may connect to something at the same time. Their connections cannot be told from those of gloo.
        self._connections = dict(added) if len(added) == size - 1 else {}
        self._rest: _Threads | None = None
        """Threads when they began to sleep; None: they do not."""
        self._is_cut = False
        """Whether gloo does not look after its connections any more."""

    def __del__(self) -> None:
        """Destroy the group of torch in another thread, if one of its own drops the last reference.

        Its destructor waits for its threads, and would end the process there. Callbacks of collectives run in them, and what
        they refer to may be dropped everywhere else in the meantime.
        """
        if "collectives" in self.__dict__ and _is_foreign_thread():
            last = [self.__dict__.pop("collectives")]
            # The interpreter waits for it, as it would not for one that inherits from this thread.
            threading.Thread(target=last.clear, name="holdfast-gloo-end", daemon=False).start()

    def end_connections(self) -> None:
        """End the connections to all other ranks: collectives in progress fail."""
        for inode, file in self._connections.items():
            with suppress(OSError):
                # gloo may have closed it, and its number may belong to another file by now.
                if os.fstat(file).st_ino == inode:
                    with socket.socket(fileno=os.dup(file)) as connection:
                        connection.shutdown(socket.SHUT_RDWR)
        if not self._connections:
            self.collectives.abort()

    def has_stopped(self) -> bool:
        """Whether collectives that have not ended change no tensors any more.

        Ask repeatedly. Collectives that sleep are only woken by messages, and so by none once the connections are cut.
        """
        threads = _threads()
        if not self._connections or not threads.are_asleep or not threads.collectives:
            self._rest = None
        elif self._rest is None or threads.collectives != self._rest.collectives:
            self._rest = threads
        elif not threads.have_slept_since(self._rest):
            pass
        elif not self._is_cut:
            self._cut()
            self._is_cut, self._rest = True, threads
        elif threads.have_looked_since(self._rest):
            return True
        return False

    def abandon(self) -> None:
        """Never destroy the group, as its destructor would wait for collectives that have stopped."""
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.collectives))

    def _cut(self) -> None:
        """Have gloo not look after its connections any more.

        It would do nothing else for one of which it misses the end.
        """
        for path in FILES.iterdir():
            with suppress(OSError):
                if path.readlink().name != POLLER:
                    continue
                with select.epoll.fromfd(os.dup(int(path.name))) as poller:
                    for inode, file in self._connections.items():
                        with suppress(OSError):
                            if os.fstat(file).st_ino == inode:
                                poller.unregister(file)


def _is_foreign_thread() -> bool:
    """Whether this thread was not started by Python."""
    return isinstance(threading.current_thread(), threading._DummyThread)  # noqa: SLF001 - it has no other name


def _threads() -> _Threads:
    waits: dict[str, dict[int, int]] = {COLLECTIVES: {}, CONNECTIONS: {}}
    are_asleep, at_s = True, time.monotonic()
    for path in TASKS.iterdir() if TASKS.is_dir() else ():
        with suppress(OSError):  # A thread may end in the meantime.
            lines = (path / "status").read_text().splitlines()
            status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
            if (name := status["Name"]) in waits:
                waits[name][int(path.name)] = int(status["voluntary_ctxt_switches"])
                are_asleep &= name != COLLECTIVES or status["State"].startswith("S")
    return _Threads(waits[COLLECTIVES], waits[CONNECTIONS], are_asleep, at_s)


def _store_port(store: Store) -> int | None:
    """The port of a store; None if it is not in a network."""
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store.port if isinstance(store, TCPStore) else None


def _connections(store_port: int | None) -> dict[int, int]:
    """The connected TCP sockets of this process, without those of the store.

    Their inodes, with the number of the file.
    """
    found = {}
    for path in FILES.iterdir() if FILES.is_dir() else ():
        file = int(path.name)
        with suppress(OSError):  # The list contains the file with which it is read.
            status = os.fstat(file)
            if stat.S_ISSOCK(status.st_mode) and _is_connected(file, store_port):
                found[status.st_ino] = file
    return found


def _is_connected(file: int, store_port: int | None) -> bool:
    with socket.socket(fileno=os.dup(file)) as copy:
        if copy.family not in {socket.AF_INET, socket.AF_INET6} or copy.type != socket.SOCK_STREAM:
            return False
        try:
            ports = copy.getpeername()[1], copy.getsockname()[1]
        except OSError:
            return False
        return store_port not in ports

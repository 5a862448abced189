"""A gloo group whose connections can be ended at any time, so that no collective hangs.

`abort` of gloo closes the connections, but a collective that begins at the same moment may then wait until its timeout, as gloo
records no error for it. If the other end closes a connection, gloo does record one. Therefore this shuts the sockets down, which has the
same effect as the loss of all other ranks.
"""

from __future__ import annotations

import os
import socket
import stat
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, Store, TCPStore

FILES: Final = Path("/proc/self/fd")
"""The open files of this process; absent on other systems than Linux."""


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

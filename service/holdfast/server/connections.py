"""Limits connections, so that file descriptors remain for the database and launchers."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.host import resources

RESERVED: Final = 200
"""Descriptors reserved for the service: up to 48 connections to a SQLite database with three
each, files, launchers. A lower value lets callers exhaust them; a higher value rejects
callers sooner."""
LEAST: Final = 8
"""Connections that are accepted even with hardly any descriptors."""


def most() -> int:
    """The maximum number of connections under this process's current limit.

    `prlimit` can change the limit.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(LEAST, min(limit // 2, limit - RESERVED))


class Listener(socket.socket):
    """A socket that accepts one connection per turn of the event loop.

    So each one is counted before the next. asyncio accepts all waiting connections in one turn, and
    pauses for a second if that exhausts the descriptors.
    """

    _has_accepted = False

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept one connection.

        Raises:
            BlockingIOError: none is waiting, or one was accepted in this turn.
        """
        if self._has_accepted:
            self._has_accepted = False
            raise BlockingIOError
        accepted = super().accept()
        self._has_accepted = True
        return accepted


class BoundedProtocol(H11Protocol):
    """HTTP on one connection, within the limit of connections.

    Over the limit, it replaces the oldest idle connection, or is closed.
    """

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start if the limit permits it."""
        self.since_s = self.loop.time()
        super().connection_made(transport)
        if len(self.connections) <= most():
            return
        idle = [other for other in self.connections if other is not self and _is_idle(other)]
        if idle:
            min(idle, key=_since_s).transport.close()
        else:
            resources.note_exhausted_descriptors(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
            transport.abort()


def _is_idle(connection: object) -> bool:
    assert isinstance(connection, BoundedProtocol)
    return connection.cycle is None or connection.cycle.response_complete


def _since_s(connection: object) -> float:
    assert isinstance(connection, BoundedProtocol)
    return connection.since_s

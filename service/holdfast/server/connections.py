"""Connections to the service: fewer than there are file descriptors, so that its database and launchers always find one."""

from __future__ import annotations

import asyncio
import errno
import os
import resource
import socket
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

from holdfast.host import file_descriptors

RESERVED: Final = 200
"""Descriptors for what the service opens itself: up to 48 connections to a SQLite database with three each, files, launchers. A
lower value lets callers take them; a higher value refuses callers sooner."""
LEAST: Final = 8
"""Connections that are taken even if there are hardly any descriptors."""


def most() -> int:
    """How many connections may be open under the present limit of this process, which `prlimit` can change."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(LEAST, min(limit // 2, limit - RESERVED))


class Listener(socket.socket):
    """A socket that accepts one connection in a turn of the event loop, so that each is counted before the next.

    asyncio accepts all that wait in one turn, and pauses for a second where that exhausts the descriptors.
    """

    _has_accepted = False

    def accept(self) -> tuple[socket.socket, Any]:
        """Accept one connection.

        Raises:
            BlockingIOError: none waits, or one was accepted in this turn.
        """
        if self._has_accepted:
            self._has_accepted = False
            raise BlockingIOError
        accepted = super().accept()
        self._has_accepted = True
        return accepted


class BoundedProtocol(H11Protocol):
    """HTTP of one connection. If there are too many, it takes the place of the oldest without a request, or is closed."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin, if there is room."""
        self.since_s = self.loop.time()
        super().connection_made(transport)
        if len(self.connections) <= most():
            return
        idle = [other for other in self.connections if other is not self and _is_idle(other)]
        if idle:
            min(idle, key=_since_s).transport.close()
        else:
            file_descriptors.note(OSError(errno.EMFILE, os.strerror(errno.EMFILE)))
            transport.abort()


def _is_idle(connection: object) -> bool:
    assert isinstance(connection, BoundedProtocol)
    return connection.cycle is None or connection.cycle.response_complete


def _since_s(connection: object) -> float:
    assert isinstance(connection, BoundedProtocol)
    return connection.since_s

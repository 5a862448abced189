"""Bytes to and from one connection, received into and sent from their final place."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

from fake_s3.pace import Pace

AHEAD_BYTES: Final = 16 << 10
"""Read-ahead for lines. Bytes of a body in it are copied once more."""
LONGEST_LINE: Final = 64 << 10
SCRATCH_BYTES: Final = 1 << 20
"""Buffer for unused bodies, small enough for the caches of the processor."""


class ConnectionClosed(Exception):
    """The connection was closed, by either side."""


class Source(ABC):
    """A source of bytes, read as lines or into existing memory."""

    def __init__(self) -> None:
        self._ahead = memoryview(b"")

    @abstractmethod
    def _more(self, view: memoryview) -> int:
        """Receive into `view` and return the size; 0 at the end."""

    def some(self, view: memoryview) -> int:
        """Receive into `view` and return the size; bytes that were read ahead come first."""
        if not self._ahead:
            return self._more(view)
        size = min(len(view), len(self._ahead))
        view[:size] = self._ahead[:size]
        self._ahead = self._ahead[size:]
        return size

    def fill(self, view: memoryview) -> None:
        """Fill `view` with bytes.

        Raises:
            ConnectionClosed: The source ends before.
        """
        at = 0
        while at < len(view):
            size = self.some(view[at:])
            if not size:
                raise ConnectionClosed
            at += size

    def drain(self, scratch: memoryview) -> int:
        """Read to the end and return the number of bytes."""
        total = 0
        while size := self.some(scratch):
            total += size
        return total

    def line(self) -> bytes:
        """Read a line, without its end.

        Raises:
            ConnectionClosed: The source ends before.
        """
        read = bytes(self._ahead)
        self._ahead = memoryview(b"")
        while b"\n" not in read:
            block = bytearray(AHEAD_BYTES)
            size = self._more(memoryview(block))
            if not size or len(read) > LONGEST_LINE:
                raise ConnectionClosed
            read += block[:size]
        line, _, rest = read.partition(b"\n")
        self._ahead = memoryview(rest)
        return line.removesuffix(b"\r")


class Wire(Source):
    """A connection with limited bandwidth."""

    def __init__(self, connection: socket.socket, pace: Pace, closing: threading.Event) -> None:
        super().__init__()
        self._socket = connection
        self._pace = pace
        self._closing = closing
        self._received = 0
        self.sent = 0
        self.has_requests = False
        """Whether the connection has received a request other than a command."""
        self._scratch: memoryview | None = None

    @property
    def received(self) -> int:
        """Number of bytes that were consumed, without those read ahead."""
        return self._received - len(self._ahead)

    @property
    def scratch(self) -> memoryview:
        """Memory for unused bytes."""
        if self._scratch is None:
            self._scratch = memoryview(bytearray(SCRATCH_BYTES))
        return self._scratch

    def _more(self, view: memoryview) -> int:
        return self._receive(view, 0)

    def fill(self, view: memoryview) -> None:
        """Fill `view`; the kernel waits for all bytes, so that Python wakes once."""
        at = self.some(view) if self._ahead and view else 0
        while at < len(view):
            size = self._receive(view[at:], socket.MSG_WAITALL)
            if not size:
                raise ConnectionClosed
            at += size

    def _receive(self, view: memoryview, flags: int) -> int:
        quantum = self._pace.quantum_bytes
        try:
            size = self._socket.recv_into(view[:quantum] if quantum else view, 0, flags)
        except OSError as error:
            raise ConnectionClosed from error
        self._received += size
        if quantum:
            self.wait(self._pace.incoming_s(size))
        return size

    def send(self, parts: Iterable[bytes | memoryview]) -> None:
        """Send all parts.

        Raises:
            ConnectionClosed: The peer has closed the connection.
        """
        quantum = self._pace.quantum_bytes
        views = [memoryview(part) for part in parts if len(part)]
        if quantum:
            views = [view[at : at + quantum] for view in views for at in range(0, len(view), quantum)]  # fmt: skip
        try:
            if not quantum:
                self._send_all(views)
                return
            for view in views:
                self._socket.sendall(view)
                self.sent += len(view)
                self.wait(self._pace.outgoing_s(len(view)))
        except OSError as error:
            raise ConnectionClosed from error

    def _send_all(self, views: list[memoryview]) -> None:
        done = self._socket.sendmsg(views[:64])  # Usually the head and the body in one call.
        self.sent += done
        for view in views:
            left = view[done:]
            done = max(0, done - len(view))
            if left:
                self._socket.sendall(left)
                self.sent += len(left)

    def begin(self) -> None:
        """Start the transfer of a body, in either direction."""
        self._pace.begin()

    def wait(self, wait_s: float) -> None:
        """Wait.

        Raises:
            ConnectionClosed: The server is closed in the meantime.
        """
        if wait_s > 0 and self._closing.wait(wait_s):
            raise ConnectionClosed


class Plain(Source):
    """A body of known length."""

    def __init__(self, source: Source, size_bytes: int) -> None:
        super().__init__()
        self._source = source
        self._left = size_bytes

    def _more(self, view: memoryview) -> int:
        size = self._source.some(view[: self._left]) if self._left else 0
        self._left -= size
        return size

    def fill(self, view: memoryview) -> None:
        """Fill `view` directly from the underlying source."""
        if self._ahead or len(view) > self._left:
            super().fill(view)
            return
        self._left -= len(view)
        self._source.fill(view)


class Chunked(Source):
    """A chunked body with trailers, in `Transfer-Encoding: chunked` or `aws-chunked`."""

    def __init__(self, source: Source) -> None:
        super().__init__()
        self._source = source
        self._left = 0
        self._is_over = False
        self.trailers: dict[str, str] = {}

    def _more(self, view: memoryview) -> int:
        if not self._left and not self._is_over:
            self._begin()
        if self._is_over or not view:
            return 0
        size = self._source.some(view[: self._left])
        if not size:
            raise ConnectionClosed
        self._left -= size
        if not self._left:
            self._source.line()
        return size

    def _begin(self) -> None:
        head, _, _ = self._source.line().partition(
            b";"
        )  # A signature may follow; it is not checked.
        try:
            self._left = int(head, 16)
        except ValueError as error:
            raise ConnectionClosed from error
        if self._left:
            return
        self._is_over = True
        while line := self._source.line():
            name, _, value = line.decode("latin-1").partition(":")
            self.trailers[name.strip().lower()] = value.strip()

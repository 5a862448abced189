"""Bytes to and from one connection: lines and bodies come in straight into their place, and go out from where they lie."""

from __future__ import annotations

import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Final

from fake_s3.pace import Pace

AHEAD_BYTES: Final = 16 << 10
"""How far is read ahead for lines. What is read of a body with them is copied once more."""
LONGEST_LINE: Final = 64 << 10
SCRATCH_BYTES: Final = 1 << 20
"""Buffer for unused bodies. Small enough for the caches of the processor."""


class Gone(Exception):
    """The other side has hung up, or we have."""


class Source(ABC):
    """Bytes that come, as lines or into memory that is there already."""

    def __init__(self) -> None:
        self._ahead = memoryview(b"")

    @abstractmethod
    def _more(self, view: memoryview) -> int:
        """How many bytes have come into `view`: at least one, or none at the end."""

    def some(self, view: memoryview) -> int:
        """The same, after what was read ahead."""
        if not self._ahead:
            return self._more(view)
        size = min(len(view), len(self._ahead))
        view[:size] = self._ahead[:size]
        self._ahead = self._ahead[size:]
        return size

    def fill(self, view: memoryview) -> None:
        """Let `view` be full of bytes.

        Raises:
            Gone: there are not that many.
        """
        at = 0
        while at < len(view):
            size = self.some(view[at:])
            if not size:
                raise Gone
            at += size

    def drain(self, scratch: memoryview) -> int:
        """How many bytes there were up to the end."""
        total = 0
        while size := self.some(scratch):
            total += size
        return total

    def line(self) -> bytes:
        """What comes up to the next line end, without it.

        Raises:
            Gone: there is no such end.
        """
        read = bytes(self._ahead)
        self._ahead = memoryview(b"")
        while b"\n" not in read:
            block = bytearray(AHEAD_BYTES)
            size = self._more(memoryview(block))
            if not size or len(read) > LONGEST_LINE:
                raise Gone
            read += block[:size]
        line, _, rest = read.partition(b"\n")
        self._ahead = memoryview(rest)
        return line.removesuffix(b"\r")


class Wire(Source):
    """A connection, at the pace of its line."""

    def __init__(self, connection: socket.socket, pace: Pace, closing: threading.Event) -> None:
        super().__init__()
        self._socket = connection
        self._pace = pace
        self._closing = closing
        self._received = 0
        self.sent = 0
        self.is_known = False
        """Whether a request other than a command has come over it."""
        self._scratch: memoryview | None = None

    @property
    def received(self) -> int:
        """Bytes that have come and were asked for; what was read ahead is not among them."""
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
        """See `Source`; the kernel waits for the whole of it, and Python is woken once."""
        at = self.some(view) if self._ahead and view else 0
        while at < len(view):
            size = self._receive(view[at:], socket.MSG_WAITALL)
            if not size:
                raise Gone
            at += size

    def _receive(self, view: memoryview, flags: int) -> int:
        quantum = self._pace.quantum_bytes
        try:
            size = self._socket.recv_into(view[:quantum] if quantum else view, 0, flags)
        except OSError as error:
            raise Gone from error
        self._received += size
        if quantum:
            self.wait(self._pace.incoming_s(size))
        return size

    def send(self, parts: Iterable[bytes | memoryview]) -> None:
        """Send all of it.

        Raises:
            Gone: the other side does not want it.
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
            raise Gone from error

    def _send_all(self, views: list[memoryview]) -> None:
        done = self._socket.sendmsg(views[:64])  # The head and the body in one call, mostly.
        self.sent += done
        for view in views:
            left = view[done:]
            done = max(0, done - len(view))
            if left:
                self._socket.sendall(left)
                self.sent += len(left)

    def begin(self) -> None:
        """A body begins to move, in one direction or the other."""
        self._pace.begin()

    def wait(self, wait_s: float) -> None:
        """Return after so long.

        Raises:
            Gone: the server is closed in the meantime.
        """
        if wait_s > 0 and self._closing.wait(wait_s):
            raise Gone


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
        """See `Source`; straight from below."""
        if self._ahead or len(view) > self._left:
            super().fill(view)
            return
        self._left -= len(view)
        self._source.fill(view)


class Chunked(Source):
    """A body in chunks, with trailers behind it: `Transfer-Encoding: chunked` and `aws-chunked` look the same."""

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
            raise Gone
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
            raise Gone from error
        if self._left:
            return
        self._is_over = True
        while line := self._source.line():
            name, _, value = line.decode("latin-1").partition(":")
            self.trailers[name.strip().lower()] = value.strip()

"""Reads objects from S3 straight into given memory.

A client library receives an object into memory of its own, which then has to be copied: for checkpoints of gigabytes, that costs more
than the transfer. Here the kernel copies from the socket to the destination. URLs are signed. Where this module
does not read an object, for whatever reason, `S3Store` does with its client library, which also finds out what is wrong.
"""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterable, Iterator
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from typing import Final
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from holdfast_worker.storage.base import StoreUnreachable, cut_views

READ_BYTES: Final = 1 << 20
"""Most bytes of one read, which are verified while they are in a core's cache. A higher value
exceeds it; a lower value adds calls."""
TIMEOUT_S: Final = 60.0
"""Time limit for a connection, and for each read from it. A higher value waits on dead
connections; a lower value fails on a slow link."""


class _Closing:
    """A connection that is closed once the thread that used it has ended."""

    def __init__(self, connection: HTTPConnection) -> None:
        self.connection = connection

    def __del__(self) -> None:
        self.connection.close()


class _Connections(threading.local):
    """The connection of each thread."""

    current: _Closing | None = None


class DirectReads:
    """Connections to the server of one bucket. Threads may share it."""

    def __init__(self, sign: Callable[[str], str | None]) -> None:
        """`sign` returns a URL that reads an object, or None."""
        self._sign = sign
        self._threads = _Connections()
        self._tls: ssl.SSLContext | None = None
        self._is_possible = True

    def open(self, key: str) -> HTTPResponse | None:
        """Request an object; None if it cannot be read here."""
        if not self._is_possible or not (url := self._sign(key)):
            return None
        address = urlsplit(url)
        try:
            if getproxies().get(address.scheme) and not proxy_bypass(address.hostname or ""):
                self._is_possible = False
                return None
            return self._request(address.scheme, address.netloc, f"{address.path}?{address.query}")
        except ssl.SSLError:
            # Only the other client may know its certificate.
            self._is_possible = False
        except (OSError, HTTPException):
            pass
        return None

    def read(self, found: HTTPResponse, into: Iterable[memoryview]) -> Iterator[memoryview]:
        """Read an object into views in this order, and yield what was read into each.

        Raises:
            StoreUnreachable: the connection broke.
        """
        is_whole = False
        try:
            for view in cut_views(into, READ_BYTES):
                at = 0
                while at < len(view) and (size := found.readinto(view[at:])):
                    yield view[at : at + size]
                    at += size
                if at < len(view):
                    break
            is_whole = not found.length
        except (OSError, HTTPException) as error:
            raise StoreUnreachable(f"the connection broke: {error}") from error
        finally:
            if not is_whole:
                self._threads.current = None
        if not is_whole:
            raise StoreUnreachable(f"the connection ended {found.length} bytes too early")

    def _request(self, scheme: str, address: str, target: str) -> HTTPResponse | None:
        """Send a request; None if the response is no object."""
        while True:
            is_new = self._threads.current is None
            current = self._threads.current or _Closing(self._connect(scheme, address))
            connection, self._threads.current = current.connection, current
            try:
                connection.request("GET", target, headers={"Accept-Encoding": "identity"})
                reply = connection.getresponse()
            except (OSError, HTTPException):
                self._threads.current = None
                if is_new:
                    raise
                continue  # The server has closed an idle connection.
            if reply.status == HTTPStatus.OK and reply.length is not None:
                return reply
            self._threads.current = None
            return None

    def _connect(self, scheme: str, address: str) -> HTTPConnection:
        if scheme == "http":
            return HTTPConnection(address, timeout=TIMEOUT_S)
        self._tls = self._tls or ssl.create_default_context()
        return HTTPSConnection(address, timeout=TIMEOUT_S, context=self._tls)

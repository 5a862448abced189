"""The socket server of the fake S3, with one thread for each connection."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Final

from fake_s3.clouds import translate
from fake_s3.control import control
from fake_s3.exchange import Exchange, Reset
from fake_s3.faults import TriggeredFaults
from fake_s3.pace import Pace
from fake_s3.request import read_request
from fake_s3.state import ServerState
from fake_s3.wire import ConnectionClosed, Wire

DRAIN_S: Final = 1.0
"""Maximum time for which a client may continue to send an unused body."""


class Server:
    """A fake S3 that listens on loopback from `start` until `close`."""

    def __init__(self, state: ServerState, port: int = 0) -> None:
        self.state = state
        self._listener = socket.create_server(("127.0.0.1", port), backlog=512)
        self._closing = threading.Event()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()
        self._acceptor = threading.Thread(target=self._accept, name="fake_s3", daemon=True)

    @property
    def port(self) -> int:
        """Port of the listening socket."""
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Start to accept connections."""
        self._acceptor.start()

    def close(self) -> None:
        """Close all connections, and return when all threads have ended."""
        self._closing.set()
        self.state.faults.disarm()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        with self._lock:
            threads = list(self._open.values())
            for connection in self._open:
                _shut_down(connection)
        for thread in threads:
            thread.join()

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return  # The listener is closed.
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            with self._lock:
                self._open[connection] = thread
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        wire = Wire(connection, Pace(self.state.shared_link), self._closing)
        try:
            while self._serve_request(wire):
                pass
            _drain(connection)
        except Reset:
            # Closed with unread data, so that the kernel sends RST.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except ConnectionClosed:
            pass
        finally:
            with self._lock:
                self._open.pop(connection)
            connection.close()

    def _serve_request(self, wire: Wire) -> bool:
        """Serve one request and return whether the connection can be reused."""
        request = read_request(wire)
        if request.bucket == "_stand":
            exchange = Exchange(self.state, wire, request, TriggeredFaults())
            body = exchange.receive(is_wanted=True).joined()
            exchange.send(control(self.state, request, body))
            return not exchange.is_last
        translate(request)
        if not wire.has_requests:
            wire.has_requests = True
            self.state.counters.count_connection()
        triggered = self.state.faults.trigger(request, self.state.settings.seed)
        exchange = Exchange(self.state, wire, request, triggered)
        flight = self.state.counters.flight(request)
        try:
            exchange.run(flight)
        finally:
            flight.finish()
        return not exchange.is_last


def _drain(connection: socket.socket) -> None:
    """Wait until a client that still sends has read its reply.

    Closing at once could discard the reply.
    """
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(DRAIN_S)
        while connection.recv(64 << 10):
            pass


def _shut_down(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # The peer may have closed it first.
        connection.shutdown(socket.SHUT_RDWR)

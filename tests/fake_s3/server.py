"""The stand-in on a socket: one thread for each connection, which reads, is befallen, does, and answers."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import Final

from fake_s3.control import control
from fake_s3.exchange import Exchange, Reset
from fake_s3.faults import Struck
from fake_s3.pace import Pace
from fake_s3.request import read_request
from fake_s3.state import ServerState
from fake_s3.wire import Gone, Wire

SEEN_OFF_S: Final = 1.0
"""How long a client may continue sending an unused body."""


class Server:
    """A stand-in that listens on this machine, from `start` until `close`."""

    def __init__(self, depot: ServerState, port: int = 0) -> None:
        self.depot = depot
        self._listener = socket.create_server(("127.0.0.1", port), backlog=512)
        self._closing = threading.Event()
        self._open: dict[socket.socket, threading.Thread] = {}
        self._lock = threading.Lock()
        self._acceptor = threading.Thread(target=self._accept, name="fake_s3", daemon=True)

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def start(self) -> None:
        """Accept connections from now on."""
        self._acceptor.start()

    def close(self) -> None:
        """Hang up on everybody, and return when all threads are over."""
        self._closing.set()
        self.depot.faults.disarm()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._acceptor.join()
        self._listener.close()
        with self._lock:
            threads = list(self._open.values())
            for connection in self._open:
                _hang_up(connection)
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
        wire = Wire(connection, Pace(self.depot.line), self._closing)
        try:
            while self._answer_one(wire):
                pass
            _see_off(connection)
        except Reset:
            # Closed at once, with what is unread: the kernel sends RST.
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        except Gone:
            pass
        finally:
            with self._lock:
                self._open.pop(connection)
            connection.close()

    def _answer_one(self, wire: Wire) -> bool:
        """Whether the connection can be used again."""
        request = read_request(wire)
        if request.bucket == "_stand":
            exchange = Exchange(self.depot, wire, request, Struck())
            body = exchange.receive(is_wanted=True).joined()
            exchange.send(control(self.depot, request, body))
            return not exchange.is_last
        if not wire.is_known:
            wire.is_known = True
            self.depot.tally.met()
        struck = self.depot.faults.strike(request, self.depot.settings.seed)
        exchange = Exchange(self.depot, wire, request, struck)
        flight = self.depot.tally.flight(request)
        try:
            exchange.run(flight)
        finally:
            flight.land()
        return not exchange.is_last


def _see_off(connection: socket.socket) -> None:
    """Let a client that was answered before it had sent everything read that answer: closed at once, it may be lost."""
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(SEEN_OFF_S)
        while connection.recv(64 << 10):
            pass


def _hang_up(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):  # The other side may have done so first.
        connection.shutdown(socket.SHUT_RDWR)

"""Holds objects of ranks in the memory of the wrapper, so that they outlive the ranks.

Standard library only.

Ranks of this node and of the one before it in the ring put their snapshots here. The memory belongs to the wrapper's process: it is
freed when that ends, however it ends. Ranks reserve what they need first, and are refused if the machine has too little.
"""

from __future__ import annotations

import hmac
import json
import mmap
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from holdfast_worker.console import log_info
from holdfast_worker.node_memory.room import Room, measure_room
from holdfast_worker.node_memory.wire import (
    TIMEOUT_S,
    HolderAddress,
    receive_into,
    receive_line,
    send_line,
)
from holdfast_worker.protocol.reports import Json

HUGE_BYTES: Final = 2 << 20
"""Size of a huge page. Smaller objects are mapped with small pages."""
MAX_CONNECTIONS: Final = 256
"""Connections that are served at once. A lower value makes ranks wait for each other; a higher value lets strangers start more threads."""
MAX_WAITING: Final = 4096
"""Connections that wait for others to end. A lower value rejects ranks of a large run that start at once; a higher value has no effect on Linux."""


class MemoryHolder:
    """The objects in the memory of one node."""

    def __init__(self, node: int, host: str, room: Callable[[], Room] = measure_room) -> None:
        """`host`: the address to listen at; empty: all of this machine."""
        self._node = node
        self._host = host
        self._room = room
        self._lock = threading.Lock()
        self._token = ""
        self._objects: dict[str, tuple[int, mmap.mmap | bytes]] = {}
        """The rank that put it and the content, by key."""
        self._incoming: dict[int, int] = {}
        """Bytes that ranks are sending."""
        self._reserved: dict[int, int] = {}
        self._free = threading.Semaphore(MAX_CONNECTIONS)
        self._server: socket.socket | None = None

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Accept requests, and free all objects on exit.

        Raises:
            OSError: there is no port.
        """
        with _listen(self._host) as server:
            self._server = server
            threading.Thread(target=self._accept, args=(server,), daemon=True).start()
            try:
                yield
            finally:
                self._token = ""
                with suppress(OSError):
                    server.shutdown(socket.SHUT_RDWR)  # Ends the thread that waits.
        with self._lock:
            self._objects.clear()

    def renew(self, host: str) -> HolderAddress:
        """The address for new ranks, which reach this node at `host`; objects stay.

        Those that had the last address are rejected from now on, as on a node behind a broken network.
        """
        assert self._server, "the holder is open"
        with self._lock:
            self._token = secrets.token_hex(16)
            self._reserved.clear()
            return HolderAddress(self._node, host, self._server.getsockname()[1], self._token)

    def _accept(self, server: socket.socket) -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            self._free.acquire()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        """Answer a request; any other connection is closed without a reply."""
        try:
            with connection, suppress(OSError, ValueError):
                connection.settimeout(TIMEOUT_S)
                request = receive_line(connection)
                token = str(request.get("token"))
                if self._token and hmac.compare_digest(token.encode(), self._token.encode()):
                    self._answer(connection, request)
        finally:
            self._free.release()

    def _answer(self, connection: socket.socket, request: Mapping[str, Json]) -> None:
        match request:
            case {"do": "reserve", "rank": int(rank), "size": int(size)}:
                send_line(connection, {"refusal": self._reserve(rank, size)})
            case {"do": "put", "rank": int(rank), "key": str(key), "size": int(size)}:
                refusal = self._receive(connection, str(request["token"]), rank, key, size)
                send_line(connection, {"refusal": refusal})
            case {"do": "get", "key": str(key)}:
                _, content = self._objects.get(key, (0, None))
                send_line(connection, {"size": None if content is None else len(content)})
                if content is not None:
                    connection.sendall(content)
            case {"do": "list", "prefix": str(prefix)}:
                names = json.dumps(self._names(prefix)).encode()
                send_line(connection, {"size": len(names)})
                connection.sendall(names)
            case {"do": "delete", "prefix": str(prefix)}:
                self._delete(prefix)
                send_line(connection, {"refusal": ""})
            case _:
                raise ValueError("not a request")

    def _reserve(self, rank: int, size: int) -> str:
        """Reserve memory for a rank; return why that is refused, or an empty text."""
        with self._lock:
            # Objects that the rank replaces are freed first.
            held = self._held()
            promised = sum(
                max(0, reserved - held.get(each, 0))
                for each, reserved in self._reserved.items()
                if each != rank
            )
            needed = max(0, size - held.get(rank, 0))
            usable = self._room().usable_bytes - promised
            if needed > usable:
                return (
                    f"node {self._node} has no room for {size / 1e9:.3g} GB more of snapshots in memory: "
                    f"it may take {max(0, usable) / 1e9:.3g} GB"
                )
            self._reserved[rank] = size
        return ""

    def _receive(
        self, connection: socket.socket, token: str, rank: int, key: str, size: int
    ) -> str:
        """Receive an object; return why it is refused, or an empty text."""
        with self._lock:
            taken = self._held().get(rank, 0) + self._incoming.get(rank, 0)
            if not 0 <= size <= self._reserved.get(rank, 0) - taken:
                return f"rank {rank} has reserved less on node {self._node}"
            self._incoming[rank] = self._incoming.get(rank, 0) + size
        try:
            content = _allocate(size)
            receive_into(connection, memoryview(content))
        finally:
            with self._lock:
                self._incoming[rank] -= size
        with self._lock:
            if token != self._token:
                return "other ranks have started in the meantime"
            self._objects[key] = rank, content
        return ""

    def _held(self) -> dict[int, int]:
        """Bytes held for each rank."""
        held: dict[int, int] = {}
        for rank, content in self._objects.values():
            held[rank] = held.get(rank, 0) + len(content)
        return held

    def _names(self, prefix: str) -> list[str]:
        with self._lock:
            return [key for key in self._objects if key.startswith(prefix)]

    def _delete(self, prefix: str) -> None:
        with self._lock:
            for key in [key for key in self._objects if key.startswith(prefix)]:
                del self._objects[key]  # A reader keeps its memory until it has sent it.


@contextmanager
def open_holder(node: int, host: str, *, is_needed: bool) -> Iterator[MemoryHolder | None]:
    """The memory of a node; None if it is not needed, or without a port."""
    holder = MemoryHolder(node, host)
    with ExitStack() as closing:
        try:
            if is_needed:
                closing.enter_context(holder.opened())
        except OSError as error:
            log_info(f"no snapshots are kept in memory: no port can be opened: {error}")
            is_needed = False
        yield holder if is_needed else None


def _listen(host: str) -> socket.socket:
    """Listen at the address of this node alone, or at all if it is no address of the machine."""
    try:
        return socket.create_server((host, 0), backlog=MAX_WAITING)
    except OSError:
        return socket.create_server(("", 0), backlog=MAX_WAITING)


def _allocate(size: int) -> mmap.mmap | bytes:
    """Memory that returns to the system as soon as it is not used, unlike that of small objects."""
    if size == 0:
        return b""
    content = mmap.mmap(-1, size)
    if size >= HUGE_BYTES:
        with suppress(OSError):  # A kernel without huge pages refuses the advice.
            content.madvise(mmap.MADV_HUGEPAGE)
    return content

"""The upper limit: memory and sockets of this machine without other work."""

from __future__ import annotations

import socket
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from fake_s3.throughput import take

from checkpoint.state import State

PART_BYTES = 16 << 20
CONNECTIONS = 32
"""Equal to that of Holdfast."""


class HardwareLimit:
    """One copy, and the same bytes over as many connections as a client would use."""

    def __init__(self, state: State, port: int, bucket: str, *, threads: int) -> None:
        torch.set_num_threads(threads)
        self._port = port
        self._bucket = bucket
        self._source = torch.cat([t.reshape(-1).view(torch.uint8) for t in state.tensors()])
        # Always on the CPU, and touched before it is measured.
        is_far = self._source.is_cuda
        self._copy = torch.empty(len(self._source), dtype=torch.uint8, pin_memory=is_far).zero_()
        self._pool = ThreadPoolExecutor(1)
        self._sent: Future[None] | None = None

    def save(self, number: int) -> None:
        """Copy the state and start to send it."""
        self._copy.copy_(self._source)
        self._sent = self._pool.submit(self._on_all, number, self._put)

    def settle(self) -> None:
        """Wait until all bytes are sent."""
        assert self._sent
        self._sent.result()

    @property
    def is_durable(self) -> bool:
        """Whether all bytes are sent."""
        return self._sent is None or self._sent.done()

    def restore(self, number: int) -> None:
        """Fetch all bytes into the memory that they were sent from."""
        self._on_all(number, self._get)

    def _on_all(
        self, number: int, transfer: Callable[[socket.socket, bytes, memoryview], None]
    ) -> None:
        """Transfer all parts, distributed over the connections."""
        memory = memoryview(self._copy.numpy())  # type: ignore[arg-type]
        parts = [memory[at : at + PART_BYTES] for at in range(0, len(memory), PART_BYTES)]

        def transfer_all(first: int) -> None:
            with socket.create_connection(("127.0.0.1", self._port)) as connection:
                for part in range(first, len(parts), CONNECTIONS):
                    path = f"/{self._bucket}/{number}/{part}"
                    transfer(connection, path.encode(), parts[part])

        with ThreadPoolExecutor(CONNECTIONS) as pool:
            list(pool.map(transfer_all, range(min(CONNECTIONS, len(parts)))))

    def _put(self, connection: socket.socket, path: bytes, part: memoryview) -> None:
        connection.sendall(b"PUT %b HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (path, len(part)))
        connection.sendall(part)
        answer = connection.recv(4096)
        assert answer.startswith(b"HTTP/1.1 200"), answer

    def _get(self, connection: socket.socket, path: bytes, part: memoryview) -> None:
        connection.sendall(b"GET %b HTTP/1.1\r\n\r\n" % path)
        head = connection.recv(4096, socket.MSG_PEEK)
        size = head.index(b"\r\n\r\n") + 4
        connection.recv(size)
        take(connection, part)

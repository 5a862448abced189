"""Requests to the memory of a node, over TCP. Standard library only.

A request and its response are each a length, a line of JSON of that length, and for an object its bytes. A connection
carries one request.
"""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Final

from holdfast_worker.protocol.reports import Json

LENGTH: Final = struct.Struct("!I")
"""The length before each line."""
MAX_LINE_BYTES: Final = 64 * 1024
"""Size of a line. A lower value rejects long keys; a higher value lets strangers fill memory."""
TIMEOUT_S: Final = 20.0
"""Time without a byte after which a connection is given up.
A lower value fails on a slow network; a higher value waits longer for a node that is lost."""


@dataclass(frozen=True, slots=True)
class HolderAddress:
    """Where the memory of a node is reached, and the secret that gives access to it."""

    node: int
    host: str
    port: int
    token: str
    """Drawn for each start of the ranks, so that ranks of an earlier start are rejected."""

    @classmethod
    def parse(cls, text: str) -> HolderAddress:
        """Parse what `dump` returned."""
        return cls(**json.loads(text))

    def dump(self) -> str:
        """As JSON, for the environment of ranks."""
        return json.dumps(asdict(self))


def send_line(connection: socket.socket, body: Mapping[str, Json]) -> None:
    """Send a line of JSON."""
    line = json.dumps(body, separators=(",", ":")).encode()
    connection.sendall(LENGTH.pack(len(line)) + line)


def receive_line(connection: socket.socket) -> dict[str, Json]:
    """Receive a line of JSON.

    Raises:
        ValueError: the other side sent something else.
        OSError: the connection broke.
    """
    head = bytearray(LENGTH.size)
    receive_into(connection, memoryview(head))
    [size] = LENGTH.unpack(head)
    if size > MAX_LINE_BYTES:
        raise ValueError("the line is too long")
    line = bytearray(size)
    receive_into(connection, memoryview(line))
    try:
        body = json.loads(line)
    except RecursionError as error:
        raise ValueError("the line is nested too deeply") from error
    if not isinstance(body, dict):
        raise ValueError("not an object")  # noqa: TRY004 - input from the network, not a type error
    return body


def receive_into(connection: socket.socket, buffer: memoryview) -> None:
    """Fill a buffer with what the other side sends.

    Raises:
        OSError: the connection broke.
    """
    while buffer:
        received = connection.recv_into(buffer)
        if not received:
            raise ConnectionError("the connection was closed")
        buffer = buffer[received:]

"""Stores of objects in the memory of nodes, for the ranks that write and read them."""

from __future__ import annotations

import json
import re
import socket
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from holdfast_worker.node_memory.wire import (
    TIMEOUT_S,
    HolderAddress,
    receive_into,
    receive_line,
    send_line,
)
from holdfast_worker.protocol.reports import Json
from holdfast_worker.storage.base import Bytes, ObjectNotFound, StoreRefused, cut_views

CHUNK_BYTES: Final = 1 << 20
"""Bytes per read. A higher value wastes memory; a lower value adds calls."""
CONNECT_TIMEOUT_S: Final = 5.0
"""Time to connect to a node. A lower value fails on a busy machine; a higher value waits longer for a node that is lost."""
SHARD: Final = re.compile(r"step-[^/]*/rank-(\d+)[./]")
"""Start of the keys of a rank's shard and its metadata."""


class NoRoom(StoreRefused):
    """A node has too little memory for copies of snapshots."""


class HolderStore:
    """Objects in the memory of one node, written by one rank. Errors are not worth a retry."""

    max_concurrency = 2
    is_remote = False

    def __init__(self, address: HolderAddress, rank: int) -> None:
        self._address = address
        self._rank = rank
        self._connections: set[socket.socket] = set()
        self._is_aborted = False

    def reserve(self, size: int) -> None:
        """Reserve memory for all objects of this rank, before it puts any.

        Raises:
            NoRoom: the node has too little.
            StoreRefused: it does not respond.
        """
        refusal = self._request({"do": "reserve", "size": size}).get("refusal")
        if refusal:
            raise NoRoom(str(refusal))

    def put(self, key: str, data: Bytes) -> None:
        """See `Store`. The object is as durable as the node."""
        refusal = self._request({"do": "put", "key": key, "size": len(data)}, data).get("refusal")
        if refusal:
            raise StoreRefused(str(refusal))

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """See `Store`: it has no conditional writes, and only one rank writes a key."""
        self.put(key, data)
        return True

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        """See `Store`."""
        try:
            found: bytes | None = self.get(key)
        except ObjectNotFound:
            found = None
        if found == old:
            self.put(key, new)
        return found == old

    def get(self, key: str) -> bytes:
        """See `Store`."""
        return b"".join(map(bytes, self.stream(key)))

    def stream(self, key: str, into: Iterable[memoryview] = ()) -> Iterator[memoryview]:
        """See `Store`."""
        try:
            with self._connect({"do": "get", "key": key}) as connection:
                size = receive_line(connection).get("size")
                if size is None:
                    raise ObjectNotFound(key)
                yield from _receive(connection, int(str(size)), into)
        except (OSError, ValueError) as error:
            raise self._refused(error) from error

    def list(self, prefix: str) -> list[str]:
        """See `Store`."""
        try:
            with self._connect({"do": "list", "prefix": prefix}) as connection:
                size = int(str(receive_line(connection)["size"]))
                keys: list[str] = json.loads(b"".join(map(bytes, _receive(connection, size))))
        except (OSError, ValueError, KeyError) as error:
            raise self._refused(error) from error
        return keys

    def delete(self, key: str) -> None:
        """See `Store`. Also deletes all objects whose keys begin with `key`."""
        self._request({"do": "delete", "prefix": key})

    def abort(self) -> None:
        """Break all connections, and refuse others from now on."""
        self._is_aborted = True
        for connection in [*self._connections]:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _request(self, request: Mapping[str, Json], data: Bytes = b"") -> dict[str, Json]:
        try:
            with self._connect(request) as connection:
                with suppress(BrokenPipeError):  # It has refused the object, and says why.
                    connection.sendall(data)
                return receive_line(connection)
        except (OSError, ValueError) as error:
            raise self._refused(error) from error

    @contextmanager
    def _connect(self, request: Mapping[str, Json]) -> Iterator[socket.socket]:
        """A connection to the node, with a request."""
        at = self._address
        with socket.create_connection((at.host, at.port), CONNECT_TIMEOUT_S) as connection:
            connection.settimeout(TIMEOUT_S)
            self._connections.add(connection)
            try:
                if self._is_aborted:
                    raise ConnectionAbortedError("the run ends")
                send_line(connection, {"token": at.token, "rank": self._rank, **request})
                yield connection
            finally:
                self._connections.discard(connection)

    def _refused(self, error: Exception) -> StoreRefused:
        return StoreRefused(f"the memory of node {self._address.node} cannot be used: {error}")


class CopiesStore:
    """The objects of all ranks, each in the memory of some nodes, for reading.

    A second read of an object begins with another copy, as the first one may be damaged.
    """

    max_concurrency = 4

    def __init__(
        self, holders: Sequence[Sequence[HolderStore]], common: Sequence[HolderStore]
    ) -> None:
        """`holders`: of each rank's shard. `common`: of what belongs to no rank.

        The nearest ones first.
        """
        self._holders = holders
        self._common = common
        self._reads = Counter[str]()
        self.is_remote = len({id(each) for some in holders for each in some}) > 1

    def get(self, key: str) -> bytes:
        """See `Store`."""
        return b"".join(map(bytes, self.stream(key)))

    def stream(self, key: str, into: Iterable[memoryview] = ()) -> Iterator[memoryview]:
        """See `Store`. A node that does not respond has no objects."""
        into = list(into)  # The next copy goes there as well.
        holders = self._holders_of(key)
        first = self._reads[key] % len(holders)
        self._reads[key] += 1
        for holder in (*holders[first:], *holders[:first]):
            has_begun = False
            try:
                for chunk in holder.stream(key, into):
                    has_begun = True
                    yield chunk
            except (ObjectNotFound, StoreRefused):
                if has_begun:
                    return  # The size is wrong then, and the reader tries again.
            else:
                return
        raise ObjectNotFound(key)

    def list(self, prefix: str) -> list[str]:
        """See `Store`. A node that does not respond has no objects."""
        with suppress(StoreRefused):
            return self._holders_of(prefix)[0].list(prefix)
        return []

    def put(self, key: str, data: Bytes) -> None:
        """See `Store`; a copy is written to one node at a time instead."""
        raise StoreRefused(f"{key} of {len(data)} bytes belongs to one node")

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """See `put`."""
        self.put(key, data)
        return False

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        """See `put`."""
        self.put(key, new)
        return old is None

    def delete(self, key: str) -> None:
        """See `Store`."""
        for holder in self._holders_of(key):
            holder.delete(key)

    def _holders_of(self, key: str) -> Sequence[HolderStore]:
        match = SHARD.match(key)
        rank = int(match[1]) if match else len(self._holders)
        return self._holders[rank] if rank < len(self._holders) else self._common


def _receive(
    connection: socket.socket, size: int, into: Iterable[memoryview] = ()
) -> Iterator[memoryview]:
    """The bytes of an object in chunks; see `Store.stream`."""
    views = cut_views(into, CHUNK_BYTES)
    while size:
        chunk = next(views)[:size]
        receive_into(connection, chunk)
        size -= len(chunk)
        yield chunk

"""Objects in the memory of a node outlive the ranks that put them there, and have a limit."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace

import pytest
from holdfast_worker.node_memory.client import CopiesStore, HolderStore, NoRoom
from holdfast_worker.node_memory.holder import MemoryHolder, open_holder
from holdfast_worker.node_memory.room import Room
from holdfast_worker.node_memory.wire import LENGTH, MAX_LINE_BYTES, HolderAddress
from holdfast_worker.storage.base import ObjectNotFound, StoreRefused
from worker.support.run_driver import wait_until

MB = 10**6
ROOM = Room(total_bytes=100 * MB, free_bytes=60 * MB)
"""A tenth of all memory stays free, so that 50 MB may be taken."""


@pytest.fixture
def holder() -> Iterator[MemoryHolder]:
    holder = MemoryHolder(3, "127.0.0.1", lambda: ROOM)
    with holder.opened():
        yield holder


@pytest.fixture
def address(holder: MemoryHolder) -> HolderAddress:
    return holder.renew("127.0.0.1")


@pytest.fixture
def store(address: HolderAddress) -> HolderStore:
    store = HolderStore(address, 0)
    store.reserve(20 * MB)
    return store


@pytest.mark.parametrize("size", [0, 1, 5 * MB])
def test_object_is_read_as_it_was_written(store: HolderStore, size: int) -> None:
    data = bytes(index % 251 for index in range(size))

    store.put("step-1/rank-0/000000", memoryview(data))

    assert store.get("step-1/rank-0/000000") == data
    assert store.list("step-1/") == ["step-1/rank-0/000000"]


def test_deleted_objects_are_gone(store: HolderStore) -> None:
    for key in ("a/1", "a/2", "b/1"):
        store.put(key, b"data")

    store.delete("a/")

    assert store.list("") == ["b/1"]
    with pytest.raises(ObjectNotFound):
        store.get("a/1")


def test_object_is_swapped_if_it_is_as_expected(store: HolderStore) -> None:
    swapped = [
        store.swap("key", old, new)
        for old, new in ((b"1", b"2"), (None, b"1"), (None, b"3"), (b"1", b"2"))
    ]

    assert swapped == [False, True, False, True]
    assert store.get("key") == b"2"


def test_objects_outlive_a_start_whose_ranks_are_rejected(
    holder: MemoryHolder, store: HolderStore
) -> None:
    store.put("key", b"data")

    later = HolderStore(holder.renew("127.0.0.1"), 0)

    assert later.get("key") == b"data"
    with pytest.raises(StoreRefused, match="memory of node 3 cannot be used"):
        store.put("key", b"late")
    assert later.get("key") == b"data"


def test_object_of_an_earlier_start_is_dropped_while_it_arrives(
    holder: MemoryHolder, store: HolderStore
) -> None:
    with store._connect({"do": "put", "key": "key", "size": 2}) as connection:
        connection.sendall(b"1")
        wait_until(lambda: holder._incoming.get(0) == 2)
        later = HolderStore(holder.renew("127.0.0.1"), 0)
        connection.sendall(b"2")
        connection.recv(100)

    assert later.list("") == []


@pytest.mark.parametrize("token", ["guessed", "\N{SNOWMAN}"])
def test_stranger_gets_no_reply(address: HolderAddress, token: str) -> None:
    stranger = HolderStore(replace(address, token=token), 0)

    with pytest.raises(StoreRefused, match="the connection was closed"):
        stranger.list("")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        LENGTH.pack(MAX_LINE_BYTES + 1),
        LENGTH.pack(2) + b"[]",
        LENGTH.pack(6) + b"{nope}",
        LENGTH.pack(40_000) + b"[" * 40_000,
    ],
)
def test_malformed_request_closes_its_connection(store: HolderStore, data: bytes) -> None:
    at = store._address
    with socket.create_connection((at.host, at.port), 5) as connection:
        with suppress(OSError):  # It may be closed before all is sent.
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        answer = b"".join(iter(lambda: _receive(connection), b""))

    assert answer == b""
    assert store.list("") == []


def _receive(connection: socket.socket) -> bytes:
    try:
        return connection.recv(100)
    except ConnectionResetError:
        return b""


def test_unknown_request_is_refused(store: HolderStore) -> None:
    with pytest.raises(StoreRefused):
        store._request({"do": "nothing"})


def test_no_more_is_held_than_reserved(address: HolderAddress) -> None:
    store = HolderStore(address, 0)
    store.reserve(10)
    store.put("first", b"123456")

    with pytest.raises(StoreRefused):
        store.put("second", b"123456")

    store.delete("first")
    store.put("second", b"123456")


def test_reservation_without_room_is_refused(address: HolderAddress) -> None:
    HolderStore(address, 0).reserve(30 * MB)

    with pytest.raises(NoRoom) as refused:
        HolderStore(address, 1).reserve(30 * MB)

    assert str(refused.value) == (
        "node 3 has no room for 0.03 GB more of snapshots in memory: it may take 0.02 GB"
    )


def test_what_is_held_needs_no_more_room(address: HolderAddress) -> None:
    # The free memory that the machine states does not include what is held.
    store = HolderStore(address, 0)
    store.reserve(45 * MB)
    store.put("key", bytes(45 * MB))

    store.reserve(60 * MB)


def test_aborted_store_refuses_requests(store: HolderStore) -> None:
    with store._connect({"do": "put", "key": "key", "size": 10}) as connection:
        store.abort()
        received = connection.recv(10)

    assert received == b""
    with pytest.raises(StoreRefused, match="the run ends"):
        store.list("")


def test_closed_holder_is_unreachable(holder: MemoryHolder, store: HolderStore) -> None:
    other = MemoryHolder(0, "127.0.0.1", lambda: ROOM)
    with other.opened():
        address = other.renew("127.0.0.1")

    with pytest.raises(StoreRefused, match="memory of node 0 cannot be used"):
        HolderStore(address, 0).list("")


@pytest.mark.parametrize(
    ("host", "bound"), [("127.0.0.1", "127.0.0.1"), ("192.0.2.1", "0.0.0.0"), ("", "0.0.0.0")]
)
def test_memory_is_reached_at_its_address_alone(host: str, bound: str) -> None:
    """Behind a translated address, other nodes use one that the machine does not have."""
    holder = MemoryHolder(0, host, lambda: ROOM)

    with holder.opened():
        assert holder.renew(host).host == host
        assert holder._server
        assert holder._server.getsockname()[0] == bound


def test_memory_that_is_not_needed_opens_no_port() -> None:
    with open_holder(0, "127.0.0.1", is_needed=False) as holder:
        assert holder is None


class TestCopies:
    @pytest.fixture
    def others(self) -> Iterator[HolderStore]:
        holder = MemoryHolder(4, "127.0.0.1", lambda: ROOM)
        with holder.opened():
            store = HolderStore(holder.renew("127.0.0.1"), 0)
            store.reserve(MB)
            yield store

    def test_object_is_read_from_any_node_that_has_it(
        self, store: HolderStore, others: HolderStore
    ) -> None:
        copies = CopiesStore([[store, others], [others, store]], [store])
        store.put("step-1/rank-0/0", b"own")
        others.put("step-1/rank-1.json", b"record")

        assert copies.get("step-1/rank-0/0") == b"own"
        assert copies.get("step-1/rank-1.json") == b"record"
        with pytest.raises(ObjectNotFound):
            copies.get("step-1/rank-1/0")

    def test_second_read_begins_with_the_other_copy(
        self, store: HolderStore, others: HolderStore
    ) -> None:
        copies = CopiesStore([[store, others]], [store])
        store.put("step-1/rank-0/0", b"damaged")
        others.put("step-1/rank-0/0", b"intact")

        assert [copies.get("step-1/rank-0/0") for _ in range(3)] == [
            b"damaged",
            b"intact",
            b"damaged",
        ]

    def test_node_that_does_not_respond_has_no_objects(self, store: HolderStore) -> None:
        store.abort()
        copies = CopiesStore([[store]], [store])

        assert copies.list("") == []
        with pytest.raises(ObjectNotFound):
            copies.get("step-1/rank-0/0")

    def test_copies_are_written_to_one_node_at_a_time(self, store: HolderStore) -> None:
        copies = CopiesStore([[store]], [store])

        for write in (
            lambda: copies.put("key", b""),
            lambda: copies.put_if_absent("key", b""),
            lambda: copies.swap("key", None, b""),
        ):
            with pytest.raises(StoreRefused, match="belongs to one node"):
                write()

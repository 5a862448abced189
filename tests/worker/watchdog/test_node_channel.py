"""The channel between wrappers, and foreign connections to its port."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from io import StringIO
from types import SimpleNamespace
from typing import Any

import pytest
from holdfast_worker.watchdog import node_channel
from holdfast_worker.watchdog.node_channel import (
    MAX_LINE_BYTES,
    PORT_COUNT,
    ChannelAddress,
    ChannelEvent,
    Connected,
    Disconnected,
    NodeChannel,
    ReadyOnStandby,
    Received,
)
from worker.support.run_driver import free_port, wait_until

NAME = "tide-and-kelp"
LOOPBACK = "127.0.0.1"


class Member:
    """A node channel, and the events that it received."""

    def __init__(
        self,
        node: int,
        nodes: int,
        port: int,
        name: str = NAME,
        ports: int = 1,
        patience_s: float = node_channel.UNREACHABLE_WARNING_S,
    ) -> None:
        channel_address = ChannelAddress(node, nodes, LOOPBACK, range(port, port + ports), name)
        self.channel = NodeChannel(channel_address, patience_s)
        self.events: list[ChannelEvent] = []

    def has(self, *expected: ChannelEvent) -> bool:
        """Whether the expected events were received, possibly among others."""
        self.events += self.channel.receive()
        return all(events in self.events for events in expected)


@contextmanager
def opened(*members: Member) -> Iterator[None]:
    with ExitStack() as closing:
        for member in members:
            closing.enter_context(member.channel.opened())
        yield


@pytest.fixture
def port() -> int:
    return free_port()


def connect(port: int) -> socket.socket:
    """Connect to a port, where a listener may start later."""
    while True:
        try:
            return socket.create_connection((LOOPBACK, port), 30)
        except ConnectionRefusedError:
            threading.Event().wait(0.02)


def greeting(name: str = NAME, node: object = 1, restarts: object = 0, start: object = 0) -> bytes:
    said = {"bond": name, "node": node, "restarts": restarts, "start": start}
    return json.dumps(said).encode() + b"\n"


def test_messages_reach_the_first_node_and_its_own_reach_all(port: int) -> None:
    first, *others = members = [Member(node, 3, port) for node in range(3)]

    with opened(*members):
        wait_until(lambda: first.has(Connected(1), Connected(2)))
        wait_until(lambda: all(other.has(Connected(0)) for other in others))
        others[0].channel.send({"bye": 7})
        first.channel.send({"ask": True})
        wait_until(lambda: first.has(Received(1, {"bye": 7})))
        wait_until(lambda: all(other.has(Received(0, {"ask": True})) for other in others))

    assert not any(isinstance(events, Received) and events.node != 0 for events in others[1].events)


def test_wait_ends_with_any_event_but_positions(port: int) -> None:
    first, second = Member(0, 2, port), Member(1, 2, port)
    found = []

    with opened(first, second):
        wait_until(lambda: first.has(Connected(1)))
        wait_until(lambda: second.has(Connected(0)))
        first.channel.wait(0.0)
        for body in ({"pulses": []}, {"told": []}):
            second.channel.send(body)
            wait_until(lambda body=body: first.has(Received(1, body)))  # type: ignore[misc]
            found.append((first.channel.wait(0.0), first.channel.wait(0.0)))

    assert found == [(False, False), (True, False)]


def test_last_message_before_closing_is_delivered(port: int) -> None:
    first, second = Member(0, 2, port), Member(1, 2, port)
    last = {"found": ["x" * 1000] * 100}

    with opened(first):
        with opened(second):
            wait_until(lambda: second.has(Connected(0)))
            second.channel.send(last)
        wait_until(lambda: first.has(Connected(1), Received(1, last), Disconnected(1)))


def test_returning_node_reconnects(port: int) -> None:
    second = Member(1, 2, port)

    with opened(second):
        for _ in range(2):
            first = Member(0, 2, port)
            with opened(first):
                wait_until(lambda first=first: first.has(Connected(1)))  # type: ignore[misc]
        wait_until(
            lambda: second.has(Disconnected(0)) and second.events.count(Disconnected(0)) == 2
        )

    assert second.events == [Connected(0), Disconnected(0), Connected(0), Disconnected(0)]


def test_next_port_is_used_if_the_first_is_in_use(port: int) -> None:
    first, second = (Member(node, 2, port, ports=PORT_COUNT) for node in (0, 1))

    with socket.create_server((LOOPBACK, port)), opened(first, second):
        wait_until(lambda: first.has(Connected(1)) and second.has(Connected(0)))


def test_all_ports_in_use_is_logged_and_raises_nothing(port: int) -> None:
    first = Member(0, 2, port)

    busy = socket.create_server((LOOPBACK, port))
    with redirect_stderr(StringIO()) as stderr, busy, opened(first):
        wait_until(lambda: bool(stderr.getvalue()))
        first.channel.send({"ask": True})

    assert stderr.getvalue() == (
        f"holdfast: the ports {port} to {port} are in use: "
        "failures on one node will be noticed later on the others\n"
    )


def test_unreachable_first_node_is_logged(port: int) -> None:
    second = Member(1, 2, port, patience_s=0.1)

    with redirect_stderr(StringIO()) as stderr, opened(second):
        wait_until(lambda: bool(stderr.getvalue()))

    assert stderr.getvalue() == (
        f"holdfast: node 0 is unreachable at {LOOPBACK}, ports {port} to {port}: "
        "failures on one node will be noticed later on the others\n"
    )


def test_connected_first_node_is_not_reported_unreachable(port: int) -> None:
    """A regression test: the timeout was cancelled only at the end of a connection."""
    patience_s = 3.0
    first, second = Member(0, 2, port), Member(1, 2, port, patience_s=patience_s)

    with redirect_stderr(StringIO()) as stderr, opened(first):
        connect(port).close()  # Node 0 listens, so that the other one reaches it at once.
        late_s = time.monotonic() + patience_s + 0.5
        with opened(second):
            wait_until(lambda: second.has(Connected(0)) and time.monotonic() > late_s)

    assert stderr.getvalue() == ""


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\n",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\xff\xfe\x00\n",
        b"[" * 100_000 + b"\n",
        b"x" * (MAX_LINE_BYTES + 10),
        b"[1]\n",
        b"{}\n",
        b'{"bond": 1e999, "node": NaN}\n',
        greeting("another run"),
        greeting(node=0),
        greeting(node=2),
        greeting(node="1"),
        greeting(node=-1),
        greeting()[:-1],
    ],
)
def test_foreign_connections_do_not_disturb_members(port: int, data: bytes) -> None:
    first, second = Member(0, 2, port), Member(1, 2, port)

    with opened(first, second):
        wait_until(lambda: first.has(Connected(1)) and second.has(Connected(0)))
        with connect(port) as stranger:
            stranger.sendall(data)
            stranger.shutdown(socket.SHUT_WR)
            answer = _all_of(stranger)
        second.channel.send({"bye": 1})
        wait_until(lambda: first.has(Received(1, {"bye": 1})))

    assert answer == b""
    assert Disconnected(1) not in first.events[: first.events.index(Received(1, {"bye": 1}))]


def test_connection_with_a_later_invalid_message_is_closed(port: int) -> None:
    first = Member(0, 2, port)

    with opened(first), connect(port) as peer:
        peer.sendall(greeting() + b'{"bye": 1}\n' + b"nonsense\n")
        answer = _all_of(peer)
        wait_until(lambda: first.has(Connected(1), Received(1, {"bye": 1}), Disconnected(1)))

    assert answer.startswith(greeting(node=0))


def test_number_of_unidentified_connections_is_limited(
    port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_channel, "HANDSHAKE_TIMEOUT_S", 600)
    first, second = Member(0, 3, port), Member(1, 3, port)

    with opened(first, second), ExitStack() as strangers:
        wait_until(lambda: first.has(Connected(1)) and second.has(Connected(0)))
        connections = [
            strangers.enter_context(connect(port)) for _ in range(2 * node_channel.MAX_UNIDENTIFIED)
        ]
        # The channel would accept it with fewer connections.
        with suppress(OSError):
            connections[-1].sendall(greeting(node=2))
        answer = _all_of(connections[-1])
        second.channel.send({"bye": 1})
        wait_until(lambda: first.has(Received(1, {"bye": 1})))

    assert answer == b""
    assert Connected(2) not in first.events


def test_first_node_of_another_run_is_skipped(port: int) -> None:
    stranger = Member(0, 2, port, "another run")
    first, second = (Member(node, 2, port, ports=PORT_COUNT) for node in (0, 1))

    with opened(stranger), opened(first, second):
        wait_until(lambda: first.has(Connected(1)))

    assert not any(isinstance(events, Connected) for events in stranger.channel.receive())


def test_connection_that_is_never_served_is_closed(port: int) -> None:
    channel = Member(0, 2, port).channel
    is_closed = threading.Event()
    writer: Any = SimpleNamespace(close=is_closed.set)

    async def accept_and_end() -> None:
        channel._accept(asyncio.StreamReader(), writer)

    asyncio.run(accept_and_end())

    assert is_closed.is_set()


def test_node_that_does_not_read_loses_only_its_connection(port: int) -> None:
    first = Member(0, 2, port)

    with opened(first), connect(port) as peer:
        peer.sendall(greeting())
        wait_until(lambda: first.has(Connected(1)))
        for _ in range(600):
            first.channel.send({"found": ["x" * 50_000]})
        wait_until(lambda: _speaks_on(peer) and first.has(Disconnected(1)))


def _speaks_on(peer: socket.socket) -> bool:
    """Send data and return whether the connection still exists."""
    with suppress(OSError):
        peer.sendall(b"{}\n")
    return True


def _all_of(connection: socket.socket) -> bytes:
    """Read until the peer closes or resets the connection."""
    result = b""
    with suppress(ConnectionResetError):
        while chunk := connection.recv(65_536):
            result += chunk
    return result


def test_replaced_node_cannot_take_the_place_of_its_successor(port: int) -> None:
    first = Member(0, 2, port)

    with opened(first), connect(port) as successor:
        successor.sendall(greeting(restarts=None, start=1))
        wait_until(lambda: first.has(Connected(1, 1)))
        with connect(port) as predecessor:
            predecessor.sendall(greeting(start=0))
            answer = _all_of(predecessor)
        successor.sendall(b'{"bye": 1}\n')
        wait_until(lambda: first.has(Received(1, {"bye": 1})))

    assert answer == b""
    assert Connected(1, 0) not in first.events


def test_replacement_learns_how_often_all_ranks_started_again(port: int) -> None:
    addresses = [
        ChannelAddress(0, 2, LOOPBACK, [port], NAME, restarts=3),
        ChannelAddress(1, 2, LOOPBACK, [port], NAME, restarts=None, start=1),
    ]
    leader, replacement = (NodeChannel(address) for address in addresses)
    events: list[ChannelEvent] = []

    with leader.opened(), replacement.opened():
        wait_until(lambda: bool(events.extend(replacement.receive()) or events))

    assert replacement.restarts == 3


def test_node_of_another_start_of_the_ranks_is_rejected(port: int) -> None:
    first = Member(0, 2, port)

    with opened(first), connect(port) as peer:
        peer.sendall(greeting(restarts=1))
        answer = _all_of(peer)

    assert answer == b""
    assert not first.has(Connected(1))


def connect_host(first: Member, port: int) -> socket.socket:
    """Connect the host of node 1, for which a replacement has to wait."""
    first.channel.hold({1: 1})
    host = connect(port)
    host.sendall(greeting(restarts=None, start=1))
    wait_until(lambda: first.has(Connected(1, 1)))
    return host


def connect_replacement(first: Member, port: int) -> socket.socket:
    """Connect the replacement of node 1, whose ranks are ready."""
    replacement = connect(port)
    replacement.sendall(greeting(restarts=None, start=1000) + b'{"ready": true}\n')
    wait_until(lambda: first.has(ReadyOnStandby(1)))
    return replacement


def test_replacement_waits_while_the_ranks_run_on_a_host(port: int) -> None:
    first = Member(0, 2, port)

    with opened(first), connect_host(first, port):
        with connect_replacement(first, port) as replacement:
            waiting = first.has(Connected(1, 1000))
            first.channel.send({"group": []})
            first.channel.send({"bye": 0}, to_standby=True)
            with replacement.makefile("rb") as lines:
                received = [lines.readline() for _ in range(2)]

            first.channel.hold({})
            wait_until(lambda: first.has(Connected(1, 1000)))
        wait_until(lambda: first.has(Disconnected(1)))

    assert not waiting
    assert b'"bond"' in received[0]
    assert json.loads(received[1]) in ({"bye": 0}, {}), "decisions are for the host"


def test_replacement_that_is_lost_on_standby_is_reported(port: int) -> None:
    first = Member(0, 2, port)

    with opened(first), connect_host(first, port) as host:
        with connect_replacement(first, port) as replacement:
            replacement.recv(MAX_LINE_BYTES)  # With unread data, the connection would be reset.
        wait_until(lambda: first.has(ReadyOnStandby(1, is_ready=False)))

        host.sendall(b'{"bye": 1}\n')
        wait_until(lambda: first.has(Received(1, {"bye": 1})))

    assert Connected(1, 1000) not in first.events


def test_nodes_that_connect_later_receive_an_announcement_first(port: int) -> None:
    first, early, late = (Member(node, 3, port) for node in range(3))
    begin = {"begin": [[1, 0], [2, 0]]}

    with opened(first, early):
        wait_until(lambda: first.has(Connected(1)))
        first.channel.announce(begin)
        wait_until(lambda: early.has(Received(0, begin)))
        with opened(late):
            first.channel.send({"ask": True})
            wait_until(lambda: late.has(Connected(0), Received(0, begin)))

    assert late.events[1] == Received(0, begin)


def test_announcement_reaches_a_replacement_on_standby(port: int) -> None:
    first = Member(0, 2, port)
    first.channel.hold({1: 1})

    with opened(first), connect(port) as replacement, replacement.makefile("rb") as lines:
        replacement.sendall(greeting(restarts=None, start=1000))
        greeted = lines.readline()
        first.channel.announce({"begin": []})
        received = [lines.readline() for _ in range(2)]

    assert b'"bond"' in greeted
    assert b'{"begin":[]}\n' in received


def test_newest_starts_outlive_a_channel(port: int) -> None:
    starts: dict[int, int] = {}
    address = ChannelAddress(0, 2, LOOPBACK, [port], NAME)

    for start, is_accepted in ((1000, True), (0, False), (2000, True)):
        channel = NodeChannel(address, starts=starts)
        with channel.opened(), connect(port) as node:
            node.sendall(greeting(start=start))
            assert bool(node.recv(100)) is is_accepted

    assert starts == {1: 2000}

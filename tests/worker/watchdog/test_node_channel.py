"""The channel between wrappers, and foreign connections to its port."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, suppress
from io import StringIO

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
    Received,
)
from worker.support.run_driver import free_port, wait_until

NAME = "tide-and-kelp"
LOOPBACK = "127.0.0.1"


class Member:
    """A bond, and all that it has heard."""

    def __init__(
        self,
        node: int,
        nodes: int,
        port: int,
        name: str = NAME,
        ports: int = 1,
        patience_s: float = node_channel.UNREACHABLE_WARNING_S,
    ) -> None:
        meeting = ChannelAddress(node, nodes, LOOPBACK, range(port, port + ports), name)
        self.bond = NodeChannel(meeting, patience_s)
        self.news: list[ChannelEvent] = []

    def has(self, *expected: ChannelEvent) -> bool:
        """Whether it has heard these, whatever else it did."""
        self.news += self.bond.receive()
        return all(news in self.news for news in expected)


@contextmanager
def opened(*members: Member) -> Iterator[None]:
    with ExitStack() as closing:
        for member in members:
            closing.enter_context(member.bond.opened())
        yield


@pytest.fixture
def port() -> int:
    return free_port()


def knock(port: int) -> socket.socket:
    """A connection to a later listener."""
    while True:
        try:
            return socket.create_connection((LOOPBACK, port), 30)
        except ConnectionRefusedError:
            threading.Event().wait(0.02)


def greeting(name: str = NAME, node: object = 1) -> bytes:
    return json.dumps({"bond": name, "node": node}).encode() + b"\n"


def test_messages_reach_the_first_node_and_its_own_reach_all(port: int) -> None:
    first, *others = members = [Member(node, 3, port) for node in range(3)]

    with opened(*members):
        wait_until(lambda: first.has(Connected(1), Connected(2)))
        wait_until(lambda: all(other.has(Connected(0)) for other in others))
        others[0].bond.send({"bye": 7})
        first.bond.send({"ask": True})
        wait_until(lambda: first.has(Received(1, {"bye": 7})))
        wait_until(lambda: all(other.has(Received(0, {"ask": True})) for other in others))

    assert not any(isinstance(news, Received) and news.node != 0 for news in others[1].news)


def test_last_message_before_closing_is_delivered(port: int) -> None:
    first, second = Member(0, 2, port), Member(1, 2, port)
    last = {"found": ["x" * 1000] * 100}

    with opened(first):
        with opened(second):
            wait_until(lambda: second.has(Connected(0)))
            second.bond.send(last)
        wait_until(lambda: first.has(Connected(1), Received(1, last), Disconnected(1)))


def test_a_node_that_comes_back_is_met_again(port: int) -> None:
    second = Member(1, 2, port)

    with opened(second):
        for _ in range(2):
            first = Member(0, 2, port)
            with opened(first):
                wait_until(lambda first=first: first.has(Connected(1)))  # type: ignore[misc]
        wait_until(lambda: second.has(Disconnected(0)) and second.news.count(Disconnected(0)) == 2)

    assert second.news == [Connected(0), Disconnected(0), Connected(0), Disconnected(0)]


def test_the_first_port_may_be_taken(port: int) -> None:
    first, second = (Member(node, 2, port, ports=PORT_COUNT) for node in (0, 1))

    with socket.create_server((LOOPBACK, port)), opened(first, second):
        wait_until(lambda: first.has(Connected(1)) and second.has(Connected(0)))


def test_all_ports_in_use_is_logged_and_raises_nothing(port: int) -> None:
    first = Member(0, 2, port)

    taken = socket.create_server((LOOPBACK, port))
    with redirect_stderr(StringIO()) as words, taken, opened(first):
        wait_until(lambda: bool(words.getvalue()))
        first.bond.send({"ask": True})

    assert words.getvalue() == (
        f"holdfast: the ports {port} to {port} are in use: "
        "failures on one node will be noticed later on the others\n"
    )


def test_unreachable_first_node_is_logged(port: int) -> None:
    second = Member(1, 2, port, patience_s=0.1)

    with redirect_stderr(StringIO()) as words, opened(second):
        wait_until(lambda: bool(words.getvalue()))

    assert words.getvalue() == (
        f"holdfast: node 0 is unreachable at {LOOPBACK}, ports {port} to {port}: "
        "failures on one node will be noticed later on the others\n"
    )


def test_a_first_node_that_does_answer_is_not_complained_of(port: int) -> None:
    """It was after two minutes, in every run of several nodes: the talk had to be over for the complaint to be called off."""
    patience_s = 3.0
    first, second = Member(0, 2, port), Member(1, 2, port, patience_s=patience_s)
    late_s = time.monotonic() + patience_s + 0.5

    with redirect_stderr(StringIO()) as words, opened(first, second):
        wait_until(lambda: second.has(Connected(0)) and time.monotonic() > late_s)

    assert words.getvalue() == ""


@pytest.mark.parametrize(
    "said",
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
def test_strangers_are_rejected_without_disturbing_members(port: int, said: bytes) -> None:
    first, second = Member(0, 2, port), Member(1, 2, port)

    with opened(first, second):
        wait_until(lambda: first.has(Connected(1)) and second.has(Connected(0)))
        with knock(port) as stranger:
            stranger.sendall(said)
            stranger.shutdown(socket.SHUT_WR)
            answer = _all_of(stranger)
        second.bond.send({"bye": 1})
        wait_until(lambda: first.has(Received(1, {"bye": 1})))

    assert answer == b""
    assert Disconnected(1) not in first.news[: first.news.index(Received(1, {"bye": 1}))]


def test_a_guest_that_talks_nonsense_later_is_sent_away(port: int) -> None:
    first = Member(0, 2, port)

    with opened(first), knock(port) as guest:
        guest.sendall(greeting() + b'{"bye": 1}\n' + b"nonsense\n")
        answer = _all_of(guest)
        wait_until(lambda: first.has(Connected(1), Received(1, {"bye": 1}), Disconnected(1)))

    assert answer.startswith(greeting(node=0))


def test_no_more_strangers_are_let_in_than_there_is_room_for(port: int) -> None:
    first, second = Member(0, 3, port), Member(1, 3, port)

    with opened(first, second), ExitStack() as strangers:
        wait_until(lambda: first.has(Connected(1)) and second.has(Connected(0)))
        crowd = [
            strangers.enter_context(knock(port)) for _ in range(2 * node_channel.MAX_UNIDENTIFIED)
        ]
        # It would be let in if there were fewer.
        with suppress(OSError):
            crowd[-1].sendall(greeting(node=2))
        answer = _all_of(crowd[-1])
        second.bond.send({"bye": 1})
        wait_until(lambda: first.has(Received(1, {"bye": 1})))

    assert answer == b""
    assert Connected(2) not in first.news


def test_a_first_node_that_is_of_another_run_is_passed_by(port: int) -> None:
    stranger = Member(0, 2, port, "another run")
    first, second = (Member(node, 2, port, ports=PORT_COUNT) for node in (0, 1))

    with opened(stranger), opened(first, second):
        wait_until(lambda: first.has(Connected(1)))

    assert not any(isinstance(news, Connected) for news in stranger.bond.receive())


def test_node_that_does_not_read_loses_only_its_connection(port: int) -> None:
    first = Member(0, 2, port)

    with opened(first), knock(port) as guest:
        guest.sendall(greeting())
        wait_until(lambda: first.has(Connected(1)))
        for _ in range(600):
            first.bond.send({"found": ["x" * 50_000]})
        wait_until(lambda: _speaks_on(guest) and first.has(Disconnected(1)))


def _speaks_on(guest: socket.socket) -> bool:
    """Let it not be silent, as far as it is still there."""
    with suppress(OSError):
        guest.sendall(b"{}\n")
    return True


def _all_of(connection: socket.socket) -> bytes:
    """What comes until the other side closes; a reset is one way to do it."""
    result = b""
    with suppress(ConnectionResetError):
        while chunk := connection.recv(65_536):
            result += chunk
    return result

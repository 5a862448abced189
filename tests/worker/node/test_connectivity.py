"""Checks whether a node reaches the first one, and the reason if not, on loopback ports."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator

import pytest
from holdfast_worker.node.connectivity import _describe_error, connection_error
from support.live_service import free_port


@pytest.fixture
def listening() -> Iterator[int]:
    """A port with a listener."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_listening_port_is_reached(listening: int) -> None:
    assert connection_error("127.0.0.1", listening, 0) == ""


def test_closed_port_is_distinguished_from_no_answer() -> None:
    nobody = connection_error("127.0.0.1", free_port(), 0)

    assert "the machine is up, but no process listens on that port" in nobody
    assert _describe_error(OSError(errno.EHOSTUNREACH, ""), 60).startswith(
        "no route to host; allow TCP between"
    )
    assert _describe_error(TimeoutError("timed out"), 60).startswith("no answer; allow TCP between")


def test_unresolvable_name_is_reported_at_once() -> None:
    assert connection_error("no name at all", 29400, 600).startswith("its name does not resolve")

"""Ports at which ranks meet: another one where it is in use, or a sentence that names one."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator

import pytest
from holdfast_worker.topology.nodes import Topology, is_free


@pytest.fixture
def taken() -> Iterator[socket.socket]:
    """Somebody who listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def nodes(count: int, rank: int, server: socket.socket) -> Topology:
    return Topology(count, rank, None, "127.0.0.1", server.getsockname()[1])


def test_single_node_uses_another_port_and_logs_the_change(
    taken: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    settled = nodes(1, 0, taken).with_free_port()

    port = taken.getsockname()[1]
    assert settled.master_port != port
    assert settled.master_port > 1024
    assert is_free(settled.master_port)
    assert (
        f"port {port} is in use: using port {settled.master_port} for the rendezvous"
        in capsys.readouterr().err
    )


def test_the_first_of_several_nodes_names_a_port_that_is_free(taken: socket.socket) -> None:
    with pytest.raises(ValueError, match="is in use on node 0") as refused:
        nodes(2, 0, taken).with_free_port(timeout_s=0)

    [port] = re.findall(r"such as (\d+), which is free", str(refused.value))
    assert is_free(int(port))


def test_first_of_several_nodes_waits_for_a_run_that_is_ending(
    taken: socket.socket,
) -> None:
    topology = nodes(2, 0, taken)
    threading.Timer(0.3, taken.close).start()

    assert topology.with_free_port() == topology


def test_other_nodes_ignore_a_port_in_use_locally(taken: socket.socket) -> None:
    assert nodes(2, 1, taken).with_free_port() == nodes(2, 1, taken)

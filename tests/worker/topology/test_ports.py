"""Rendezvous ports: a different port if one is in use, or an error that names a free one."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Iterator

import pytest
from holdfast_worker.topology import rendezvous
from holdfast_worker.topology.rendezvous import free_master_port, is_free


@pytest.fixture
def busy() -> Iterator[socket.socket]:
    """A listening socket."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def port_of(server: socket.socket) -> int:
    return int(server.getsockname()[1])


def test_single_node_uses_another_port_and_logs_the_change(
    busy: socket.socket, capsys: pytest.CaptureFixture[str]
) -> None:
    port = port_of(busy)

    settled = free_master_port(port, nodes=1, node_rank=0)

    assert settled != port
    assert settled > 1024
    assert is_free(settled)
    assert (
        f"port {port} is in use: using port {settled} for the rendezvous" in capsys.readouterr().err
    )


def test_first_of_several_nodes_names_a_free_port(busy: socket.socket) -> None:
    with pytest.raises(ValueError, match="is in use on node 0") as refused:
        free_master_port(port_of(busy), nodes=2, node_rank=0, timeout_s=0)

    [port] = re.findall(r"such as (\d+), which is free", str(refused.value))
    assert is_free(int(port))


def test_first_of_several_nodes_waits_for_a_run_that_is_ending(
    busy: socket.socket,
) -> None:
    port = port_of(busy)
    threading.Timer(0.3, busy.close).start()

    assert free_master_port(port, nodes=2, node_rank=0) == port


def test_other_nodes_ignore_a_port_in_use_locally(busy: socket.socket) -> None:
    port = port_of(busy)

    assert free_master_port(port, nodes=2, node_rank=1) == port


def test_free_port_is_none_of_outgoing_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    port = rendezvous.free_port()
    monkeypatch.setattr(rendezvous, "FREE_PORTS", range(port, port + 1))

    with socket.create_server(("", port)), pytest.raises(ValueError, match="are in use"):
        rendezvous.free_port()

    assert 10_000 <= port < 20_000

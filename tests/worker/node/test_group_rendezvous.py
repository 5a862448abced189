"""A node finds node 0 of another group through the service, and says what is in the way."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from holdfast_worker.config import Config
from holdfast_worker.node import group_rendezvous
from holdfast_worker.node.group_rendezvous import GroupRendezvous, interface_addresses
from holdfast_worker.telemetry.service_client import Superseded
from holdfast_worker.topology.nodes import LeaderAddress, Topology
from holdfast_worker.watchdog.node_channel import channel_ports
from worker.support.report_server import ReportServer
from worker.support.run_driver import free_port, wait_until

MASTER_PORT = 29_400


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(group_rendezvous, "REFRESH_S", 0.05)
    return free_port()


def rendezvous(port: int, node: int, master_port: int = MASTER_PORT) -> GroupRendezvous:
    env = {
        "HOLDFAST_JOB": "lesson",
        "HOLDFAST_URL": f"http://127.0.0.1:{port}",
        "HOLDFAST_GROUP": "workers" if node else "head",
        "HOLDFAST_FIRST_NODE": str(node),
        "HOLDFAST_TOTAL_NODES": "3",
        "HOLDFAST_MASTER_PORT": str(master_port),
        "SKYPILOT_NODE_IPS": "127.0.0.1",
    }
    topology = Topology.read(env)
    assert topology.group
    return GroupRendezvous(topology, topology.group, Config.of_node(env), no_route_s=0.5)


def end_registrations(service: ReportServer) -> None:
    """Replace node 0, and wait until it registers no more. Its thread would log in other tests."""
    service.replaced = {"*"}
    wait_until(
        lambda: not any(thread.name == "holdfast-rendezvous" for thread in threading.enumerate())
    )


def never() -> bool:
    return False


@contextmanager
def searching(node: GroupRendezvous) -> Iterator[list[tuple[LeaderAddress, int] | None]]:
    """Look for node 0 in a thread; yields what is found."""
    is_over = threading.Event()
    found: list[tuple[LeaderAddress, int] | None] = []
    thread = threading.Thread(target=lambda: found.append(node.meet(is_over.is_set)))
    thread.start()
    try:
        yield found
    finally:
        is_over.set()
        thread.join()


def logged(capfd: pytest.CaptureFixture[str]) -> Callable[[str], bool]:
    """Whether a text was logged, possibly before the last call."""
    texts: list[str] = []

    def has(text: str) -> bool:
        texts.append(capfd.readouterr().err)
        return text in "".join(texts)

    return has


def test_node_finds_the_leader_once_it_has_registered(port: int) -> None:
    service = ReportServer()
    with (
        service.opened(port),
        socket.create_server(("127.0.0.1", 0)) as listening,
        searching(rendezvous(port, 1)) as found,
    ):
        wait_until(lambda: bool(service.arrived))
        early = [*found]
        master_port = listening.getsockname()[1] - 3  # The node tries the ports beside it.
        assert listening.getsockname()[1] in channel_ports(master_port)
        leader = rendezvous(port, 0, master_port).meet(never)
        wait_until(lambda: bool(found))
        end_registrations(service)

    assert leader
    assert early == []
    assert found == [leader]
    assert leader == (LeaderAddress(leader[0].incarnation, "127.0.0.1", master_port), 0)
    assert service.leaders[0]["addresses"][0] == "127.0.0.1"
    assert service.leaders[0]["group"] == "head"


def test_leader_starts_without_the_service_and_registers_later(port: int) -> None:
    service = ReportServer()

    found = rendezvous(port, 0).meet(never)
    with service.opened(port):
        wait_until(lambda: bool(service.leaders))
        end_registrations(service)

    assert found
    assert service.leaders[0]["incarnation"] == found[0].incarnation


def test_unreachable_leader_is_explained_once(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    service, closed, log = ReportServer(), free_port(), logged(capfd)
    addresses = ["127.0.0.1", "no-such-host.invalid"]
    service.arrived[0] = ["a1"]
    service.leaders.append(
        {"group": "head", "incarnation": "a1", "addresses": addresses, "port": closed}
    )
    ports = channel_ports(closed)

    with service.opened(port), searching(rendezvous(port, 1)) as found:
        wait_until(lambda: log("cannot reach"))
        time.sleep(2.5)
        assert found == []

    assert log(
        f"node 1 of group workers cannot reach node 0 of group head at 127.0.0.1 or no-such-host.invalid, ports {ports[0]} to "
        f"{ports[-1]}"
    )
    assert log("VPC peering")
    assert found == [None]


def test_node_waits_for_the_service(port: int, capfd: pytest.CaptureFixture[str]) -> None:
    log = logged(capfd)

    with searching(rendezvous(port, 1)) as found:
        wait_until(lambda: log("waiting for the service, which knows node 0"))
        assert found == []


@pytest.mark.parametrize("code", [401, 404])
def test_node_of_a_job_that_is_over_gives_up(port: int, code: int) -> None:
    fenced, refusing = ReportServer(replaced={"*"}), ReportServer(refusals=[code])

    for service in (fenced, refusing):
        with service.opened(port), pytest.raises(Superseded):
            rendezvous(port, 1).meet(never)


def test_interfaces_have_addresses_other_than_loopback() -> None:
    assert not [each for each in interface_addresses().values() if each.startswith("127.")]

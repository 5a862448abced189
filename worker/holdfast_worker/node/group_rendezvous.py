"""Where nodes of several groups meet: node 0 registers with the service, others ask.

No node knows the addresses of another group, which the launcher starts and replaces by itself. Only a new node, and one that has lost
node 0, needs the service, and waits for it. Standard library only.
"""

from __future__ import annotations

import fcntl
import secrets
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from holdfast_worker.config import Config, environment
from holdfast_worker.console import log_info
from holdfast_worker.protocol.reports import Leader
from holdfast_worker.telemetry.service_client import (
    ReportRejected,
    ServiceClient,
    ServiceUnreachable,
    Superseded,
)
from holdfast_worker.topology.nodes import LeaderAddress, NodeGroup, Topology
from holdfast_worker.watchdog.node_channel import LEADER, channel_ports

POLL_S: Final = 1.0
"""Interval of requests for node 0.
A lower value adds requests; a higher value pays for nodes that wait."""
NODES_PER_S: Final = 10
"""Requests of all waiting nodes in a second, for which the interval is longer with many nodes.
A lower value delays large jobs; a higher value exceeds the service's limit, and delays the reports of the job."""
REFRESH_S: Final = 60.0
"""Interval at which node 0 registers again, as a service with a restored database may not know it.
A lower value adds requests; a higher value delays a new node after a restore."""
REACH_TIMEOUT_S: Final = 3.0
"""Timeout of a connection to an address of node 0, as a firewall may drop packets.
A lower value fails on a slow network; a higher value delays the next address."""
NO_ROUTE_S: Final = 60.0
"""Time for which node 0 is unreachable before the cause is logged.
A lower value logs it while node 0 starts or is being replaced; a higher value pays for nodes that cannot meet."""
LOG_EVERY_S: Final = 300.0
"""Interval of repeated log lines. A lower value fills the log; a higher value looks like a hang."""
SIOCGIFADDR: Final = 0x8915
"""Request of Linux for the IPv4 address of an interface."""
MAX_ADDRESSES: Final = 16
"""Addresses that the service accepts."""


class GroupRendezvous:
    """Finds node 0 for one node, or registers it."""

    def __init__(
        self,
        topology: Topology,
        group: NodeGroup,
        config: Config,
        *,
        no_route_s: float = NO_ROUTE_S,
    ) -> None:
        """`topology`: of this node, before node 0 is known."""
        self._no_route_s = no_route_s
        self._topology, self._group, self._config = topology, group, config
        self._interface = environment().get("GLOO_SOCKET_IFNAME", "")
        self._logged_s: dict[str, float] = {}
        self._unreachable_since_s: float | None = None
        self._own = Leader(group.name, secrets.token_hex(16), [], 0)
        assert config.url, "nodes of several groups have a service"
        self._client = ServiceClient(config.url, config.job, config.token)
        self.joined = 0
        """Number of leaders to which this node was connected."""

    def meet(self, is_leaving: Callable[[], bool]) -> tuple[LeaderAddress, int] | None:
        """Node 0 and the number of this node's start there; None if the node has to end before.

        Raises:
            Superseded: the job stops or has ended.
        """
        if self._topology.node_rank != LEADER:
            return self._find_leader(is_leaving)
        addresses, port = self._own_addresses(), self._topology.master_port
        self._own = replace(self._own, addresses=addresses, port=port)
        threading.Thread(
            target=self._keep_registered, name="holdfast-rendezvous", daemon=True
        ).start()
        return LeaderAddress(self._own.incarnation, addresses[0], port), 0

    def _keep_registered(self) -> None:
        """Register node 0 until it is replaced. The nodes that have met it need no registration."""
        while True:
            try:
                self._client.meet(LEADER, self._own)
            except ServiceUnreachable as error:
                self._log(f"new nodes cannot find this one: the service is unreachable: {error}")
                time.sleep(POLL_S)
                continue
            except (ReportRejected, Superseded) as error:
                log_info(f"new nodes do not find this one any more: {error}")
                return
            time.sleep(REFRESH_S)

    def _find_leader(self, is_leaving: Callable[[], bool]) -> tuple[LeaderAddress, int] | None:
        number = self._topology.node_rank
        while not is_leaving():
            try:
                found = self._client.meet(number, self._own, self.joined)
            except ServiceUnreachable as error:
                self._log(f"waiting for the service, which knows node 0: {error}")
            except ReportRejected as error:
                raise Superseded(f"the service rejects this node: {error}") from error
            else:
                if found.leader and (address := self._reachable_address(found.leader)):
                    self._unreachable_since_s = None
                    leader = LeaderAddress(found.leader.incarnation, address, found.leader.port)
                    return leader, found.start
                if not found.leader:
                    self._log("waiting for node 0 to start")
            next_s = time.monotonic() + max(POLL_S, self._group.total_nodes / NODES_PER_S)
            while time.monotonic() < next_s and not is_leaving():
                time.sleep(POLL_S / 10)
        return None

    def _reachable_address(self, leader: Leader) -> str:
        """The first address of node 0 that accepts a connection; empty without one."""
        ports = channel_ports(leader.port)
        for address in leader.addresses:
            if any(_is_reachable(address, port) for port in ports):
                return address
        if self._unreachable_since_s is None:
            self._unreachable_since_s = time.monotonic()
        if time.monotonic() - self._unreachable_since_s > self._no_route_s:
            self._log(
                f"node {self._topology.node_rank} of group {self._group.name} cannot reach node 0 of group {leader.group} at "
                f"{' or '.join(leader.addresses)}, ports {min(ports)} to {max(ports)}: it is not running, or its network is "
                "closed; allow TCP on all ports between the groups (security group, firewall), and connect their networks "
                "(VPC peering, or one network for all groups); still trying"
            )
        return ""

    def _own_addresses(self) -> list[str]:
        """Addresses of this node, the likeliest first.

        A public address is not among them: ranks connect to each other at addresses of interfaces.
        """
        interfaces = interface_addresses()
        chosen = interfaces.get(self._interface.split(",")[0])
        own = [chosen] if chosen else []
        own += [self._topology.master_address, *interfaces.values()]
        return [*dict.fromkeys(own)][:MAX_ADDRESSES]

    def _log(self, message: str) -> None:
        """Log a message, at most every `LOG_EVERY_S` for each kind, which its first words identify."""
        kind, now_s = message[:20], time.monotonic()
        if now_s - self._logged_s.get(kind, -LOG_EVERY_S) >= LOG_EVERY_S:
            self._logged_s[kind] = now_s
            log_info(message)


def interface_addresses() -> dict[str, str]:
    """The IPv4 addresses of this machine's network interfaces by name, except loopback."""
    found: dict[str, str] = {}
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode()[:15])
            try:
                answer = fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)
            except OSError:  # It has no IPv4 address.
                continue
            found[name] = socket.inet_ntoa(answer[20:24])
    return {name: address for name, address in found.items() if not address.startswith("127.")}


def _is_reachable(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), timeout=REACH_TIMEOUT_S).close()
    except (OSError, ValueError):  # Also a name that is none.
        return False
    return True

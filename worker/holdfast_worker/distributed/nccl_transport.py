"""Parses the transport that NCCL chose from its NCCL_DEBUG=INFO logs. Pure.

A slow network causes no error, so it must be looked for. Between nodes, InfiniBand is ten times as fast as sockets; within a node,
NVLink is twenty times as fast as host memory.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

_VERSION: Final = re.compile(r"NCCL version (\d+\.\d+\.\d+)")
_CHANNEL: Final = re.compile(
    r"(?:Channel|Ring) (\d+)(?:/\d+)? : (\d+)(?:\[\w+\])? -> (\d+)(?:\[\w+\])? (?:\[(?:send|receive)\] )?via (.+)$"
)
_NETWORK: Final = re.compile(r"NCCL INFO Using network (.+)$")
_INTERFACE: Final = re.compile(r"(?:NET/Socket|Bootstrap) ?: Using \[?\d*\]?([\w.@-]+):")
_DEVICES: Final = re.compile(r"NET/IB : Using (.+?)(?: ;|; OOB|$)")
_DEVICE: Final = re.compile(r"\[\d+\]([\w.:-]+)/(?:IB|RoCE|\w+)")
_ENV: Final = re.compile(r"(NCCL_\w+) set (?:by environment )?to (\S+)")
_NVLINK: Final = re.compile(r"\+ NVL\[|\btype NVL/|via NVLS|NVLS comm")
_NODES: Final = re.compile(r"nNodes (\d+)")
_VIRTUAL_INTERFACE: Final = re.compile(r"^(?:lo|docker|virbr|br-|veth|cni|flannel)")
"""Interfaces that usually do not connect nodes."""


class LinkType(StrEnum):
    """How two ranks are connected, fastest first."""

    NVLINK = "NVLink"
    P2P = "P2P"
    """GPU to GPU, by NVLink or PCIe; NCCL logs which one only with the graph."""
    SHM = "SHM"
    """Through host memory."""
    IB = "IB"
    """InfiniBand or RoCE."""
    SOCKET = "Socket"
    OTHER = "plugin"
    """A network plugin, such as AWS Libfabric for EFA."""


@dataclass(slots=True)
class NcclTransport:
    """The connections that NCCL logged."""

    version: str | None = None
    network: str | None = None
    """NCCL's name of the network between nodes; None if it was not logged."""
    interfaces: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    """InfiniBand or RoCE devices."""
    paths: Counter[LinkType] = field(default_factory=Counter)
    """Number of channel connections by type."""
    by_pair: dict[tuple[int, int], LinkType] = field(default_factory=dict)
    nodes: int = 1
    has_nvlink: bool = False
    is_direct: bool = False
    """Whether GPUs and network cards exchange data without host memory."""
    environment: dict[str, str] = field(default_factory=dict)
    """NCCL settings from environment variables."""

    @property
    def between(self) -> str | None:
        """The transport between nodes; None if there is only one node."""
        for path in (LinkType.SOCKET, LinkType.IB):
            if self.paths[path]:
                return path
        if self.paths[LinkType.OTHER]:
            return self.network or LinkType.OTHER
        return self.network if self.nodes > 1 else None

    @property
    def within(self) -> LinkType | None:
        """The slowest path within a node; None if no two ranks share a node."""
        return next(
            (p for p in (LinkType.SHM, LinkType.P2P, LinkType.NVLINK) if self.paths[p]), None
        )

    @property
    def summary(self) -> str | None:
        """Both transports, as in a manifest; None if NCCL logged neither."""
        return " + ".join(filter(None, (self.within, self.between))) or None


def parse_logs(lines: Iterable[str]) -> NcclTransport:
    """Parse log lines of any number of ranks, which may be mixed with others."""
    found = NcclTransport()
    seen: list[tuple[int, int, str]] = []
    for raw in lines:
        line = raw.rstrip()
        if channel := _CHANNEL.search(line):
            seen.append((int(channel[2]), int(channel[3]), channel[4]))
        elif "NCCL" in line:
            _parse_line(found, line)
    for sender, receiver, via in seen:
        path = _link_type(via, has_nvlink=found.has_nvlink)
        found.paths[path] += 1
        found.by_pair[sender, receiver] = path
        found.is_direct |= via.endswith("GDRDMA") or "/GDRDMA" in via
    return found


def _parse_line(found: NcclTransport, line: str) -> None:
    if match := _VERSION.search(line):
        found.version = match[1]
    if match := _NETWORK.search(line):
        found.network = _link_name(match[1].strip())
    if match := _INTERFACE.search(line):
        _add_unique(found.interfaces, match[1])
    if match := _DEVICES.search(line):
        for device in _DEVICE.findall(match[1]):
            _add_unique(found.devices, device)
    if match := _ENV.search(line):
        found.environment[match[1]] = match[2].rstrip(".")
    if match := _NODES.search(line):
        found.nodes = max(found.nodes, int(match[1]))
    found.has_nvlink |= _NVLINK.search(line) is not None


def _add_unique(known: list[str], name: str) -> None:
    if name not in known:
        known.append(name)


def _link_name(network: str) -> str:
    """The link name of a network: NCCL's names for InfiniBand differ by plugin."""
    return LinkType.IB if network.startswith("IB") else network


def _link_type(via: str, *, has_nvlink: bool) -> LinkType:
    if via.startswith("P2P"):
        return LinkType.NVLINK if has_nvlink else LinkType.P2P
    if via.startswith("SHM"):
        return LinkType.SHM
    if via.startswith("NET/Socket"):
        return LinkType.SOCKET
    return LinkType.IB if via.startswith("NET/IB") else LinkType.OTHER


def advice(found: NcclTransport) -> list[str]:
    """Advice on slow transports; empty if NCCL logged none."""
    found_issues = []
    if found.between == LinkType.SOCKET:
        found_issues.append(f"{_socket_advice(found)} {_interface_advice(found)}")
    if found.between == LinkType.IB and not found.is_direct and found.paths[LinkType.IB]:
        found_issues.append(
            "GPUs and network cards exchange data through host memory, because GPUDirect RDMA (GDRDMA) is not used; "
            "load nvidia-peermem, and check NCCL_NET_GDR_LEVEL."
        )
    if found.within is LinkType.SHM:
        found_issues.append(
            "GPUs of a node exchange data through host memory: unset NCCL_P2P_DISABLE if it is set. "
            "An enabled IOMMU or ACS, or a GPU model without P2P, has the same effect."
        )
    if found.within is LinkType.P2P:
        found_issues.append(
            "P2P is NVLink or PCIe: NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH makes NCCL log which one; nvidia-smi topo -m also shows it."
        )
    return found_issues


def _socket_advice(found: NcclTransport) -> str:
    if found.environment.get("NCCL_IB_DISABLE", "0") != "0":
        advice = "because NCCL_IB_DISABLE is set: unset it if the nodes have InfiniBand or RoCE."
    elif found.devices:
        advice = f"although {', '.join(found.devices)} exists: select it with NCCL_IB_HCA."
    else:
        advice = (
            "because no InfiniBand device was found: if the nodes have one, check that the container sees /dev/infiniband, and "
            "select the device with NCCL_IB_HCA. EFA needs the plugin aws-ofi-nccl."
        )
    return f"Data between nodes goes over sockets, {advice}"


def _interface_advice(found: NcclTransport) -> str:
    by = ", ".join(found.interfaces) or "an interface that NCCL did not log"
    virtual = [name for name in found.interfaces if _VIRTUAL_INTERFACE.match(name)]
    if virtual:
        return f"NCCL uses {by}; {', '.join(virtual)} usually does not connect nodes: set NCCL_SOCKET_IFNAME to the interface that does."
    return (
        f"NCCL uses {by}; if the nodes have a faster interface, select it with NCCL_SOCKET_IFNAME."
    )


def parse_topology(topology: str) -> Mapping[str, int]:
    """Count pairs of GPUs by connection type in the output of `nvidia-smi topo -m`.

    NV12 is 12 NVLinks; PIX and PXB are PCIe switches; PHB, NODE and SYS go through the host.
    """
    rows = [re.sub(r"\x1b\[\d*m", "", line).split() for line in topology.splitlines()]
    header = next((row for row in rows if row and row[0] == "GPU0" and "X" not in row), [])
    names = [name for name in header if re.fullmatch(r"GPU\d+", name)]
    pairs: Counter[str] = Counter()
    for row in rows:
        if row and row[0] in names and "X" in row:
            at = names.index(row[0])
            pairs.update(row[2 + at : 1 + len(names)])
    return dict(sorted(pairs.items()))

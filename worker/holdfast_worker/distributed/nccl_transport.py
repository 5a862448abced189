"""The transport that NCCL took, read from what it says with NCCL_DEBUG=INFO. Pure.

A slow network fails in nothing, so that it has to be looked for: between nodes InfiniBand moves ten times what sockets do, and within
one NVLink twenty times what goes through the memory of the host.
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
_STRAY: Final = re.compile(r"^(?:lo|docker|virbr|br-|veth|cni|flannel)")
"""Interfaces that lead to no other node, as a rule."""


class LinkType(StrEnum):
    """How two ranks are connected, the fastest first."""

    NVLINK = "NVLink"
    P2P = "P2P"
    """From GPU to GPU, by NVLink or PCIe: without the graph NCCL does not say by which."""
    SHM = "SHM"
    """Through the memory of the host."""
    IB = "IB"
    """InfiniBand, or RoCE."""
    SOCKET = "Socket"
    OTHER = "plugin"
    """A network that NCCL knows through a plugin, such as AWS Libfabric, which is EFA."""


@dataclass(slots=True)
class NcclTransport:
    """What NCCL told of its connections."""

    version: str | None = None
    network: str | None = None
    """As NCCL calls what it took for between nodes; None where it did not say."""
    interfaces: list[str] = field(default_factory=list)
    devices: list[str] = field(default_factory=list)
    """Of InfiniBand or RoCE."""
    paths: Counter[LinkType] = field(default_factory=Counter)
    """Connections of channels."""
    by_pair: dict[tuple[int, int], LinkType] = field(default_factory=dict)
    nodes: int = 1
    has_nvlink: bool = False
    is_direct: bool = False
    """Whether GPUs and network cards exchange data without the memory of the host."""
    environment: dict[str, str] = field(default_factory=dict)
    """What NCCL was told by variables."""

    @property
    def between(self) -> str | None:
        """What goes between nodes, in a word; None where nothing does."""
        for path in (LinkType.SOCKET, LinkType.IB):
            if self.paths[path]:
                return path
        if self.paths[LinkType.OTHER]:
            return self.network or LinkType.OTHER
        return self.network if self.nodes > 1 else None

    @property
    def within(self) -> LinkType | None:
        """The slowest path within a node; None where no two ranks share one."""
        return next(
            (p for p in (LinkType.SHM, LinkType.P2P, LinkType.NVLINK) if self.paths[p]), None
        )

    @property
    def words(self) -> str | None:
        """Both, as a manifest has them; None where NCCL said nothing of either."""
        return " + ".join(filter(None, (self.within, self.between))) or None


def read(lines: Iterable[str]) -> NcclTransport:
    """What the lines of any number of ranks say, and other lines between them."""
    found = NcclTransport()
    seen: list[tuple[int, int, str]] = []
    for raw in lines:
        line = raw.rstrip()
        if channel := _CHANNEL.search(line):
            seen.append((int(channel[2]), int(channel[3]), channel[4]))
        elif "NCCL" in line:
            _note(found, line)
    for sender, receiver, via in seen:
        path = _path(via, has_nvlink=found.has_nvlink)
        found.paths[path] += 1
        found.by_pair[sender, receiver] = path
        found.is_direct |= via.endswith("GDRDMA") or "/GDRDMA" in via
    return found


def _note(found: NcclTransport, line: str) -> None:
    if match := _VERSION.search(line):
        found.version = match[1]
    if match := _NETWORK.search(line):
        found.network = _named(match[1].strip())
    if match := _INTERFACE.search(line):
        _add(found.interfaces, match[1])
    if match := _DEVICES.search(line):
        for device in _DEVICE.findall(match[1]):
            _add(found.devices, device)
    if match := _ENV.search(line):
        found.environment[match[1]] = match[2].rstrip(".")
    if match := _NODES.search(line):
        found.nodes = max(found.nodes, int(match[1]))
    found.has_nvlink |= _NVLINK.search(line) is not None


def _add(known: list[str], name: str) -> None:
    if name not in known:
        known.append(name)


def _named(network: str) -> str:
    """A network in the word of its path: NCCL's own names for InfiniBand differ with the plugin that brings it."""
    return LinkType.IB if network.startswith("IB") else network


def _path(via: str, *, has_nvlink: bool) -> LinkType:
    if via.startswith("P2P"):
        return LinkType.NVLINK if has_nvlink else LinkType.P2P
    if via.startswith("SHM"):
        return LinkType.SHM
    if via.startswith("NET/Socket"):
        return LinkType.SOCKET
    return LinkType.IB if via.startswith("NET/IB") else LinkType.OTHER


def advice(found: NcclTransport) -> list[str]:
    """What is slow in it, and what to set; empty where it is as fast as it can be, as far as NCCL says."""
    told = []
    if found.between == LinkType.SOCKET:
        told.append(f"{_of_sockets(found)} {_of_interfaces(found)}")
    if found.between == LinkType.IB and not found.is_direct and found.paths[LinkType.IB]:
        told.append(
            "GPUs and network cards exchange data through the memory of the host: GPUDirect RDMA (GDRDMA) is not used; "
            "load nvidia-peermem, and look at NCCL_NET_GDR_LEVEL."
        )
    if found.within is LinkType.SHM:
        told.append(
            "GPUs of a node exchange data through the memory of the host: unset NCCL_P2P_DISABLE if it is set; "
            "an IOMMU or ACS that is on, or a kind of GPU without P2P, does the same."
        )
    if found.within is LinkType.P2P:
        told.append(
            "P2P is NVLink or PCIe: NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH lets NCCL say which, and so does nvidia-smi topo -m."
        )
    return told


def _of_sockets(found: NcclTransport) -> str:
    if found.environment.get("NCCL_IB_DISABLE", "0") != "0":
        why = "as NCCL_IB_DISABLE is set: unset it if the nodes have InfiniBand or RoCE."
    elif found.devices:
        why = f"although there is {', '.join(found.devices)}: name it with NCCL_IB_HCA."
    else:
        why = (
            "as no InfiniBand was found: if the nodes have it, look whether the container sees /dev/infiniband, and name the "
            "device with NCCL_IB_HCA; EFA needs the plugin aws-ofi-nccl."
        )
    return f"Between nodes data goes by sockets, {why}"


def _of_interfaces(found: NcclTransport) -> str:
    by = ", ".join(found.interfaces) or "an interface that NCCL did not name"
    stray = [name for name in found.interfaces if _STRAY.match(name)]
    if stray:
        return f"It took {by}, of which {', '.join(stray)} leads to no other node as a rule: set NCCL_SOCKET_IFNAME to the one that does."
    return f"It took {by}; NCCL_SOCKET_IFNAME chooses another, if the nodes have a faster one."


def links(topology: str) -> Mapping[str, int]:
    """Pairs of GPUs by how they are connected, of what `nvidia-smi topo -m` prints: NV12 is 12 NVLinks, PIX and PXB are PCIe
    switches, PHB, NODE and SYS go through the host."""
    rows = [re.sub(r"\x1b\[\d*m", "", line).split() for line in topology.splitlines()]
    header = next((row for row in rows if row and row[0] == "GPU0" and "X" not in row), [])
    names = [name for name in header if re.fullmatch(r"GPU\d+", name)]
    pairs: Counter[str] = Counter()
    for row in rows:
        if row and row[0] in names and "X" in row:
            at = names.index(row[0])
            pairs.update(row[2 + at : 1 + len(names)])
    return dict(sorted(pairs.items()))

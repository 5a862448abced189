"""The GPUs of a job in `holdfast show`: a line for each node, and one for each fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from holdfast.api.schemas.gpus import GpuOut, GpusOut, NodeGpusOut
from holdfast.client import Client, Refused

MAX_NODES: Final = 8
"""Nodes that are listed. A higher value fills the screen for large jobs; a lower value hides some."""
_GIB: Final = 2**30


def gpus_of(client: Client, job_id: str) -> GpusOut | None:
    """Return the GPUs of a job; None from an older service."""
    try:
        return client.diagnostics.gpus(job_id)
    except Refused:
        return None


def gpu_rows(found: GpusOut | None) -> dict[str, str]:
    """Describe the GPUs of a job; empty without readings."""
    if found is None or not found.nodes:
        return {}
    lines = [_node_line(node) for node in found.nodes[:MAX_NODES]]
    if more := len(found.nodes) - MAX_NODES:
        lines += [f"and {more} more nodes"] * (more > 0)
    faults = [
        f"GPU {gpu.gpu} of {node.host} (node {node.node}) {gpu.detail}"
        for node in found.nodes
        for gpu in node.gpus
        if gpu.detail
    ]
    indent = "\n" + " " * 14
    return {"GPUs": indent.join(lines), "GPU faults": indent.join(faults)}


def _node_line(node: NodeGpusOut) -> str:
    gpus = node.gpus
    used = _values(gpus, lambda gpu: gpu.memory_used_bytes)
    whole = _values(gpus, lambda gpu: gpu.memory_total_bytes)
    parts = [f"{len(gpus)} x {gpus[0].name or 'GPU'}" if gpus else "no GPU"]
    if busy := _values(gpus, lambda gpu: gpu.utilization):
        parts.append(f"{sum(busy) / len(busy):.0%} busy")
    if used and whole:
        parts.append(f"{max(used) / _GIB:.0f} of {max(whole) / _GIB:.0f} GiB")
    if heat := _values(gpus, lambda gpu: gpu.temperature_c):
        parts.append(f"up to {max(heat):.0f} °C")
    if power := _values(gpus, lambda gpu: gpu.power_w):
        parts.append(f"{sum(power):,.0f} W")
    return f"{node.host} (node {node.node}): {' · '.join(parts)}"


def _values(gpus: Sequence[GpuOut], value: Callable[[GpuOut], float | None]) -> list[float]:
    return [found for gpu in gpus if (found := value(gpu)) is not None]

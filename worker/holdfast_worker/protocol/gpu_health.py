"""Readings of GPUs, and what is wrong with one. Standard library only.

The vocabulary of faults is closed, so that users and the service can rely on it. Thresholds follow NVIDIA's Xid catalog
(https://docs.nvidia.com/deploy/xid-errors) and its guide to memory errors (https://docs.nvidia.com/deploy/a100-gpu-mem-error-mgmt).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from holdfast_worker.protocol.reports import Json

MAX_GPUS: Final = 64
"""GPUs of a node that are reported. A lower value hides some; a higher value lets a malformed reading fill memory."""
MAX_CHARS: Final = 100
"""Characters of a name. A lower value cuts names of hosts; a higher value lets a malformed reading fill memory."""


class GpuFault(StrEnum):
    """What is wrong with a GPU, so that other launches should avoid its node."""

    OFF_BUS = "off_bus"
    """Xid 79, or NVML reports the GPU as lost: it does not respond on the PCI bus."""
    MEMORY_ERROR = "memory_error"
    """Xid 48, 94, 95, 140, 171 or 172, or the counter of uncorrected ECC errors grew."""
    REMAP_FAILED = "remap_failed"
    """Xid 64 or 157, or a failed remapping: the GPU has no spare memory rows left."""
    REMAP_PENDING = "remap_pending"
    """Xid 63 or 156, or rows or pages are to be replaced: the GPU has to be reset before."""
    ERROR_RATE = "error_rate"
    """Xid 92: many corrected ECC errors, which precede uncorrected ones."""
    NVLINK = "nvlink"
    """Xid 74 or 136: errors of a connection to another GPU."""
    FIRMWARE = "firmware"
    """Xid 62, 119, 120 or 158: a processor of the GPU halted or does not respond."""
    HEAT = "heat"
    """The hardware lowered the clocks because of the temperature, in several consecutive readings."""
    POWER_BRAKE = "power_brake"
    """The power supply of the node had the clocks lowered, in several consecutive readings."""
    NOT_RESPONDING = "not_responding"
    """The driver has not responded to a query for a minute."""


XID_FAULTS: Final[Mapping[int, GpuFault]] = {
    48: GpuFault.MEMORY_ERROR,
    62: GpuFault.FIRMWARE,
    63: GpuFault.REMAP_PENDING,
    64: GpuFault.REMAP_FAILED,
    74: GpuFault.NVLINK,
    79: GpuFault.OFF_BUS,
    92: GpuFault.ERROR_RATE,
    94: GpuFault.MEMORY_ERROR,
    95: GpuFault.MEMORY_ERROR,
    119: GpuFault.FIRMWARE,
    120: GpuFault.FIRMWARE,
    136: GpuFault.NVLINK,
    140: GpuFault.MEMORY_ERROR,
    156: GpuFault.REMAP_PENDING,
    157: GpuFault.REMAP_FAILED,
    158: GpuFault.FIRMWARE,
    171: GpuFault.MEMORY_ERROR,
    172: GpuFault.MEMORY_ERROR,
}
"""The Xid errors that NVIDIA attributes to hardware or firmware. Others, such as 13, 31 and 43, are usually errors of programs; 144 to 150
may be harmless, and come with 48 if they are not; and 154 only repeats which action another one requires."""

SENTENCES: Final[Mapping[GpuFault, str]] = {
    GpuFault.OFF_BUS: "has fallen off the bus",
    GpuFault.MEMORY_ERROR: "has an uncorrected memory error",
    GpuFault.REMAP_FAILED: "has no spare memory rows left",
    GpuFault.REMAP_PENDING: "has to be reset to replace broken memory",
    GpuFault.ERROR_RATE: "corrects many memory errors",
    GpuFault.NVLINK: "has errors of its NVLink",
    GpuFault.FIRMWARE: "has a firmware that does not respond",
    GpuFault.HEAT: "runs at lower clocks because it is too hot",
    GpuFault.POWER_BRAKE: "runs at lower clocks because of the node's power supply",
    GpuFault.NOT_RESPONDING: "does not respond to its driver",
}
"""What a fault means, after the name of the GPU."""


class Throttle(StrEnum):
    """Why the clocks of a GPU are lower than they could be, other than for lack of work."""

    POWER_CAP = "power_cap"
    """The GPU uses the power that its limit allows: usual under full load."""
    HEAT = "heat"
    """The driver or the hardware limits the temperature."""
    SLOWDOWN = "slowdown"
    """The hardware halves the clocks or more, for heat or power."""
    POWER_BRAKE = "power_brake"
    """The power supply of the node asks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """What the driver reports of one GPU; None where it reports nothing, as for a MIG slice."""

    gpu: int
    """Number of the GPU in its node, as `nvidia-smi` counts."""
    name: str = ""
    uuid: str = ""
    utilization: float | None = None
    """Share of time in which the GPU was busy, from 0 to 1."""
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    clock_mhz: int | None = None
    max_clock_mhz: int | None = None
    uncorrected_errors: int | None = None
    """Uncorrected ECC errors since the driver was loaded."""
    throttles: tuple[Throttle, ...] = ()
    xids: tuple[int, ...] = ()
    """The different Xid errors since the node began to run the job."""
    faults: tuple[GpuFault, ...] = ()
    """The different faults since then."""

    @property
    def detail(self) -> str:
        """What is wrong, in words; empty without faults."""
        found = [SENTENCES[fault] for fault in self.faults]
        if xids := [str(xid) for xid in self.xids if xid in XID_FAULTS]:
            found.append(f"Xid {', '.join(xids)}")
        return "; ".join(found) if self.faults else ""

    def with_fault(self, fault: GpuFault) -> GpuReading:
        """This reading with one more fault."""
        return self if fault in self.faults else replace(self, faults=(*self.faults, fault))

    def dump(self) -> dict[str, Json]:
        """The reading as JSON, without what is not reported."""
        values: dict[str, Json] = {name: getattr(self, name) for name in _NUMBERS}
        lists: dict[str, Json] = {name: [*getattr(self, name)] for name in _LISTS}
        texts: dict[str, Json] = {"name": self.name, "uuid": self.uuid}
        found = {**texts, **values, **lists}
        return {
            "gpu": self.gpu,
            **{key: value for key, value in found.items() if value not in (None, "", [])},
        }

    @classmethod
    def parse(cls, raw: Json) -> GpuReading:
        """Parse a reading; faults and throttles that a newer version added are left out.

        Raises:
            ValueError: it is malformed.
        """
        if not isinstance(raw, dict):
            raise ValueError("a reading of a GPU is not an object")  # noqa: TRY004 - a malformed report
        numbers = {name: _number(raw, name, of) for name, of in _NUMBERS.items()}
        gpu = _number(raw, "gpu", int)
        if gpu is None:
            raise ValueError("a reading of a GPU has no gpu")
        return cls(
            gpu=int(gpu),
            name=_text(raw, "name"),
            uuid=_text(raw, "uuid"),
            throttles=tuple(Throttle(each) for each in _words(raw, "throttles", Throttle)),
            faults=tuple(GpuFault(each) for each in _words(raw, "faults", GpuFault)),
            xids=tuple(_integers(raw, "xids")),
            **numbers,  # type: ignore[arg-type]
        )


_NUMBERS: Final[Mapping[str, type[int | float]]] = {
    "utilization": float,
    "memory_used_bytes": int,
    "memory_total_bytes": int,
    "temperature_c": int,
    "power_w": float,
    "power_limit_w": float,
    "clock_mhz": int,
    "max_clock_mhz": int,
    "uncorrected_errors": int,
}
_LISTS: Final = ("throttles", "xids", "faults")
_MAX_INTEGER: Final = 2**53
_MAX_NODE: Final = 2**31


@dataclass(frozen=True, slots=True)
class NodeGpus:
    """The newest readings of the GPUs of a node."""

    node: int
    host: str
    """Name of the machine, as its launcher knows it."""
    at: str
    """RFC 3339 time of the readings, by the clock of the node."""
    gpus: Sequence[GpuReading]

    def dump(self) -> dict[str, Json]:
        """The readings as JSON."""
        gpus: list[Json] = [gpu.dump() for gpu in self.gpus]
        return {"node": self.node, "host": self.host, "at": self.at, "gpus": gpus}

    @classmethod
    def parse(cls, raw: Json) -> NodeGpus:
        """Parse readings.

        Raises:
            ValueError: they are malformed.
        """
        match raw:
            case {"node": int(node), "host": str(host), "at": str(at), "gpus": list(gpus)}:
                if not 0 <= node < _MAX_NODE:
                    raise ValueError(f"{node} is not the number of a node")
                found = [GpuReading.parse(gpu) for gpu in gpus[:MAX_GPUS]]
                return cls(node, legible(host), legible(at), found)
        raise ValueError("not readings of a node: it needs node, host, at and gpus")


def legible(text: str) -> str:
    """A text as databases accept it."""
    return text[:MAX_CHARS].replace("\0", "?")


def _number(raw: Mapping[str, Json], name: str, of: type[int | float]) -> float | None:
    value = raw.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} of a GPU is not a number")
    if not 0 <= value < _MAX_INTEGER:
        raise ValueError(f"{name} of a GPU is {value}, which is out of range")
    return of(value)


def _text(raw: Mapping[str, Json], name: str) -> str:
    value = raw.get(name, "")
    if not isinstance(value, str):
        raise ValueError(f"{name} of a GPU is not a text")  # noqa: TRY004 - a malformed report
    return legible(value)


def _words(raw: Mapping[str, Json], name: str, of: type[StrEnum]) -> list[str]:
    known = set(of)
    return [str(each) for each in _list(raw, name) if each in known]


def _integers(raw: Mapping[str, Json], name: str) -> list[int]:
    return [each for each in _list(raw, name) if isinstance(each, int)][:MAX_GPUS]


def _list(raw: Mapping[str, Json], name: str) -> list[Json]:
    value = raw.get(name, [])
    if not isinstance(value, list):
        raise ValueError(f"{name} of a GPU is not a list")  # noqa: TRY004 - a malformed report
    return value

# ruff: noqa: N802 - the names of NVML
"""A recording of NVML under the name of its package: put this folder on the path of a process.

`HOLDFAST_TEST_NVML` names a recording in `tests/data/nvml`. Each GPU has a list of readings, of which the last one repeats.
A missing value is one that the driver does not support. `lost` and `hangs` stand in for a GPU that has fallen off the bus,
and for a query that does not return. An event follows the given number of readings of its GPU.
"""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_TIMEOUT = 10
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_GPU_IS_LOST = 15
_XID_EVENT = 0x8
_THROTTLES = {"power_cap": 0x04, "slowdown": 0x08, "heat": 0x40, "power_brake": 0x80, "idle": 0x1}


class NVMLError(Exception):
    """An error of the library, by its number."""

    def __init__(self, value: int) -> None:
        super().__init__(f"NVML error {value}")
        self.value = value


class Device:
    """A recorded GPU."""

    def __init__(self, recorded: dict[str, Any]) -> None:
        self.recorded = recorded
        self.read = 0

    @property
    def now(self) -> dict[str, Any]:
        """The current reading."""
        readings: list[dict[str, Any]] = self.recorded["readings"]
        return readings[min(max(0, self.read - 1), len(readings) - 1)]

    def value(self, name: str) -> Any:
        """A value of the current reading."""
        if self.now.get("lost"):
            raise NVMLError(NVML_ERROR_GPU_IS_LOST)
        if name not in self.now:
            raise NVMLError(NVML_ERROR_NOT_SUPPORTED)
        return self.now[name]


_DEVICES: list[Device] = []
_EVENTS: list[dict[str, Any]] = []


def play(recording: Path) -> None:
    """Begin a recording."""
    recorded = json.loads(recording.read_text())
    _DEVICES[:] = [Device(gpu) for gpu in recorded["gpus"]]
    _EVENTS[:] = recorded.get("events", [])


def nvmlInit() -> None:
    path = os.environ.get("HOLDFAST_TEST_NVML")
    if path:
        play(Path(path))
    if not _DEVICES:
        raise NVMLError(NVML_ERROR_LIBRARY_NOT_FOUND)


def nvmlDeviceGetCount() -> int:
    return len(_DEVICES)


def nvmlDeviceGetHandleByIndex(gpu: int) -> Device:
    return _DEVICES[gpu]


def nvmlDeviceGetUUID(device: Device) -> str:
    return str(device.recorded["uuid"])


def nvmlDeviceGetName(device: Device) -> str:
    return str(device.recorded["name"])


def nvmlDeviceGetUtilizationRates(device: Device) -> Any:
    device.read += 1
    if device.now.get("hangs"):
        threading.Event().wait()
    return SimpleNamespace(gpu=device.value("utilization"))


def nvmlDeviceGetMemoryInfo(device: Device) -> Any:
    return SimpleNamespace(used=device.value("memory_used"), total=device.value("memory_total"))


def nvmlDeviceGetPowerUsage(device: Device) -> int:
    return int(device.value("power_mw"))


def nvmlDeviceGetEnforcedPowerLimit(device: Device) -> int:
    return int(device.value("power_limit_mw"))


def nvmlDeviceGetTemperature(device: Device, sensor: int) -> int:
    assert sensor == 0
    return int(device.value("temperature"))


def nvmlDeviceGetClockInfo(device: Device, kind: int) -> int:
    assert kind == 1
    return int(device.value("clock"))


def nvmlDeviceGetMaxClockInfo(device: Device, kind: int) -> int:
    assert kind == 1
    return int(device.value("max_clock"))


def nvmlDeviceGetTotalEccErrors(device: Device, kind: int, counter: int) -> int:
    assert (kind, counter) == (1, 0)
    return int(device.value("uncorrected"))


def nvmlDeviceGetRemappedRows(device: Device) -> tuple[int, int, int, int]:
    rows = device.value("remapped_rows")
    return rows[0], rows[1], rows[2], rows[3]


def nvmlDeviceGetCurrentClocksEventReasons(device: Device) -> int:
    return sum(_THROTTLES[name] for name in device.value("throttles"))


def nvmlEventSetCreate() -> object:
    return object()


def nvmlDeviceRegisterEvents(device: Device, kind: int, events: object) -> None:
    assert kind == _XID_EVENT
    if device.recorded.get("has_no_events"):
        raise NVMLError(NVML_ERROR_NOT_SUPPORTED)


def nvmlEventSetWait_v2(events: object, timeout_ms: int) -> Any:
    for event in _EVENTS:
        device = _DEVICES[event["gpu"]]
        if device.read >= event["after_readings"]:
            _EVENTS.remove(event)
            return SimpleNamespace(device=device, eventType=_XID_EVENT, eventData=event["xid"])
    time.sleep(timeout_ms / 1000)
    raise NVMLError(NVML_ERROR_TIMEOUT)

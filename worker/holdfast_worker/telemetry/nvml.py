"""Reads the GPUs of this node through NVIDIA's driver library (`nvidia-ml-py`).

Each query may fail by itself, as on a MIG slice or an older driver: the value is then missing. Standard library only; the
package is optional.
"""

from __future__ import annotations

import ctypes
import importlib
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Final, Self

from holdfast_worker.protocol.gpu_health import XID_FAULTS, GpuFault, GpuReading, Throttle

PERSISTS: Final = 3
"""Consecutive readings with lowered clocks that make a fault. A lower value reports short peaks; a higher value reports late."""
VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
MAX_XIDS: Final = 16
"""Different Xid errors of a GPU that are kept. A lower value hides some; a higher value enlarges reports."""
_LOST: Final = 15
"""`NVML_ERROR_GPU_IS_LOST`."""
_XID_EVENT: Final = 0x8
"""`nvmlEventTypeXidCriticalError`."""
_UNCORRECTED: Final = 1
_VOLATILE: Final = 0
_CORE_SENSOR: Final = 0
_SM_CLOCK: Final = 1
_THROTTLES: Final[Mapping[int, Throttle]] = {
    0x04: Throttle.POWER_CAP,
    0x08: Throttle.SLOWDOWN,
    0x20: Throttle.HEAT,
    0x40: Throttle.HEAT,
    0x80: Throttle.POWER_BRAKE,
}
_HARDWARE_HEAT: Final = 0x40
_POWER_BRAKE: Final = 0x80


@dataclass
class _Device:
    """A GPU, and what was found about it so far."""

    gpu: int
    handle: Any
    uuid: str = ""
    name: str = ""
    first_uncorrected: int | None = None
    xids: dict[int, None] = field(default_factory=dict)
    faults: dict[GpuFault, None] = field(default_factory=dict)
    throttled: dict[GpuFault, int] = field(default_factory=dict)
    """Consecutive readings with clocks lowered for this reason."""

    def add_xid(self, xid: int) -> None:
        if len(self.xids) < MAX_XIDS:
            self.xids.setdefault(xid)
        if xid in XID_FAULTS:
            self.faults.setdefault(XID_FAULTS[xid])

    def count_throttles(self, reasons: int) -> None:
        for bit, fault in ((_HARDWARE_HEAT, GpuFault.HEAT), (_POWER_BRAKE, GpuFault.POWER_BRAKE)):
            self.throttled[fault] = self.throttled.get(fault, 0) + 1 if reasons & bit else 0
            if self.throttled[fault] >= PERSISTS:
                self.faults.setdefault(fault)


class Nvml:
    """The GPUs of this node that the job may use."""

    def __init__(self, api: Any, visible: str = "") -> None:
        """`api`: the initialized module `pynvml`. `visible`: value of `CUDA_VISIBLE_DEVICES`.

        Raises:
            Exception: the driver does not list its GPUs.
        """
        self._api = api
        self.querying: tuple[int, float] | None = None
        """The GPU that is being queried, and since when by `time.monotonic`; None between queries."""
        devices = []
        for gpu in range(api.nvmlDeviceGetCount()):
            # A GPU that is gone when the node starts is found by the launcher's own checks.
            with suppress(api.NVMLError):
                devices.append(_Device(gpu, api.nvmlDeviceGetHandleByIndex(gpu)))
        for device in devices:
            device.uuid = _text(self._query(device, "nvmlDeviceGetUUID"))
            device.name = _text(self._query(device, "nvmlDeviceGetName"))
        self._devices = [device for device in devices if _is_visible(device, visible)]
        self._events = self._register_events()

    @classmethod
    def open(cls, visible: str = "") -> Self | None:
        """Open the driver library; None without the package, the library or a GPU."""
        try:
            api = importlib.import_module("pynvml")
        except ImportError:
            return None
        try:
            api.nvmlInit()
            found = cls(api, visible)
        except (api.NVMLError, OSError, AttributeError):
            return None
        return found if found._devices else None

    def read(self) -> list[GpuReading]:
        """The current readings of all GPUs."""
        return [self._read(device) for device in self._devices]

    def wait(self, timeout_s: float, sleep: Callable[[float], object] = time.sleep) -> None:
        """Wait for an Xid error, or until the timeout."""
        until_s = time.monotonic() + timeout_s
        while self._events is not None and (left_s := until_s - time.monotonic()) > 0:
            try:
                event = self._api.nvmlEventSetWait_v2(self._events, int(left_s * 1000) + 1)
            except self._api.NVMLError as error:
                if getattr(error, "value", None) != self._api.NVML_ERROR_TIMEOUT:
                    self._events = (
                        None  # As after the loss of a GPU: it would fail at once each time.
                    )
                break
            if self._add_event(event):
                return
        if (left_s := until_s - time.monotonic()) > 0:
            sleep(left_s)

    def _register_events(self) -> Any:
        """The set of events for Xid errors; None if the driver supports none here."""
        api = self._api
        try:
            events = api.nvmlEventSetCreate()
        except (api.NVMLError, AttributeError):
            return None
        is_registered = False
        for device in self._devices:
            with suppress(api.NVMLError):
                api.nvmlDeviceRegisterEvents(device.handle, _XID_EVENT, events)
                is_registered = True
        return events if is_registered else None

    def _add_event(self, event: Any) -> bool:
        """Record an Xid error, and return whether it concerns one of the GPUs."""
        if event.eventType != _XID_EVENT:
            return False
        uuid = ""
        with suppress(self._api.NVMLError):
            uuid = _text(self._api.nvmlDeviceGetUUID(event.device))
        found = [each for each in self._devices if uuid and each.uuid == uuid]
        # A GPU that has fallen off the bus may not even report its name.
        found = found or [each for each in self._devices if _is_same(each.handle, event.device)]
        for device in found:
            device.add_xid(int(event.eventData))
        return bool(found)

    def _read(self, device: _Device) -> GpuReading:
        self.querying = device.gpu, time.monotonic()
        rates = self._query(device, "nvmlDeviceGetUtilizationRates")
        memory = self._query(device, "nvmlDeviceGetMemoryInfo")
        power_mw = self._query(device, "nvmlDeviceGetPowerUsage")
        limit_mw = self._query(device, "nvmlDeviceGetEnforcedPowerLimit")
        uncorrected = self._query(device, "nvmlDeviceGetTotalEccErrors", _UNCORRECTED, _VOLATILE)
        reasons = self._throttle_reasons(device)
        reading = {
            "utilization": None if rates is None else rates.gpu / 100,
            "memory_used_bytes": None if memory is None else int(memory.used),
            "memory_total_bytes": None if memory is None else int(memory.total),
            "temperature_c": self._query(device, "nvmlDeviceGetTemperature", _CORE_SENSOR),
            "power_w": None if power_mw is None else power_mw / 1000,
            "power_limit_w": None if limit_mw is None else limit_mw / 1000,
            "clock_mhz": self._query(device, "nvmlDeviceGetClockInfo", _SM_CLOCK),
            "max_clock_mhz": self._query(device, "nvmlDeviceGetMaxClockInfo", _SM_CLOCK),
        }
        self._check_memory(device, uncorrected)
        self.querying = None
        return GpuReading(
            gpu=device.gpu,
            name=device.name,
            uuid=device.uuid,
            uncorrected_errors=uncorrected,
            throttles=tuple(dict.fromkeys(t for bit, t in _THROTTLES.items() if reasons & bit)),
            xids=tuple(device.xids),
            faults=tuple(device.faults),
            **reading,
        )

    def _throttle_reasons(self, device: _Device) -> int:
        reasons = self._query(device, "nvmlDeviceGetCurrentClocksEventReasons")
        if reasons is None:  # The name of drivers before 535.
            reasons = self._query(device, "nvmlDeviceGetCurrentClocksThrottleReasons")
        device.count_throttles(reasons or 0)
        return int(reasons or 0)

    def _check_memory(self, device: _Device, uncorrected: int | None) -> None:
        """Record memory errors since the first reading, and replacements of memory that are due."""
        if uncorrected is not None:
            if device.first_uncorrected is None:
                device.first_uncorrected = uncorrected
            if uncorrected > device.first_uncorrected:
                device.faults.setdefault(GpuFault.MEMORY_ERROR)
        rows = self._query(device, "nvmlDeviceGetRemappedRows")
        if rows is not None and rows[3]:
            device.faults.setdefault(GpuFault.REMAP_FAILED)
        # GPUs before Ampere retire pages instead.
        if (rows is not None and rows[2]) or self._query(
            device, "nvmlDeviceGetRetiredPagesPendingStatus"
        ):
            device.faults.setdefault(GpuFault.REMAP_PENDING)

    def _query(self, device: _Device, function: str, *words: int) -> Any:
        """The result of a query; None if it fails or this version of the package lacks it."""
        call = getattr(self._api, function, None)
        if call is None:
            return None
        try:
            return call(device.handle, *words)
        except self._api.NVMLError as error:
            if getattr(error, "value", None) == _LOST:
                device.faults.setdefault(GpuFault.OFF_BUS)
            return None


def open_gpus(env: Mapping[str, str]) -> Nvml | None:
    """The GPUs that the ranks of this node may use; None without any."""
    return Nvml.open(env.get(VISIBLE, ""))


def _is_visible(device: _Device, visible: str) -> bool:
    """Whether `CUDA_VISIBLE_DEVICES` names a GPU by number or uuid, or is empty."""
    words = [word.strip() for word in visible.split(",") if word.strip()]
    if not words or any(word.startswith("MIG") for word in words):
        return True
    return any(
        int(word) == device.gpu if word.isdecimal() else device.uuid.startswith(word)
        for word in words
    )


def _is_same(handle: Any, other: Any) -> bool:
    """Whether two handles are pointers to the same GPU."""
    address = ctypes.c_void_p
    with suppress(ctypes.ArgumentError, TypeError):
        return ctypes.cast(handle, address).value == ctypes.cast(other, address).value
    return handle is other


def _text(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")

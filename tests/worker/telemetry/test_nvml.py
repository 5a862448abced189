"""Readings of GPUs and their faults, from recordings of NVML in `tests/data/nvml`."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
from holdfast_worker.protocol.gpu_health import GpuFault, GpuReading, Throttle
from holdfast_worker.telemetry.nvml import Nvml, open_gpus

RECORDINGS = Path(__file__).parents[2] / "data/nvml"
RECORDED_NVML = Path(__file__).parents[1] / "support/recorded_nvml"


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The recording in place of the package."""
    monkeypatch.delitem(sys.modules, "pynvml", raising=False)
    monkeypatch.syspath_prepend(RECORDED_NVML)
    found = importlib.import_module("pynvml")
    yield found
    sys.modules.pop("pynvml", None)


def play(nvml: Any, recording: str, visible: str = "") -> Nvml:
    nvml.play(RECORDINGS / f"{recording}.json")
    gpus = open_gpus({"CUDA_VISIBLE_DEVICES": visible})
    assert gpus is not None
    return gpus


def read(gpus: Nvml, times: int) -> list[GpuReading]:
    """The last of several readings, each after a wait for events."""
    for _ in range(times - 1):
        gpus.read()
        gpus.wait(0.001)
    return gpus.read()


def test_reading_has_all_values(nvml: Any) -> None:
    first, second = play(nvml, "healthy").read()
    assert first == GpuReading(
        gpu=0,
        name="NVIDIA H100 80GB HBM3",
        uuid="GPU-7d0f0b5e-6a1c-4c1e-9d2f-000000000000",
        utilization=0.97,
        memory_used_bytes=71_234_879_488,
        memory_total_bytes=85_520_809_984,
        temperature_c=61,
        power_w=652.31,
        power_limit_w=700,
        clock_mhz=1755,
        max_clock_mhz=1980,
        uncorrected_errors=0,
        throttles=(Throttle.POWER_CAP,),
    )
    assert (second.gpu, second.temperature_c, second.faults) == (1, 58, ())


def test_missing_package_library_or_gpu_reads_nothing(
    nvml: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert open_gpus({}) is None
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_gpus({}) is None


def test_lost_gpu_and_its_xid_are_one_fault(nvml: Any) -> None:
    healthy, lost = read(play(nvml, "off_bus"), 2)
    assert healthy.faults == ()
    assert (lost.faults, lost.xids, lost.temperature_c) == ((GpuFault.OFF_BUS,), (79,), None)
    assert lost.detail == "has fallen off the bus; Xid 79"


def test_only_new_memory_errors_are_faults(nvml: Any) -> None:
    gpus = play(nvml, "memory_error")
    assert read(gpus, 2)[0].faults == ()
    [later] = read(gpus, 3)
    assert later.uncorrected_errors == 3
    assert set(later.faults) == {GpuFault.MEMORY_ERROR, GpuFault.REMAP_PENDING}
    assert set(later.xids) == {94, 63}


def test_published_readings_of_gpus_have_no_faults(nvml: Any) -> None:
    """A GPU that is divided into MIG instances reports neither its utilization nor remapped rows."""
    divided, idle = read(play(nvml, "published_idle"), 4)

    assert (divided.name, divided.utilization, divided.faults) == (
        "NVIDIA A100-SXM4-80GB",
        None,
        (),
    )
    assert (divided.power_w, divided.clock_mhz, divided.uncorrected_errors) == (67.03, 1275, 0)
    assert (idle.name, idle.utilization, idle.throttles, idle.faults) == ("NVIDIA A10G", 0, (), ())


def test_published_memory_failure_is_found_in_all_ways(nvml: Any) -> None:
    gpus = play(nvml, "published_memory_error")
    assert read(gpus, 2)[0].faults == ()

    found = read(gpus, 7)[0]

    assert found.xids == (48, 171, 63, 94, 154)
    assert found.faults == (GpuFault.MEMORY_ERROR, GpuFault.REMAP_PENDING)
    assert found.detail == (
        "has an uncorrected memory error; has to be reset to replace broken memory; Xid 48, 171, 63, 94"
    )


def test_heat_is_a_fault_only_if_it_persists(nvml: Any) -> None:
    gpus = play(nvml, "heat")
    assert [gpu.faults for gpu in read(gpus, 2)] == [(), ()]
    hot, short = gpus.read()
    assert hot.faults == (GpuFault.HEAT,)
    assert set(hot.throttles) == {Throttle.SLOWDOWN, Throttle.HEAT}
    assert short.faults == ()


def test_unsupported_queries_leave_values_out(nvml: Any) -> None:
    [reading] = read(play(nvml, "no_support"), 2)
    assert reading == GpuReading(gpu=0, name="NVIDIA A10G", uuid="GPU-1", temperature_c=40)


def test_errors_of_programs_are_no_faults(nvml: Any) -> None:
    gpus = play(nvml, "healthy")
    nvml._EVENTS.append({"gpu": 0, "after_readings": 0, "xid": 31})
    gpus.wait(0.001)
    assert (gpus.read()[0].xids, gpus.read()[0].faults) == ((31,), ())


@pytest.mark.parametrize(
    ("visible", "expected"),
    [
        ("1", [1]),
        ("1,0", [0, 1]),
        ("GPU-7d0f0b5e-6a1c-4c1e-9d2f-000000000001", [1]),
        ("MIG-1", [0, 1]),
    ],
)
def test_only_visible_gpus_are_read(nvml: Any, visible: str, expected: list[int]) -> None:
    assert [gpu.gpu for gpu in play(nvml, "healthy", visible).read()] == expected

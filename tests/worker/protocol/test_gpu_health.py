"""Readings of GPUs survive a round trip, and malformed ones are refused."""

from __future__ import annotations

import json

import pytest
from holdfast_worker.protocol.gpu_health import (
    MAX_GPUS,
    SENTENCES,
    XID_FAULTS,
    GpuFault,
    GpuReading,
    NodeGpus,
    Throttle,
)
from hypothesis import given
from hypothesis import strategies as st

COUNTS = st.none() | st.integers(0, 2**53 - 1)
NAMES = st.text(st.characters(exclude_characters="\0"), max_size=100)
READINGS = st.builds(
    GpuReading,
    gpu=st.integers(0, 100),
    name=NAMES,
    uuid=NAMES,
    utilization=st.none() | st.floats(0, 1),
    power_w=st.none() | st.floats(0, 2000),
    power_limit_w=st.none() | st.floats(0, 2000),
    **dict.fromkeys(("memory_used_bytes", "memory_total_bytes", "temperature_c"), COUNTS),
    **dict.fromkeys(("clock_mhz", "max_clock_mhz", "uncorrected_errors"), COUNTS),
    throttles=st.lists(st.sampled_from(Throttle)).map(tuple),
    xids=st.lists(st.integers(0, 200), max_size=16).map(tuple),
    faults=st.lists(st.sampled_from(GpuFault)).map(tuple),
)


@given(st.lists(READINGS, max_size=3), st.integers(0, 1000))
def test_readings_survive_a_round_trip(gpus: list[GpuReading], node: int) -> None:
    found = NodeGpus(node, "gpu-1", "2026-11-27T04:00:00Z", gpus)
    assert NodeGpus.parse(json.loads(json.dumps(found.dump()))) == found


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"gpu": None}, "has no gpu"),
        ({"gpu": "1"}, "gpu of a GPU is not a number"),
        ({"temperature_c": -1}, "temperature_c of a GPU is -1, which is out of range"),
        ({"power_w": True}, "power_w of a GPU is not a number"),
        ({"power_w": float("nan")}, "power_w of a GPU is not a number"),
        ({"faults": "heat"}, "faults of a GPU is not a list"),
        ({"name": 7}, "name of a GPU is not a text"),
    ],
)
def test_malformed_reading_is_refused(change: dict[str, object], problem: str) -> None:
    raw = {"gpu": 0, **change}
    with pytest.raises(ValueError, match=problem):
        GpuReading.parse(raw)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "raw", [None, [], {"node": -1, "host": "", "at": "", "gpus": []}, {"node": 1}]
)
def test_malformed_readings_of_a_node_are_refused(raw: object) -> None:
    with pytest.raises(ValueError, match=r"node"):
        NodeGpus.parse(raw)  # type: ignore[arg-type]


def test_words_of_newer_versions_and_many_gpus_are_left_out() -> None:
    gpus = [{"gpu": gpu, "faults": ["nvlink", "new"], "throttles": ["new"]} for gpu in range(200)]
    found = NodeGpus.parse({"node": 0, "host": "h" * 200, "at": "", "gpus": gpus})  # type: ignore[dict-item]
    assert (len(found.gpus), len(found.host)) == (MAX_GPUS, 100)
    assert (found.gpus[0].faults, found.gpus[0].throttles) == ((GpuFault.NVLINK,), ())


def test_each_fault_has_words() -> None:
    assert SENTENCES.keys() == set(GpuFault)
    reading = GpuReading(gpu=0, xids=(31, 79), faults=(XID_FAULTS[79], GpuFault.NVLINK))
    assert reading.detail == "has fallen off the bus; has errors of its NVLink; Xid 79"

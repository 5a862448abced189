"""The package `nvidia-ml-py` itself reads a compiled library in place of the driver's."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.requirements import skip_or_fail

SOURCE = Path(__file__).parents[2] / "data/nvml/libnvidia_ml.c"
PROGRAM = """
import json
from holdfast_worker.telemetry.nvml import open_gpus
gpus = open_gpus({})
found = [gpus.read()[0].dump()]
gpus.wait(0.01)
found.append(gpus.read()[0].dump())
gpus.wait(30)
found.append(gpus.read()[0].dump())
print(json.dumps(found))
"""


@pytest.mark.full
def test_package_reads_a_driver_library(tmp_path: Path) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        pytest.skip("needs a C compiler; on Debian: sudo apt-get install gcc")
    if not importlib.util.find_spec("pynvml"):
        skip_or_fail("needs nvidia-ml-py, which make setup installs")
    library = tmp_path / "libnvidia-ml.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, SOURCE], check=True)
    env = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    out = subprocess.run([sys.executable, "-c", PROGRAM], env=env, check=True, capture_output=True)
    first, second, lost = json.loads(out.stdout)
    assert first == second
    assert first == {
        "gpu": 0,
        "name": "NVIDIA H100 80GB HBM3",
        "uuid": "GPU-1",
        "utilization": 0.97,
        "memory_used_bytes": 70,
        "memory_total_bytes": 80,
        "temperature_c": 61,
        "power_w": 652.3,
        "power_limit_w": 700.0,
        "clock_mhz": 1755,
        "max_clock_mhz": 1980,
        "uncorrected_errors": 0,
        "throttles": ["power_cap"],
    }
    assert (lost["faults"], lost["xids"]) == (["off_bus"], [79])

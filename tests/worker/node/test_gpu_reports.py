"""The GPUs of all nodes reach the reports of node 0, shown with a recording of NVML."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.gpu_health import GpuFault, NodeGpus
from holdfast_worker.protocol.reports import ReportKind
from worker.support.nodes_driver import Nodes
from worker.support.run_driver import RunDriver, wait_until

DATA = Path(__file__).parents[2] / "data/nvml"
RECORDED_NVML = Path(__file__).parents[1] / "support/recorded_nvml"

FAILS = """
import os, time
from pathlib import Path

gpus = Path(os.environ["HOLDFAST_RUN_DIR"]) / "gpus.json"
while not gpus.exists() or "off_bus" not in gpus.read_text():
    time.sleep(0.05)
raise RuntimeError("CUDA error: unspecified")
"""
"""A script that fails once node 0 knows of the fault of its GPU."""


def playing(recording: str) -> dict[str, str]:
    """Variables of a node that plays a recording."""
    path = os.pathsep.join(filter(None, [str(RECORDED_NVML), os.environ.get("PYTHONPATH")]))
    return {"PYTHONPATH": path, "HOLDFAST_TEST_NVML": str(DATA / f"{recording}.json")}


def read_nodes(driver: RunDriver) -> list[NodeGpus]:
    """The nodes of the newest report of readings."""
    found = driver.reports(ReportKind.GPUS_READ)
    raw = found[-1].body["nodes"] if found else []
    assert isinstance(raw, list)
    return [NodeGpus.parse(each) for each in raw]


def wait_for_readings(path: Path) -> None:
    """Wait until each node of a run has read its GPUs again."""
    at = {file: file.stat().st_mtime_ns for file in path.rglob("gpus.json")}
    assert at
    wait_until(lambda: all(file.stat().st_mtime_ns > before for file, before in at.items()))


@pytest.mark.full
def test_fault_of_another_node_is_reported_once(tmp_path: Path) -> None:
    """A fault is that of a GPU of a host, however many nodes of a job this host is."""
    nodes = Nodes(tmp_path, nodes=2, steps=12, SLURMD_NODENAME="gpu", **playing("off_bus"))
    nodes.driver.forks = False
    nodes.start("--hold", "4")
    wait_until(lambda: [each.node for each in read_nodes(nodes.driver)][:1] == [0])
    wait_until(lambda: len(nodes.driver.reports(ReportKind.GPU_UNHEALTHY)) >= 2)
    for _ in range(2):  # Rank 0 looks at least once at readings after the reports.
        wait_for_readings(tmp_path)
    log = nodes.finish()
    faults = nodes.driver.reports(ReportKind.GPU_UNHEALTHY)
    assert {(r.body["node"], r.body["gpu"]) for r in faults} == {(0, 1), (1, 1)}
    assert {r.body["host"] for r in faults} == {"gpu-0", "gpu-1"}
    assert len(faults) == 2
    assert faults[0].body["faults"] == [GpuFault.OFF_BUS]
    assert faults[0].body["detail"] == "has fallen off the bus; Xid 79"
    assert log.count("is not healthy: has fallen off the bus; Xid 79") == 2


@pytest.mark.full
def test_fault_precedes_the_failure_that_it_causes(tmp_path: Path) -> None:
    driver = RunDriver(tmp_path, extra=playing("off_bus"), forks=False)
    script = tmp_path / "fails.py"
    script.write_text(FAILS)
    code, _, _ = driver.run_wrapper("--nproc-per-node", "1", str(script))
    assert code == Exit.FAILED
    assert [r.kind for r in driver.reports()] == [ReportKind.GPU_UNHEALTHY, ReportKind.WORKER_LEFT]


@pytest.mark.full
def test_hanging_driver_does_not_stop_training(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path, nodes=1, steps=12, **playing("hangs"))
    nodes.driver.forks = False
    nodes.run("--pause", "1")
    assert nodes.counts(ReportKind.GPU_UNHEALTHY, ReportKind.WORKER_LEFT) == [0, 1]

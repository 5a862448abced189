"""The monitor of GPUs: what a node shares, what node 0 publishes, and queries that hang."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest
from holdfast_worker.protocol.gpu_health import GpuFault, GpuReading, NodeGpus
from holdfast_worker.run_dir import RunDir
from holdfast_worker.watchdog.gpu_monitor import HANGS_S, PUBLISH_S, GpuMonitor
from worker.support.run_driver import wait_until

AT = "2026-11-27T04:00:00.000000Z"
HEALTHY = [GpuReading(gpu=0, temperature_c=60), GpuReading(gpu=1, temperature_c=61)]


class Gpus:
    """GPUs that a test controls: each reading waits until it is asked for."""

    def __init__(self) -> None:
        self.querying: tuple[int, float] | None = None
        self.gpus = HEALTHY
        self.asked = threading.Semaphore(1)
        self.readings = 0

    def read(self) -> list[GpuReading]:
        self.readings += 1
        return self.gpus

    def wait(self, timeout_s: float) -> None:
        self.asked.acquire()


class Monitored:
    """A monitor with its GPUs and clock."""

    def __init__(self, path: Path, node: int) -> None:
        self.now_s = 0.0
        self.gpus = Gpus()
        self.gpus.asked.acquire()
        self.run_dir = RunDir(path)
        self.monitor = GpuMonitor(
            node, self.run_dir, f"gpu-{node}", lambda: self.gpus, lambda: self.now_s
        )
        self.monitor.start()
        wait_until(lambda: self.gpus.readings == 1)
        self.shared = self._next()

    def _next(self) -> NodeGpus | None:
        found: list[NodeGpus] = []
        wait_until(lambda: bool(self._published) if self.monitor._node == 0 else self._take(found))
        return found[0] if found else None

    def _take(self, found: list[NodeGpus]) -> bool:
        if new := self.monitor.share():
            found.append(new)
        return bool(found)

    @property
    def _published(self) -> list[NodeGpus]:
        self.monitor.share()
        return self.published

    @property
    def published(self) -> list[NodeGpus]:
        return [NodeGpus.parse(each) for each in json.loads(self.run_dir.read_gpus() or "[]")]

    def read_again(self, *gpus: GpuReading) -> None:
        """Have the thread read the GPUs once more."""
        self.gpus.gpus, before = list(gpus), self.gpus.readings
        self.gpus.asked.release()
        wait_until(lambda: self.gpus.readings == before + 1)


def test_node_shares_each_reading_once(tmp_path: Path) -> None:
    node = Monitored(tmp_path, 3)
    assert node.shared is not None
    assert (node.shared.node, node.shared.host, node.shared.gpus) == (3, "gpu-3", HEALTHY)
    assert node.monitor.share() is None
    assert node.published == []


def test_node_0_publishes_the_readings_of_all_nodes(tmp_path: Path) -> None:
    leader = Monitored(tmp_path, 0)
    leader.monitor.add(2, NodeGpus(2, "gpu-2", AT, HEALTHY))
    leader.monitor.add(1, None)
    leader.monitor.share()
    assert [each.node for each in leader.published] == [0]
    leader.now_s = PUBLISH_S
    leader.monitor.share()
    assert [(each.node, each.host) for each in leader.published] == [(0, "gpu-0"), (2, "gpu-2")]


def test_faults_are_published_before_the_interval(tmp_path: Path) -> None:
    leader = Monitored(tmp_path, 0)
    broken = HEALTHY[1].with_fault(GpuFault.OFF_BUS)
    leader.read_again(HEALTHY[0], broken)
    wait_until(lambda: leader._published[0].gpus == [HEALTHY[0], broken])


def test_last_readings_are_published_at_once(tmp_path: Path) -> None:
    leader = Monitored(tmp_path, 0)
    leader.monitor.add(1, NodeGpus(1, "gpu-1", AT, HEALTHY))
    leader.monitor.publish(is_last=True)
    assert [each.node for each in leader.published] == [0, 1]


def test_query_that_hangs_blames_its_gpu(tmp_path: Path) -> None:
    node = Monitored(tmp_path, 1)
    node.gpus.querying = 1, 5.0
    node.now_s = 4.0 + HANGS_S
    assert node.monitor.share() is None
    node.now_s = 5.0 + HANGS_S
    found = node.monitor.share()
    assert found is not None
    assert [gpu.faults for gpu in found.gpus] == [(), (GpuFault.NOT_RESPONDING,)]
    assert node.monitor.share() is None


@pytest.mark.parametrize("error", [None, OSError("no device")])
def test_node_without_gpus_shares_nothing(tmp_path: Path, error: OSError | None) -> None:
    done = threading.Event()

    def open_source() -> None:
        done.set()
        if error:
            raise error

    monitor = GpuMonitor(1, RunDir(tmp_path), "gpu-1", open_source)
    monitor.start()
    assert done.wait(60)
    assert monitor.share() is None

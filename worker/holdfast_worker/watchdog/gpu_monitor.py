"""Monitor of the GPUs of this node, and on node 0 of those of all nodes.

A query of a broken GPU may hang for good. The thread is therefore a daemon, and no other thread waits for it. Standard
library only, and nothing at all happens on a node without GPUs.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Final, Protocol

from holdfast_worker.clock import now, to_iso
from holdfast_worker.console import log_info
from holdfast_worker.protocol.gpu_health import GpuFault, GpuReading, NodeGpus
from holdfast_worker.protocol.reports import Json
from holdfast_worker.run_dir import RunDir

INTERVAL_S: Final = 15.0
"""Interval of readings, in which an Xid error is read at once. A lower value adds traffic; a higher value finds heat later."""
HANGS_S: Final = 60.0
"""Time of a query after which the GPU counts as not responding. A lower value blames a busy driver; a higher value blames late."""
PUBLISH_S: Final = 5.0
"""Interval at which node 0 writes the readings of all nodes. A lower value writes more; a higher value delays reports."""


class GpuSource(Protocol):
    """The GPUs of a node, as `Nvml` reads them."""

    querying: tuple[int, float] | None

    def read(self) -> Sequence[GpuReading]:
        """The current readings."""
        ...

    def wait(self, timeout_s: float) -> None:
        """Wait for an error, or until the timeout."""
        ...


class GpuMonitor:
    """The newest readings of this node, and on node 0 those of all nodes. Thread-safe."""

    def __init__(
        self,
        node: int,
        run_dir: RunDir,
        host: str = "",
        open_source: Callable[[], GpuSource | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`open_source` may take long, and returns None without GPUs."""
        self._node, self._host, self._run_dir = node, host, run_dir
        self._open_source, self._clock = open_source, clock
        self._lock = threading.Lock()
        self._source: GpuSource | None = None
        self._nodes: dict[int, NodeGpus] = {}
        self._is_unsent = False
        self._published_s = float("-inf")
        self._is_unpublished = False

    def start(self) -> None:
        """Start to read, without waiting for the first reading."""
        threading.Thread(target=self._run, name="holdfast-gpus", daemon=True).start()

    def share(self) -> NodeGpus | None:
        """The readings for node 0, unless they were returned before; node 0 publishes them itself."""
        self._check_hanging()
        if not self._node:
            self.publish()
            return None
        with self._lock:
            is_unsent, self._is_unsent = self._is_unsent, False
            return self._nodes.get(self._node) if is_unsent else None

    def add(self, node: int, found: NodeGpus | None) -> None:
        """Add the readings that another node sent."""
        if found is not None:
            with self._lock:
                self._nodes[node] = replace(found, node=node)
                self._is_unpublished = True

    def publish(self, *, is_last: bool = False) -> None:
        """Write the readings of all nodes for rank 0, which reports them, if they are due.

        `is_last`: the ranks have ended, so that all readings are due.
        """
        now_s = self._clock()
        with self._lock:
            if not self._is_unpublished or (now_s - self._published_s < PUBLISH_S and not is_last):
                return
            self._published_s, self._is_unpublished = now_s, False
            nodes: list[Json] = [self._nodes[node].dump() for node in sorted(self._nodes)]
        with suppress(OSError):  # A full disk is reported elsewhere.
            self._run_dir.write_gpus(json.dumps(nodes, separators=(",", ":")))

    def _run(self) -> None:
        try:
            source = self._open_source()
            while source is not None:
                self._source = source
                self._set(source.read())
                source.wait(INTERVAL_S)
        except (OSError, ValueError) as error:
            log_info(f"the GPUs of this node are not read any more: {error}")

    def _set(self, gpus: Sequence[GpuReading]) -> None:
        with self._lock:
            before = self._nodes.get(self._node)
            self._nodes[self._node] = NodeGpus(self._node, self._host, to_iso(now()), gpus)
            self._is_unsent = self._is_unpublished = True
            known = {(gpu.gpu, gpu.faults) for gpu in before.gpus} if before else set()
            if any(gpu.faults and (gpu.gpu, gpu.faults) not in known for gpu in gpus):
                self._published_s = float("-inf")  # A new fault is published at once.
        for gpu in gpus:
            if gpu.faults and (gpu.gpu, gpu.faults) not in known:
                log_info(f"GPU {gpu.gpu} of {self._host} is not healthy: {gpu.detail}")

    def _check_hanging(self) -> None:
        """Blame the GPU whose query does not return."""
        querying = self._source.querying if self._source else None
        if querying is None or self._clock() - querying[1] < HANGS_S:
            return
        with self._lock:
            known = self._nodes.get(self._node)
            gpus = list(known.gpus) if known else []
        found = [gpu for gpu in gpus if gpu.gpu == querying[0]] or [GpuReading(gpu=querying[0])]
        if GpuFault.NOT_RESPONDING not in found[0].faults:
            others = [gpu for gpu in gpus if gpu.gpu != querying[0]]
            blamed = found[0].with_fault(GpuFault.NOT_RESPONDING)
            self._set(sorted([*others, blamed], key=lambda gpu: gpu.gpu))

"""Reports of the GPUs of all nodes.

Rank 0 writes them while it runs, and the wrapper of node 0 after the ranks have ended.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from holdfast_worker.protocol.gpu_health import GpuReading, NodeGpus
from holdfast_worker.run_dir import RunDir
from holdfast_worker.telemetry.reporter import Reporter

POLL_S: Final = 2.0
"""Interval at which rank 0 looks for new readings. A lower value reads files more often; a higher value reports faults later."""
REPORT_S: Final = 30.0
"""Interval of reports of up to `GPUS_PER_REPORT` GPUs; with more it grows by their number, so that the reports per hour are bounded.
A lower value enlarges the spool; a higher value shows older values."""
GPUS_PER_REPORT: Final = 64
"""GPUs of one report. A lower value adds reports; a higher value may exceed the size of a report."""


class GpuReports:
    """Reports readings that are due, and each fault once."""

    def __init__(
        self, run_dir: RunDir, reports: Reporter, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._run_dir, self._reports, self._clock = run_dir, reports, clock
        self._read_text = ""
        self._due_s = float("-inf")

    def start(self) -> None:
        """Report in a thread, so that also faults are reported for which the ranks hang."""
        threading.Thread(target=self._run, name="holdfast-gpu-reports", daemon=True).start()

    def report(self) -> None:
        """Report new faults, and the readings of all GPUs if they are due."""
        text = self._run_dir.read_gpus()
        if not text or text == self._read_text:
            return
        self._read_text = text
        nodes = _parse(text)
        self._report_faults(nodes)
        if self._clock() >= self._due_s:
            self._report_readings(nodes)

    def report_last(self) -> None:
        """Report faults that were found too late for rank 0."""
        if text := self._run_dir.read_gpus():
            self._report_faults(_parse(text))

    def _run(self) -> None:
        while True:
            with suppress(OSError):
                self.report()
            time.sleep(POLL_S)

    def _report_readings(self, nodes: Sequence[NodeGpus]) -> None:
        count = sum(len(each.gpus) for each in nodes)
        self._due_s = self._clock() + REPORT_S * max(1.0, count / GPUS_PER_REPORT)
        for part in _parts(nodes):
            self._reports.gpus_read(part)

    def _report_faults(self, nodes: Sequence[NodeGpus]) -> None:
        known = self._run_dir.reported_gpu_faults()
        new = list(_new_faults(nodes, known))
        for each, gpu in new:
            self._reports.gpu_unhealthy(each, gpu)
        if new:
            found = {_fault_key(each.host, gpu, fault) for each, gpu in new for fault in gpu.faults}
            self._run_dir.record_gpu_faults(known | found)


def _new_faults(
    nodes: Sequence[NodeGpus], known: frozenset[str]
) -> Iterator[tuple[NodeGpus, GpuReading]]:
    for each in nodes:
        for gpu in each.gpus:
            if any(_fault_key(each.host, gpu, fault) not in known for fault in gpu.faults):
                yield each, gpu


def _fault_key(host: str, gpu: GpuReading, fault: str) -> str:
    return json.dumps([host, gpu.gpu, fault])


def _parts(nodes: Sequence[NodeGpus]) -> Iterator[list[NodeGpus]]:
    """Groups of whole nodes, each of few enough GPUs for a report."""
    part, count = list[NodeGpus](), 0
    for each in nodes:
        if part and count + len(each.gpus) > GPUS_PER_REPORT:
            yield part
            part, count = [], 0
        part.append(each)
        count += len(each.gpus)
    if part:
        yield part


def _parse(text: str) -> list[NodeGpus]:
    try:
        return [NodeGpus.parse(each) for each in json.loads(text)]
    except (ValueError, TypeError):
        return []

"""Reports of GPUs: readings at an interval, and each fault once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from holdfast_worker.protocol.gpu_health import GpuFault, GpuReading, NodeGpus
from holdfast_worker.protocol.reports import Report, ReportKind
from holdfast_worker.run_dir import RunDir
from holdfast_worker.telemetry.gpu_reports import GPUS_PER_REPORT, REPORT_S, GpuReports
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.telemetry.spool import Spool, read_spool, spool_file

AT = "2026-11-27T04:00:00.000000Z"


class Reports:
    """The reports of a run whose readings a test writes."""

    def __init__(self, path: Path) -> None:
        self.run_dir = RunDir(path / "run")
        self.run_dir.path.mkdir(exist_ok=True)
        self._spool = path / "spool"
        self.now_s = 0.0
        reporter = Reporter(Spool(self._spool, 1))
        self.gpus = GpuReports(self.run_dir, reporter, lambda: self.now_s)

    def write(self, *nodes: NodeGpus) -> None:
        self.run_dir.write_gpus(json.dumps([node.dump() for node in nodes]))

    def read(self, kind: ReportKind) -> list[Report]:
        found = (report for report, _ in read_spool(spool_file(self._spool, 1)))
        return [report for report in found if report.kind == kind]

    @property
    def faults(self) -> list[object]:
        return [
            (r.body["host"], r.body["gpu"], r.body["faults"])
            for r in self.read(ReportKind.GPU_UNHEALTHY)
        ]


@pytest.fixture
def reports(tmp_path: Path) -> Reports:
    return Reports(tmp_path)


def node(*faults: GpuFault, number: int = 0, temperature_c: int = 60, gpus: int = 2) -> NodeGpus:
    """The readings of a node whose last GPU has faults."""
    found = [GpuReading(gpu=gpu, temperature_c=temperature_c) for gpu in range(gpus)]
    for fault in faults:
        found[-1] = found[-1].with_fault(fault)
    return NodeGpus(number, f"gpu-{number}", AT, found)


def sizes(found: Sequence[Report]) -> list[int]:
    return [len(report.body["nodes"]) for report in found]  # type: ignore[arg-type]


def test_readings_are_reported_at_an_interval(reports: Reports) -> None:
    reports.gpus.report()
    for second, temperature_c in ((0, 60), (5, 61), (REPORT_S, 62)):
        reports.now_s = second
        reports.write(node(temperature_c=temperature_c))
        reports.gpus.report()
    found = reports.read(ReportKind.GPUS_READ)
    assert sizes(found) == [1, 1]
    assert NodeGpus.parse(found[1].body["nodes"][0]) == node(temperature_c=62)  # type: ignore[index]


def test_unchanged_readings_are_not_repeated(reports: Reports) -> None:
    reports.write(node())
    reports.gpus.report()
    reports.now_s = REPORT_S
    reports.gpus.report()
    assert sizes(reports.read(ReportKind.GPUS_READ)) == [1]


def test_readings_of_many_gpus_are_several_rarer_reports(reports: Reports) -> None:
    many = [node(number=number, gpus=GPUS_PER_REPORT // 4) for number in range(10)]
    reports.write(*many)
    reports.gpus.report()
    assert sizes(reports.read(ReportKind.GPUS_READ)) == [4, 4, 2]
    reports.now_s = REPORT_S * 2
    reports.write(*many, node(number=10))
    reports.gpus.report()
    assert sizes(reports.read(ReportKind.GPUS_READ)) == [4, 4, 2]


def test_each_fault_is_reported_once_also_by_other_processes(
    reports: Reports, tmp_path: Path
) -> None:
    for _ in range(2):
        reports.write(node(GpuFault.NVLINK))
        reports.gpus.report()
    reports.write(node(GpuFault.NVLINK, GpuFault.OFF_BUS))
    wrapper = Reports(tmp_path)
    wrapper.gpus.report_last()
    wrapper.gpus.report_last()
    assert wrapper.faults == [
        ("gpu-0", 1, ["nvlink"]),
        ("gpu-0", 1, ["nvlink", "off_bus"]),
    ]


def test_replaced_node_has_faults_of_its_own(reports: Reports) -> None:
    reports.write(node(GpuFault.NVLINK))
    reports.gpus.report()
    reports.write(NodeGpus(0, "gpu-7", AT, node(GpuFault.NVLINK).gpus))
    reports.gpus.report()
    assert [host for host, *_ in reports.faults] == ["gpu-0", "gpu-7"]  # type: ignore[misc]


@pytest.mark.parametrize("text", ["", "{", "7", '[{"node": 1}]'])
def test_unreadable_readings_are_no_reports(reports: Reports, text: str) -> None:
    reports.run_dir.write_gpus(text)
    reports.gpus.report()
    reports.gpus.report_last()
    assert reports.read(ReportKind.GPUS_READ) == reports.faults == []

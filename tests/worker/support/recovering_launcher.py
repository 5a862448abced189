"""A launcher that recovers a job itself, on new machines with an unchanged environment."""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

from holdfast_worker.protocol.reports import Report, ReportKind
from holdfast_worker.telemetry.spool import read_spool, spool_file
from worker.support.run_driver import RunDriver

NUMBERED = ("HOLDFAST_ATTEMPT", "HOLDFAST_EPOCH", "HOLDFAST_SPOOL", "HOLDFAST_RUN_DIR")
WATCHED = """
import sys
from holdfast_worker.node.launch import launch
from holdfast_worker.preemption.metadata_service import MetadataService

sys.exit(launch(sys.argv[3:], [int(sys.argv[2])], MetadataService(sys.argv[1])))
"""
"""The wrapper, with a replaced address of the metadata service."""


@dataclass
class RecoveringLauncher(RunDriver):
    """A job, and one node of each of its placements."""

    node: int = 0

    def environment(self) -> dict[str, str]:
        """Environment of every placement of the job, as SkyPilot sets it."""
        same = {k: v for k, v in super().environment().items() if k not in NUMBERED}
        sky = {
            "HOME": str(self.home),
            "SKYPILOT_INTERNAL_JOB_ID": "1",
            "SKYPILOT_MANAGED_JOB_ID": "7",
            "SKYPILOT_CLUSTER_INFO": json.dumps({"cluster_name": "lesson-7", "cloud": "None"}),
            "SKYPILOT_NODE_RANK": str(self.node),
        }
        return {**same, **sky, **self.extra}

    @property
    def home(self) -> Path:
        """Home directory of the current node."""
        return self.path / f"vm-{self.attempt}-{self.node}"

    @property
    def folder(self) -> Path:
        """The placement's files in the home directory."""
        return self.home / ".holdfast" / "lesson" / "1"

    @property
    def run_dir(self) -> Path:
        """Run directory of the current node."""
        return self.folder / f"node-{self.node}"

    def reports(self, kind: ReportKind | None = None) -> list[Report]:
        """Reports of the current node, optionally of one kind."""
        reported = (report for report, _ in read_spool(spool_file(self.folder / "spool", 0)))
        return [report for report in reported if kind in (None, report.kind)]

    def start_with_metadata(self, metadata: str, ranks: int, *args: str) -> subprocess.Popen[str]:
        """Start the next placement on a machine with a metadata service at `metadata`."""
        return self.start_python(WATCHED, metadata, str(ranks), *args)

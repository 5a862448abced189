"""A job whose launcher recovers it by itself: other machines each time, and always the same environment."""

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
"""The wrapper, with another address for what a cloud has to say."""


@dataclass
class RecoveringLauncher(RunDriver):
    """The job, and one node of each of its placements."""

    node: int = 0

    def environment(self) -> dict[str, str]:
        """What SkyPilot gives to every placement of the job."""
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
        """The home directory of the node that is in use."""
        return self.path / f"vm-{self.attempt}-{self.node}"

    @property
    def folder(self) -> Path:
        """What the placement keeps there."""
        return self.home / ".holdfast" / "lesson" / "1"

    @property
    def run_dir(self) -> Path:
        """The run directory of the node that is in use."""
        return self.folder / f"node-{self.node}"

    def reports(self, kind: ReportKind | None = None) -> list[Report]:
        """What was said on the machines that are in use; of one kind, if given."""
        reported = (report for report, _ in read_spool(spool_file(self.folder / "spool", 0)))
        return [report for report in reported if kind in (None, report.kind)]

    def start_watched(self, metadata: str, ranks: int, *args: str) -> subprocess.Popen[str]:
        """The next placement, on machines of a cloud that answers at `metadata`."""
        return self.start_python(WATCHED, metadata, str(ranks), *args)

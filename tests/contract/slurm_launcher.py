"""The world of a real Slurm, and the script that its programs are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contract.launcher_backends import FAIR, SCRIPTS, ProgramKind, eventually
from holdfast.clock import SystemClock
from holdfast.domain.jobs.observation import Observation
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.launchers.slurm import SlurmConfig, SlurmLauncher, Transport, batch_job, local
from holdfast.launchers.slurm.batch_job import ClusterPaths
from holdfast.packaging.wheel import own_wheel
from holdfast.ports import Launch
from local_slurm import SlurmCluster
from local_slurm.handle import ROOT
from support.skypilot.launcher import do

PYTHON = ROOT / ".venv" / "bin" / "python"
PATIENCE_S = 120.0


@dataclass
class SlurmBackend:
    """A cluster whose jobs are those of one test."""

    cluster: SlurmCluster
    home: Path
    """A folder that all nodes share."""
    kind: ProgramKind = ProgramKind.LASTS
    climate: MarketParameters = FAIR
    transport: Transport | None = None
    """How the login node is reached; None: from this machine."""
    launcher: SlurmLauncher = field(init=False)
    taken: int = 0
    """Placements that the weather has taken."""

    def __post_init__(self) -> None:
        self.launcher = self.another()

    def another(self, worker: str = "", restart_s: float = 0) -> SlurmLauncher:
        """The launcher of another service over the same cluster; with a name for its worker where it is of another version."""
        wheel = own_wheel(self.home / "wheels")
        place = ClusterPaths(
            root=str(self.home),
            worker=str(self.home / "workers" / (worker or batch_job.worker_digest(wheel))),
            python=str(PYTHON),
            offline="",
            micros_per_node_hour=1_000_000,
            cluster="stand",
        )
        terms = SlurmConfig(
            transport=self.transport or local(self.cluster.programs),
            paths=place,
            worker=lambda: batch_job.pack_worker(wheel),
            restart_s=restart_s,
        )
        return SlurmLauncher(terms, SystemClock())

    def launch(self, key: str, *, nodes: int = 1, max_failures: int = 1) -> Launch:
        count = f"[ $SKYPILOT_NODE_RANK = 0 ] && echo $HOLDFAST_ATTEMPT >> {self.home}/{key}.runs"
        run = f"{count}\n{SCRIPTS[self.kind]}\n"
        options = {"begin": "now+1hour"} if self.climate.provision_s > 1000 else {}
        return self.order(key, run, options, nodes=nodes, max_failures=max_failures)

    def order(
        self,
        key: str,
        run: str,
        options: Mapping[str, Any] = {},
        *,
        nodes: int = 1,
        max_failures: int = 1,
        **task: Any,
    ) -> Launch:
        """An order for a script."""
        words = {"sbatch_options": {"mem": "100M", **options}}
        return Launch(
            key=key,
            job_id=key.rpartition("-")[0],
            first_attempt=1,
            task={"run": run, "num_nodes": nodes, "config": {"slurm": words}, **task},
            max_failures=max_failures,
        )

    def runs(self, key: str) -> int:
        file = self.home / f"{key}.runs"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def until(self, key: str, met: Any) -> Observation:
        def look() -> Observation | None:
            seen = do(self.launcher.observe(key))
            if self.climate.mtbf_s and seen.placements > self.taken:
                self.taken = seen.placements
                self.cluster.run("scontrol", "requeue", self.job(key))
            return seen if met(seen) else None

        seen = eventually(look, PATIENCE_S)
        assert seen is not None
        return seen

    def job(self, key: str) -> str:
        """The number of the newest Slurm job of a launch."""
        facts = sorted((self.folder(key) / "facts").glob("submitted.*"))
        return facts[-1].read_text().strip().removeprefix("job=")

    def folder(self, key: str) -> Path:
        """Where a launch keeps its books."""
        return self.home / "launches" / key

    def log(self, key: str, attempt: int = 1, node: int = 0) -> str:
        """The output of a node so far, without Holdfast's lines."""
        path = self.folder(key) / "attempts" / str(attempt) / f"node-{node}" / "node.log"
        return path.read_bytes().decode() if path.exists() else ""

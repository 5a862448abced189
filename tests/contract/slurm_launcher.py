"""The contract backend of a real Slurm, and the script of its programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from contract.launcher_backends import NO_PREEMPTIONS, SCRIPTS, ProgramKind, eventually
from holdfast.clock import SystemClock
from holdfast.domain.jobs.observation import Observation
from holdfast.domain.pricing.slurm_prices import SlurmPrices
from holdfast.domain.simulation.spot_market import MarketParameters
from holdfast.errors import LauncherUnreachable
from holdfast.launchers.slurm import SlurmConfig, SlurmLauncher, Transport, batch_job, local
from holdfast.launchers.slurm.batch_job import ClusterPaths
from holdfast.packaging.wheel import own_wheel
from holdfast.ports import Launch
from local_slurm import SlurmCluster
from local_slurm.handle import ROOT
from support.skypilot.launcher import do

PYTHON = ROOT / ".venv" / "bin" / "python"
PATIENCE_S = 240.0
"""Longest wait for Slurm on a busy machine.

Longer than the notices of drills: a node that ends only with its notice is then seen, with its cause.
"""


@dataclass
class SlurmBackend:
    """A cluster that runs the jobs of one test only."""

    cluster: SlurmCluster
    home: Path
    """A folder that all nodes share."""
    kind: ProgramKind = ProgramKind.RUNS
    market: MarketParameters = NO_PREEMPTIONS
    transport: Transport | None = None
    """Transport to the login node; None for commands on this machine."""
    launcher: SlurmLauncher = field(init=False)
    prices: str = ""
    """Prices of partitions, as in the settings."""
    preempted: int = 0
    """Number of placements that were preempted."""

    def __post_init__(self) -> None:
        self.launcher = self.second_launcher()

    def second_launcher(self, worker: str = "", restart_s: float = 0) -> SlurmLauncher:
        """The launcher of a second service on the cluster; `worker` names a different version."""
        wheel = own_wheel(self.home / "wheels")
        paths = ClusterPaths(
            root=str(self.home),
            worker=str(self.home / "workers" / (worker or batch_job.worker_digest(wheel))),
            python=str(PYTHON),
            offline="",
            prices=SlurmPrices.parse(self.prices, 1_000_000),
            cluster="stand",
        )
        config = SlurmConfig(
            transport=self.transport or local(self.cluster.programs),
            paths=paths,
            worker=lambda: batch_job.pack_worker(wheel),
            restart_s=restart_s,
        )
        return SlurmLauncher(config, SystemClock())

    def launch(self, key: str, *, nodes: int = 1, max_failures: int = 1) -> Launch:
        count = f"[ $SKYPILOT_NODE_RANK = 0 ] && echo $HOLDFAST_ATTEMPT >> {self.home}/{key}.runs"
        run = f"{count}\n{SCRIPTS[self.kind]}\n"
        options = {"begin": "now+1hour"} if self.market.provision_s > 1000 else {}
        return self.script_launch(key, run, options, nodes=nodes, max_failures=max_failures)

    def script_launch(
        self,
        key: str,
        run: str,
        options: Mapping[str, Any] = {},
        *,
        nodes: int = 1,
        max_failures: int = 1,
        **task: Any,
    ) -> Launch:
        """A launch of a script."""
        slurm_options = {"sbatch_options": {"mem": "100M", **options}}
        return Launch(
            key=key,
            job_id=key.rpartition("-")[0],
            first_attempt=1,
            task={"run": run, "num_nodes": nodes, "config": {"slurm": slurm_options}, **task},
            max_failures=max_failures,
        )

    def runs(self, key: str) -> int:
        file = self.home / f"{key}.runs"
        return len(file.read_text().splitlines()) if file.exists() else 0

    def until(self, key: str, met: Any) -> Observation:
        def poll() -> Observation | None:
            try:
                seen = do(self.launcher.observe(key))
            except LauncherUnreachable:
                return None  # On a busy machine, Slurm answers late.
            if self.market.mtbf_s and seen.placements > self.preempted:
                self.preempted = seen.placements
                self.cluster.run("scontrol", "requeue", self.job(key))
            return seen if met(seen) else None

        try:
            seen = eventually(poll, PATIENCE_S)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self._state(key)}") from error
        assert seen is not None
        return seen

    def _state(self, key: str) -> str:
        """What a launch has written, and what Slurm and the nodes run, for a failed test."""
        files = [file for file in sorted(self.folder(key).rglob("*")) if file.suffix != ".tar"]
        texts = [f"{each}: {each.read_bytes()[-2000:]!r}" for each in files if each.is_file()]
        commands = (("scontrol", "-d", "show", "job"), ("scontrol", "show", "step"), ("ps", "axjf"))
        return "\n".join([*texts, *(self.cluster.run(*words) for words in commands)])

    def job(self, key: str) -> str:
        """Number of the newest Slurm job of a launch."""
        facts = sorted((self.folder(key) / "facts").glob("submitted.*"))
        return facts[-1].read_text().strip().removeprefix("job=")

    def folder(self, key: str) -> Path:
        """Directory of a launch's state files."""
        return self.home / "launches" / key

    def log(self, key: str, attempt: int = 1, node: int = 0) -> str:
        """Output of a node so far, without Holdfast's lines."""
        path = self.folder(key) / "attempts" / str(attempt) / f"node-{node}" / "node.log"
        return path.read_bytes().decode() if path.exists() else ""

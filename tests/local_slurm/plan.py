"""Size and timeouts of a cluster, as Slurm's configuration files."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NET = "10.77.0"
"""Of addresses that exist in the namespaces of a stand alone; every stand has the same."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Figures of a cluster. Those of time are short, so that tests need not wait as people do."""

    nodes: int = 4
    cpus: int = 4
    """That each node claims to have."""
    memory_mb: int = 4000
    gpus: int = 4
    """That each node claims to have: device files without a driver."""
    down_after_s: int = 6
    """Until a silent node is taken for dead (`SlurmdTimeout`). Half of it is what Slurm waits between two pings."""
    batch_start_s: int = 60
    """Until a job whose script no node has begun is taken for lost, and queued again. Slurm's own ten are too few on a busy machine."""
    requeue_s: int = 5
    """What a requeued job waits at least, as its old credentials have to run out (`cred_expire`). Less, and Slurm takes 120."""
    grace_s: int = 10
    """Between the notice and the end of what `urgent` takes from `spot`."""
    kill_s: int = 4
    """Between SIGTERM and SIGKILL (`KillWait`)."""

    @property
    def names(self) -> list[str]:
        """The compute nodes."""
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    def address(self, name: str) -> str:
        """Where a node is reached by the others."""
        return f"{NET}.{254 if name == 'login' else name.removeprefix('n')}"

    def card(self, name: str) -> str:
        """The address of a compute node's network card. A boot does not change it: the others remember it for a while."""
        return f"02:00:0a:4d:00:{int(name.removeprefix('n')):02x}"

    def write(self, etc: Path) -> None:
        """Everything that the nodes find in `/etc`, below a folder."""
        (etc / "slurm").mkdir(parents=True)
        names = ["login", *self.names]
        hosts = ["127.0.0.1 localhost", *(f"{self.address(name)} {name}" for name in names)]
        (etc / "hosts").write_text("\n".join(hosts) + "\n")
        key = etc / "munge.key"
        key.touch(mode=0o400)
        key.write_bytes(secrets.token_bytes(128))
        (etc / "slurm" / "slurm.conf").write_text("\n".join(self._slurm(etc.parent)) + "\n")
        files = f"Name=gpu File=/run/fakegpu/[0-{self.gpus - 1}]\n"
        (etc / "slurm" / "gres.conf").write_text(files if self.gpus else "")

    def _slurm(self, state: Path) -> Iterator[str]:
        yield "ClusterName=stand"
        yield f"SlurmctldHost=login({self.address('login')})"
        yield "SlurmUser=root"
        yield "AuthType=auth/munge"
        yield f"AuthInfo=cred_expire={self.requeue_s}"
        yield f"StateSaveLocation={state}/spool"
        yield "SlurmdSpoolDir=/var/spool/slurmd-%n"
        yield "SlurmctldPidFile=/run/slurmctld.pid"
        yield "SlurmdPidFile=/run/slurmd.pid"
        yield f"SlurmctldLogFile={state}/log/slurmctld"
        yield f"SlurmdLogFile={state}/log/%n.slurmd"
        yield "ProctrackType=proctrack/linuxproc"
        yield "TaskPlugin=task/none"
        yield "JobAcctGatherType=jobacct_gather/none"
        yield "JobCompType=jobcomp/filetxt"
        yield f"JobCompLoc={state}/log/jobcomp"
        yield "MailProg=/bin/true"
        yield "MpiDefault=none"
        yield "SelectType=select/cons_tres"
        yield "SelectTypeParameters=CR_Core_Memory"
        yield f"DefMemPerCPU={self.memory_mb // self.cpus}"
        yield "SlurmdParameters=config_overrides"
        yield "ReturnToService=2"
        yield f"SlurmdTimeout={self.down_after_s}"
        yield "TCPTimeout=2"
        yield f"BatchStartTimeout={self.batch_start_s}"
        yield f"KillWait={self.kill_s}"
        yield "SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1"
        yield "PreemptType=preempt/partition_prio"
        yield "PreemptMode=REQUEUE"
        gres = f" Gres=gpu:{self.gpus}" if self.gpus else ""
        if gres:
            yield "GresTypes=gpu"
        for name in self.names:
            size = f"CPUs={self.cpus} RealMemory={self.memory_mb}{gres}"
            yield f"NodeName={name} NodeAddr={self.address(name)} {size} State=UNKNOWN"
        yield from self._partitions()

    def _partitions(self) -> Iterator[str]:
        every, grace = (
            "Nodes=ALL MaxTime=01:00:00 DefaultTime=00:10:00",
            f"GraceTime={self.grace_s}",
        )
        yield f"PartitionName=main {every} Default=YES PriorityTier=10 PreemptMode=OFF"
        yield f"PartitionName=spot {every} PriorityTier=1 PreemptMode=REQUEUE {grace}"
        # As on clusters that give nothing back: what is taken there is over.
        yield f"PartitionName=lent {every} PriorityTier=1 PreemptMode=CANCEL {grace}"
        yield f"PartitionName=urgent {every} PriorityTier=20 PreemptMode=OFF"

"""Size and timeouts of a cluster, as Slurm's configuration files."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

NET = "10.77.0"
"""Network prefix; the addresses exist only in the namespaces of a cluster."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan:
    """Size and timeouts of a cluster; the timeouts are short, for tests."""

    nodes: int = 4
    cpus: int = 4
    """CPUs that each node reports."""
    memory_mb: int = 4000
    gpus: int = 4
    """GPUs that each node reports: device files without a driver."""
    down_after_s: int = 6
    """Time until a silent node counts as down (`SlurmdTimeout`). Slurm pings twice in it."""
    batch_start_s: int = 60
    """Time until an unstarted batch script is requeued; Slurm's 10 s are too few under load."""
    requeue_s: int = 10
    """Minimum wait of a requeued job (`cred_expire`); for lower values Slurm uses 120 s."""
    grace_s: int = 30
    """Time between notice and end of a job in `spot` that `urgent` preempts."""
    kill_s: int = 4
    """Time between SIGTERM and SIGKILL (`KillWait`)."""

    @property
    def names(self) -> list[str]:
        """The compute nodes."""
        return [f"n{number}" for number in range(1, self.nodes + 1)]

    def address(self, name: str) -> str:
        """Network address of a node."""
        return f"{NET}.{254 if name == 'login' else name.removeprefix('n')}"

    def card(self, name: str) -> str:
        """Hardware address of a compute node; a boot keeps it, as other nodes cache it."""
        return f"02:00:0a:4d:00:{int(name.removeprefix('n')):02x}"

    def write(self, etc: Path) -> None:
        """Write the files of `/etc` of the nodes below a folder."""
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
        # As on clusters without requeue: a preempted job ends.
        yield f"PartitionName=lent {every} PriorityTier=1 PreemptMode=CANCEL {grace}"
        yield f"PartitionName=urgent {every} PriorityTier=20 PreemptMode=OFF"

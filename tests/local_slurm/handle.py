"""The handle of the cluster for tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from local_slurm.node import KINDS, Node
from local_slurm.plan import Plan

ROOT = Path(__file__).parents[2]
NEEDED = ("slurmctld", "slurmd", "munged", "sbatch", "ip", "unshare", "nsenter", "setpriv")
PROGRAMS = ("sbatch", "squeue", "scontrol", "scancel", "sacct", "sinfo", "srun")
START_S = 240.0
"""Timeout for the start of daemons, which only a failing test reaches."""


class NotPossible(Exception):
    """This machine cannot run the cluster; the message states the reason."""


class SlurmCluster:
    """A running cluster."""

    def __init__(self, plan: Plan, state: Path) -> None:
        self.plan = plan
        self.state = state
        self.shared = state / "shared"
        """A folder that all nodes share under this path."""
        self.programs = state / "programs"
        """A folder with Slurm's commands, which run on the login node."""
        self.ssh = state / "ssh" / "ssh"
        """An ssh with the address and key of `login`; exists if sshd is installed."""
        for name in ("run", "log", "spool", "mnt", "shared", "programs"):
            (state / name).mkdir(parents=True)
        self.shared.chmod(0o1777)
        plan.write(state / "etc")
        self._nodes: dict[str, Node] = {}

    def up(self) -> None:
        """Start all nodes, and wait until Slurm lists them as available."""
        self._nodes["login"] = Node(
            "login.sh", [str(self.state), self.plan.address("login")], self._log("login")
        )
        self._wait(
            (self.state / "run" / "login.ready").exists,
            "the login node is up",
            lambda: self._nodes["login"].is_running,
        )
        for name in PROGRAMS:
            self._write_program(name)
        if self.ssh.parent.exists():
            self._write_ssh()
        for name in self.plan.names:
            self._start(name)
        self._wait(lambda: len(self.idle()) == self.plan.nodes, "all nodes are idle")

    def down(self) -> None:
        """Stop all nodes and remove their files."""
        for name in list(self._nodes):
            self._nodes.pop(name).end()

    def run(self, *arguments: str) -> str:
        """Run a command on the login node and return its output; raise if it fails."""
        answer = subprocess.run(
            self._nodes["login"].inside(*arguments),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert answer.returncode == 0, f"{arguments}: {answer.stderr}"
        return answer.stdout.strip()

    def on_login(self, *arguments: str) -> list[str]:
        """Prefix a command so that it runs on the login node."""
        return self._nodes["login"].inside(*arguments)

    @property
    def network(self) -> tuple[str, ...]:
        """Command prefix that runs a program here, but in the network of the login node."""
        return ("nsenter", "-t", str(self._nodes["login"].pid), "-n", "--")

    def on(self, name: str, *arguments: str) -> str:
        """Run a command on a compute node and return its output."""
        answer = subprocess.run(
            self._nodes[name].inside(*arguments),
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        return answer.stdout.strip()

    def cut(self, name: str) -> None:
        """Cut the power of a node: its network first, so that it sends no message, then SIGKILL."""
        subprocess.run(self._in_net("ip", "link", "del", f"v-{name}"), check=True)
        self._nodes.pop(name).end()

    def boot(self, name: str) -> None:
        """Start a node again; Slurm lists it as available some time later."""
        self._start(name)

    def new_folder(self) -> Path:
        """An empty folder that all nodes share."""
        return Path(tempfile.mkdtemp(dir=self.shared))

    def idle(self) -> set[str]:
        """Compute nodes that are idle and available."""
        result = self.run("sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%n %t")
        rows = (line.split() for line in result.splitlines())
        return {name for name, state in rows if state == "idle"}

    def settle(self) -> None:
        """Cancel all jobs and restart missing nodes, for the next test."""
        for name in self.plan.names:
            if name not in self._nodes:
                self._start(name)
        self.run("scancel", "--user=root")
        self._wait(lambda: len(self.idle()) == self.plan.nodes, "all nodes are idle again")

    def daemon_logs(self) -> str:
        """The last lines of all logs."""
        logs = sorted((self.state / "log").iterdir())
        tails = (log.read_text(errors="replace").splitlines()[-5:] for log in logs)
        return "\n".join(line for tail in tails for line in tail)

    def _start(self, name: str) -> None:
        plan = self.plan
        own = [str(self.state), name, plan.address(name), str(plan.gpus)]
        node = self._nodes[name] = Node(
            "compute.sh", [*own, str(self.shared), str(ROOT)], self._log(name)
        )
        self._wait(lambda: node.pid is not None, f"{name} has a process 1", lambda: node.is_running)
        # The network of a node exists as soon as its process 1 does.
        there = ["peer", "name", "eth0", "address", plan.card(name), "netns", str(node.pid)]
        add = ["ip", "link", "add", f"v-{name}", "type", "veth", *there]
        subprocess.run(self._in_net(*add), check=True)
        subprocess.run(
            self._in_net("ip", "link", "set", f"v-{name}", "master", "br0", "up"), check=True
        )
        self._wait(lambda: node.has_booted, f"{name} has booted", lambda: node.is_running)

    def _in_net(self, *arguments: str) -> list[str]:
        return [*self.network, *arguments]

    def _write_program(self, name: str) -> None:
        """Write a command that runs on the login node.

        Jobs inherit PATH, so that the command must not be found again on the login node.
        """
        inside = " ".join(self._nodes["login"].inside(f"/usr/bin/{name}"))
        program = self.programs / name
        program.write_text(
            f'#!/bin/bash\nexport PATH=/usr/sbin:/usr/bin:/sbin:/bin\nexec {inside} "$@"\n'
        )
        program.chmod(0o755)

    def _write_ssh(self) -> None:
        """Write an ssh that knows `login`, as if from a user's configuration.

        Its kept connections stay within the network of the cluster.
        """
        keys = self.ssh.parent
        arguments = {
            "HostName": self.plan.address("login"),
            "HostKeyAlias": "login",
            "User": "root",
            "IdentityFile": keys / "me",
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": keys / "known",
        }
        lines = ["Host login", *(f"  {name} {value}" for name, value in arguments.items())]
        (keys / "config").write_text("\n".join(lines) + "\n")
        there = " ".join(self._in_net("ssh", "-F", str(keys / "config")))
        self.ssh.write_text(f'#!/bin/bash\nexec {there} "$@"\n')
        self.ssh.chmod(0o755)

    def _log(self, name: str) -> Path:
        return self.state / "log" / f"{name}.boot"

    def _wait(
        self, true: Callable[[], bool], what: str, alive: Callable[[], bool] = lambda: True
    ) -> None:
        deadline_s, pause = time.monotonic() + START_S, threading.Event()
        while not true():
            if not alive() or time.monotonic() > deadline_s:
                raise AssertionError(f"not so: {what}\n{self.daemon_logs()}")
            pause.wait(0.05)


@contextmanager
def start_cluster(plan: Plan = Plan()) -> Iterator[SlurmCluster]:
    """A running cluster; it is removed completely at the end.

    Raises:
        NotPossible: This machine cannot run one.
    """
    _check_programs(NEEDED)
    state = Path(tempfile.mkdtemp(prefix="hfslurm-", dir="/tmp"))
    state.chmod(0o755)
    cluster = SlurmCluster(plan, state)
    try:
        cluster.up()
        yield cluster
    finally:
        cluster.down()
        shutil.rmtree(state)


def _check_programs(programs: Sequence[str]) -> None:
    """Raise with the reason if the cluster cannot run here."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    if os.geteuid() != 0:
        raise NotPossible("a Slurm of the tests' own needs root: its nodes are namespaces")
    if missing := [name for name in programs if shutil.which(name, path=path) is None]:
        raise NotPossible(
            f"Slurm is not installed (no {', '.join(missing)}); on Debian: "
            "apt-get install --no-install-recommends slurm-wlm munge iproute2"
        )
    tried = subprocess.run(
        ["unshare", *KINDS, "--fork", "mount", "-t", "tmpfs", "tmpfs", "/mnt"],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode:
        why = tried.stderr.strip().splitlines()[-1:] or ["no reason given"]
        raise NotPossible(
            f"namespaces are forbidden here, and Slurm's nodes need them ({why[0]}); "
            "in a container: docker run --privileged"
        )

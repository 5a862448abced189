"""A machine of the fake cloud: a network namespace, an overlay root, and an sshd."""

from __future__ import annotations

import shutil
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from e2e.fake_aws import namespace
from e2e.fake_aws.cgroup import Cgroup
from e2e.fake_aws.paths import AWS_ENVIRONMENT, AWS_FROM_HOSTS, HERE, METADATA, Paths

RAY_ASKS = "8.8.8.8"
"""The address whose route determines a node's own address for Ray; no packet is sent there."""

HOST_ENVIRONMENT = {
    **AWS_ENVIRONMENT,
    "AWS_ENDPOINT_URL": AWS_FROM_HOSTS,
    "RCLONE_S3_ENDPOINT": AWS_FROM_HOSTS,
    "RCLONE_S3_FORCE_PATH_STYLE": "true",
    "RCLONE_S3_UPLOAD_CUTOFF": "0",  # Over plain http: "request stream is not seekable".
}


@dataclass(frozen=True, slots=True)
class Host:
    """One machine. Every method is idempotent."""

    paths: Paths
    id: str

    def start(self, ip: str, user: str, keys: str) -> None:
        """Boot with `ip`. sshd soon listens and accepts `user` with `keys`."""
        for folder in ("upper", "work", "root"):
            (self._disk / folder).mkdir(parents=True)
        (self._disk / "keys").write_text(keys)
        self._connect(ip)
        environment = " ".join(f"{name}={value}" for name, value in HOST_ENVIRONMENT.items())
        enter = ["nsenter", f"--net=/run/netns/{self._net}", "--"]
        apart = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        words: list[str | Path] = [self.paths.golden, self._disk, self._name(ip), user]
        words += [sysconfig.get_path("purelib"), environment]
        init: list[str | Path] = ["bash", HERE / "host_init.sh", *words]
        self._cgroup.start([*enter, *apart, *init], log=self._log)

    def kill(self) -> None:
        """Kill every process, and remove the address and the disk."""
        self._cgroup.kill()
        _ip("netns", "delete", self._net)
        _ip("link", "delete", self._link)
        shutil.rmtree(self._disk, ignore_errors=True)

    def _connect(self, ip: str) -> None:
        _ip("netns", "add", self._net)
        _ip("link", "add", self._link, "type", "veth", "peer", "name", "eth0", "netns", self._net)
        _ip("link", "set", self._link, "master", namespace.BRIDGE, "up")
        inside = ("-netns", self._net)
        _ip(*inside, "link", "set", "lo", "up")
        _ip(*inside, "address", "add", f"{ip}/16", "dev", "eth0")
        _ip(*inside, "link", "set", "eth0", "up")
        for address in (METADATA, RAY_ASKS):
            _ip(*inside, "route", "add", f"{address}/32", "dev", "eth0", "src", ip)

    @property
    def _cgroup(self) -> Cgroup:
        return Cgroup(f"host-{self.id}")

    @property
    def _disk(self) -> Path:
        return self.paths.hosts / self.id

    @property
    def _log(self) -> Path:
        return self.paths.run / f"{self.id}.log"

    @property
    def _net(self) -> str:
        return f"sky-{self.id[-10:]}"

    @property
    def _link(self) -> str:
        return f"sky{self.id[-10:]}"  # The kernel allows 15 characters.

    @staticmethod
    def _name(ip: str) -> str:
        return f"ip-{ip.replace('.', '-')}"


def all_hosts(paths: Paths) -> list[Host]:
    """All machines with a disk: those that run, and those of killed sessions."""
    return [Host(paths, folder.name) for folder in paths.hosts.glob("*")]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=words[-2] != "delete", capture_output=True)

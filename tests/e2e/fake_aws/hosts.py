"""A machine of the fake cloud: a network namespace, an overlay root, a process tree with sshd at its head."""

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
"""Ray asks the kernel which address it would use to reach this one (no packet is sent), and takes that for its own."""

HOST_ENVIRONMENT = {
    **AWS_ENVIRONMENT,
    "AWS_ENDPOINT_URL": AWS_FROM_HOSTS,
    "RCLONE_S3_ENDPOINT": AWS_FROM_HOSTS,
    "RCLONE_S3_FORCE_PATH_STYLE": "true",
    "RCLONE_S3_UPLOAD_CUTOFF": "0",  # Over plain http: "request stream is not seekable".
}


@dataclass(frozen=True, slots=True)
class Host:
    """One machine. Every method may be repeated."""

    place: Paths
    id: str

    def start(self, ip: str, user: str, keys: str) -> None:
        """Boot with `ip`. sshd listens some tenths of a second later, and lets `user` in with `keys`."""
        for folder in ("upper", "work", "root"):
            (self._disk / folder).mkdir(parents=True)
        (self._disk / "keys").write_text(keys)
        self._plug_in(ip)
        environment = " ".join(f"{name}={value}" for name, value in HOST_ENVIRONMENT.items())
        enter = ["nsenter", f"--net=/run/netns/{self._net}", "--"]
        apart = ["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork", "--kill-child"]
        words: list[str | Path] = [self.place.golden, self._disk, self._name(ip), user]
        words += [sysconfig.get_path("purelib"), environment]
        init: list[str | Path] = ["bash", HERE / "host_init.sh", *words]
        self._pen.start([*enter, *apart, *init], log=self._log)

    def kill(self) -> None:
        """Pull the plug: every process is killed, the address is dead, the disk is gone."""
        self._pen.kill()
        _ip("netns", "delete", self._net)
        _ip("link", "delete", self._wire)
        shutil.rmtree(self._disk, ignore_errors=True)

    def _plug_in(self, ip: str) -> None:
        _ip("netns", "add", self._net)
        _ip("link", "add", self._wire, "type", "veth", "peer", "name", "eth0", "netns", self._net)
        _ip("link", "set", self._wire, "master", namespace.BRIDGE, "up")
        inside = ("-netns", self._net)
        _ip(*inside, "link", "set", "lo", "up")
        _ip(*inside, "address", "add", f"{ip}/16", "dev", "eth0")
        _ip(*inside, "link", "set", "eth0", "up")
        for address in (METADATA, RAY_ASKS):
            _ip(*inside, "route", "add", f"{address}/32", "dev", "eth0", "src", ip)

    @property
    def _pen(self) -> Cgroup:
        return Cgroup(f"host-{self.id}")

    @property
    def _disk(self) -> Path:
        return self.place.hosts / self.id

    @property
    def _log(self) -> Path:
        return self.place.run / f"{self.id}.log"

    @property
    def _net(self) -> str:
        return f"sky-{self.id[-10:]}"

    @property
    def _wire(self) -> str:
        return f"sky{self.id[-10:]}"  # The kernel allows 15 letters.

    @staticmethod
    def _name(ip: str) -> str:
        return f"ip-{ip.replace('.', '-')}"


def all_hosts(place: Paths) -> list[Host]:
    """Every machine that has a disk: all that run, and those of a session that was killed."""
    return [Host(place, folder.name) for folder in place.hosts.glob("*")]


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=words[-2] != "delete", capture_output=True)

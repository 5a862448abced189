"""Directories, addresses and environments of the fake cloud."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent
CHECKOUT: Final = HERE.parents[2]
DEFAULT_FOLDER: Final = "/var/tmp/holdfast-skycloud"

GATE: Final = "10.77.0.1"
"""The namespace's address on the bridge, which hosts use to reach it."""
METADATA: Final = "169.254.169.254"
AWS_PORT: Final = 5577
API_PORT: Final = 46690
"""Not SkyPilot's 46580: `sky api stop` kills every server of that port on the machine."""

AWS: Final = f"http://127.0.0.1:{AWS_PORT}"
AWS_FROM_HOSTS: Final = f"http://{GATE}:{AWS_PORT}"
API: Final = f"http://127.0.0.1:{API_PORT}"

MEMORY_LIMIT_GB: Final = 8
"""Memory that SkyPilot assumes: 24 GB lead to 12 jobs controllers of 160 MB, 8 GB to two."""

AWS_ENVIRONMENT: Final[Mapping[str, str]] = {
    "AWS_ACCESS_KEY_ID": "AKIAFAKEFAKEFAKEFAKE",
    "AWS_SECRET_ACCESS_KEY": "fakefakefakefakefakefakefakefakefakefake",
    "AWS_DEFAULT_REGION": "us-east-1",
}


@dataclass(frozen=True, slots=True)
class Paths:
    """The directory of all builds and running parts."""

    folder: Path

    @classmethod
    def of_this_machine(cls) -> Paths:
        """The directory that HOLDFAST_SKYCLOUD names, or the default one."""
        return cls(Path(os.environ.get("HOLDFAST_SKYCLOUD") or DEFAULT_FOLDER))

    @property
    def venv(self) -> Path:
        """SkyPilot's environment: server, controllers, command line."""
        return self.folder / "venv"

    @property
    def disk(self) -> Path:
        """A file system image: an overlay cannot be on the file system that it covers."""
        return self.folder / "hosts.img"

    @property
    def mount(self) -> Path:
        """Where `disk` is mounted."""
        return self.folder / "fs"

    @property
    def golden(self) -> Path:
        """Files of every host that this machine lacks."""
        return self.mount / "golden"

    @property
    def hosts(self) -> Path:
        """One directory for the written files of each running host."""
        return self.mount / "hosts"

    @property
    def home(self) -> Path:
        """HOME of SkyPilot's server, controllers and command line."""
        return self.folder / "home"

    @property
    def run(self) -> Path:
        """Logs, process ids and events, which a new start deletes."""
        return self.folder / "run"

    @property
    def events(self) -> Path:
        """Events of the cloud, one JSON object per line."""
        return self.run / "events.jsonl"

    def env(self) -> dict[str, str]:
        """The environment of SkyPilot's processes on this machine."""
        return {
            **AWS_ENVIRONMENT,
            "AWS_ENDPOINT_URL": AWS,
            "AWS_EC2_METADATA_DISABLED": "true",
            "HOME": str(self.home),
            "LANG": "C.UTF-8",
            "PATH": f"{self.venv}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "SKYPILOT_API_SERVER_LOCAL_PORT": str(API_PORT),
            "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
            "SKYPILOT_POD_MEMORY_GB_LIMIT": str(MEMORY_LIMIT_GB),
            "TZ": "UTC",  # SkyPilot writes naive local times to its database.
        }

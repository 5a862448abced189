"""A person's keys to clouds, made visible in the HOME of a SkyPilot server: links, never copies.

A copy would be a second secret to lose, and would be old after the next login.

The environment of a SkyPilot server: that of whoever starts it, with its own HOME, clock and port.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

FOLDERS: Final = {
    ".aws": "AWS",
    ".azure": "Azure",
    ".cloudflare": "Cloudflare R2",
    ".config/gcloud": "GCP",
    ".config/mithril": "Mithril",
    ".config/vastai": "Vast",
    ".coreweave": "CoreWeave",
    ".fluidstack": "Fluidstack",
    ".hyperbolic": "Hyperbolic",
    ".ibm": "IBM",
    ".kube": "Kubernetes",
    ".lambda_cloud": "Lambda",
    ".nebius": "Nebius",
    ".oci": "OCI",
    ".paperspace": "Paperspace",
    ".prime": "Prime Intellect",
    ".runpod": "RunPod",
    ".scp": "SCP",
    ".seeweb_cloud": "Seeweb",
    ".shadeform": "Shadeform",
    ".slurm": "Slurm",
    ".verda": "Verda",
    ".vsphere": "vSphere",
    ".yotta": "Yotta",
}
"""Where SkyPilot 0.14 looks for keys below HOME, and whose they are."""


def show_credentials(person: Path, server: Path) -> list[str]:
    """The clouds whose keys the server can see now: those of `person`, and what lies in the server's own HOME."""
    return [name for folder, name in FOLDERS.items() if _is_shown(person / folder, server / folder)]


def _is_shown(source: Path, target: Path) -> bool:
    if target.is_symlink() and (not target.exists() or not source.exists()):
        target.unlink()  # Where it led, there is nothing any more.
    if target.exists() or not source.exists():
        return target.exists()  # What somebody put there is theirs to keep.
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(source.absolute())
    return True


_KEPT_BACK: Final = (
    "HOLDFAST_",  # Our own settings, a token among them.
    "PYTHON",  # Of our environment, not of its.
    "VIRTUAL_ENV",
    "SKYPILOT_API_SERVER_",  # Would make the server believe that it is a client of another.
    "SKYPILOT_DISABLE_LOCAL_API_SERVER",
    "SKYPILOT_GLOBAL_CONFIG",
    "SKYPILOT_PROJECT_CONFIG",
    "SKYPILOT_CONFIG",
)


MEMORY_GB: Final = 8
"""What SkyPilot is told to have where there is more: 24 GB make it start 12 jobs controllers of 160 MB each, 8 GB two, which
launch 16 jobs at once and watch 400."""


def environment(home: Path, port: int, python: Path) -> Mapping[str, str]:
    """What the server is given. Keys to clouds that are variables of ours are passed on."""
    own = {key: value for key, value in os.environ.items() if not key.startswith(_KEPT_BACK)}
    has_more = psutil.virtual_memory().total > MEMORY_GB * 2**30
    return {
        **({"SKYPILOT_POD_MEMORY_GB_LIMIT": str(MEMORY_GB)} if has_more else {}),
        **own,
        "HOME": str(home),
        "PATH": f"{python.parent}:{own.get('PATH', os.defpath)}",
        "TZ": "UTC",  # SkyPilot writes naive local times into its database.
        "IS_SKYPILOT_SERVER": "true",  # Without it, the file is read as a client's.
        "SKYPILOT_API_SERVER_LOCAL_PORT": str(port),
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        "DO_NOT_TRACK": "1",
    }

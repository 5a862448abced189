"""The environment of a SkyPilot server: variables, and links to a user's credentials.

The variables are those of the caller, with the server's own HOME, clock and port. Credentials are linked rather than
copied: a copy would be a second secret to lose, and would expire with the next login.
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
"""Credential paths of SkyPilot 0.14 below HOME, with their cloud."""


def link_credentials(person: Path, server: Path) -> list[str]:
    """Link the credentials of `person`; return the clouds with credentials in the server's HOME."""
    return [name for folder, name in FOLDERS.items() if _link(person / folder, server / folder)]


def _link(source: Path, target: Path) -> bool:
    if target.is_symlink() and (not target.exists() or not source.exists()):
        target.unlink()  # A dangling link: its target no longer exists.
    if target.exists() or not source.exists():
        return target.exists()  # Files placed there by users are kept.
    target.parent.mkdir(parents=True, exist_ok=True)
    target.symlink_to(source.absolute())
    return True


_EXCLUDED_PREFIXES: Final = (
    "HOLDFAST_",  # Our own settings, including a token.
    "PYTHON",  # Settings of our Python environment.
    "VIRTUAL_ENV",
    "SKYPILOT_API_SERVER_",  # Would make the server act as a client of another server.
    "SKYPILOT_DISABLE_LOCAL_API_SERVER",
    "SKYPILOT_GLOBAL_CONFIG",
    "SKYPILOT_PROJECT_CONFIG",
    "SKYPILOT_CONFIG",
)


MEMORY_GB: Final = 8
"""Memory limit reported to SkyPilot.
With 24 GB it starts 12 jobs controllers of 160 MB each; with 8 GB two, which launch 16 jobs at once and monitor 400."""


def server_environment(home: Path, port: int, python: Path) -> Mapping[str, str]:
    """Return the server's variables. Cloud credentials in our variables are passed on."""
    own = {
        key: value for key, value in os.environ.items() if not key.startswith(_EXCLUDED_PREFIXES)
    }
    has_more = psutil.virtual_memory().total > MEMORY_GB * 2**30
    return {
        **({"SKYPILOT_POD_MEMORY_GB_LIMIT": str(MEMORY_GB)} if has_more else {}),
        **own,
        "HOME": str(home),
        "PATH": f"{python.parent}:{own.get('PATH', os.defpath)}",
        "TZ": "UTC",  # SkyPilot writes naive local times into its database.
        "IS_SKYPILOT_SERVER": "true",  # Without it, SkyPilot reads the file as a client's.
        "SKYPILOT_API_SERVER_LOCAL_PORT": str(port),
        "SKYPILOT_DISABLE_USAGE_COLLECTION": "1",
        "DO_NOT_TRACK": "1",
    }

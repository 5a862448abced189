"""A person's keys to clouds, made visible in the HOME of a SkyPilot server: links, never copies.

A copy would be a second secret to lose, and would be old after the next login.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

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

"""The installed release of Holdfast, and how to install its extras. Standard library only."""

from __future__ import annotations

import json
import re
from importlib import metadata
from typing import Final

DISTRIBUTION: Final = "holdfast-train"
"""Name of the package on a package index, where `holdfast` is a different project.
Imports and commands are `holdfast`."""
UNKNOWN: Final = "unknown"
"""The version if the package was copied and not installed.
This is so below a launch directory on Slurm."""

HEADER: Final = "Holdfast-Version"
"""Header of every response of the service: its version."""


def version() -> str:
    """The installed version, or `UNKNOWN`."""
    try:
        return metadata.version(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return UNKNOWN


def requirement(extra: str) -> str:
    """The argument of `pip install` that adds an extra to this installation, quoted for a shell.

    It names the file or the address that this version was installed from, where pip kept it (PEP 610).
    """
    try:
        installed = metadata.distribution(DISTRIBUTION)
    except metadata.PackageNotFoundError:
        return f"'{DISTRIBUTION}[{extra}]'"
    source = json.loads(installed.read_text("direct_url.json") or "{}")
    if "url" not in source:
        return f"'{DISTRIBUTION}[{extra}]=={installed.version}'"
    scheme = f"{source['vcs_info']['vcs']}+" if "vcs_info" in source else ""
    return f"'{DISTRIBUTION}[{extra}] @ {scheme}{source['url']}'"


def user_agent(program: str) -> str:
    """The `User-Agent` of a program of this version, such as `holdfast-worker/0.1.0`."""
    return f"{program}/{version()}"


def difference(service: str, client: str) -> str:
    """A line about different versions of service and client.

    Empty if they are equal or one is unknown.
    """
    if service == client or UNKNOWN in {service, client}:
        return ""
    both = f"the service is Holdfast {service}, this client is {client}"
    if _are_neighbours(service, client):
        return both
    return (
        f"{both}; only neighbouring minor versions work together: install {DISTRIBUTION} {service}"
    )


def _are_neighbours(one: str, other: str) -> bool:
    first, second = (re.match(r"(\d+)\.(\d+)", text) for text in (one, other))
    if not first or not second:
        return False
    return first[1] == second[1] and abs(int(first[2]) - int(second[2])) <= 1

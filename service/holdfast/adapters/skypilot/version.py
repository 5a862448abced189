"""Which versions of SkyPilot are understood."""

from __future__ import annotations

from typing import Final

from holdfast.adapters.skypilot.door import Door
from holdfast.errors import LauncherUnreachable

KNOWN_VERSIONS: Final = ("0.14.",)
"""Beginnings of versions. Of another one nothing is asked that costs money."""


async def check_version(door: Door) -> None:
    """Go on if launches mean there what they mean here.

    Raises:
        LauncherUnreachable: the server has another version, or does not answer.
    """
    version = str((await door.health()).get("version", ""))
    if not version.startswith(KNOWN_VERSIONS):
        raise LauncherUnreachable(
            f"SkyPilot is at version {version or 'unknown'}, and this service knows {' and '.join(KNOWN_VERSIONS)}x: "
            "running jobs are watched, and nothing is launched; install skypilot==0.14.1 for its API server"
        )

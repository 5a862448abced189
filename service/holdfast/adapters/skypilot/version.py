"""Which versions of SkyPilot are understood."""

from __future__ import annotations

from holdfast.adapters.skypilot.door import Door
from holdfast.domain.skypilot import SERIES, VERSION
from holdfast.errors import LauncherUnreachable


async def check_version(door: Door) -> None:
    """Go on if launches mean there what they mean here.

    Raises:
        LauncherUnreachable: the server has another version, or does not answer.
    """
    version = str((await door.health()).get("version", ""))
    if not version.startswith(SERIES):
        raise LauncherUnreachable(
            f"SkyPilot is at version {version or 'unknown'}, and this service knows {SERIES}x: "
            f"running jobs are watched, and nothing is launched; install skypilot=={VERSION} for its API server"
        )

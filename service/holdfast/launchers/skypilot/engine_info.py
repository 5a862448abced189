"""Which versions of SkyPilot are understood.

What SkyPilot's server says of itself, for people: its version, its clouds, its clock, and how it takes launches.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from holdfast.errors import LauncherUnreachable
from holdfast.launchers.skypilot.admission import GateProbe
from holdfast.launchers.skypilot.api_client import SkyPilotClient
from holdfast.launchers.skypilot.version import SERIES, VERSION
from holdfast.ports import Clock, EngineInfo


async def check_version(door: SkyPilotClient) -> None:
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


_CLOUDS_FOR: Final = timedelta(minutes=2)
"""How long an answer about clouds is believed: asking costs the server a process."""


class EngineInfoReader:
    """Reads them, each as often as it is worth."""

    def __init__(self, door: SkyPilotClient, probe: GateProbe, clock: Clock) -> None:
        self._door = door
        self._probe = probe
        self._clock = clock
        self._clouds: tuple[str, ...] | None = None
        self._told_at: datetime | None = None

    async def read(self) -> EngineInfo:
        """What holds now.

        Raises:
            LauncherUnreachable: it does not answer, or its gate lets nothing pass.
        """
        asked_at = self._clock.now()
        told = await self._door.health()
        skew = (self._door.date - asked_at).total_seconds() if self._door.date else None
        return EngineInfo(
            version=str(told.get("version") or "unknown"),
            guarantee=await self._probe.guarantee(),
            waits_for_us=await self._probe.asks_about_all(),
            clouds=await self._enabled(asked_at),
            clock_skew_s=skew,
        )

    async def _enabled(self, now: datetime) -> tuple[str, ...] | None:
        if self._clouds and self._told_at and now - self._told_at < _CLOUDS_FOR:
            return self._clouds
        try:
            told = await self._door.read("/enabled_clouds", None)
        except LauncherUnreachable:
            return (
                self._clouds
            )  # It answers, and is slow to say: it tries the keys of all clouds at its start.
        if isinstance(told, list):
            self._clouds, self._told_at = tuple(str(cloud).lower() for cloud in told), now
        return self._clouds

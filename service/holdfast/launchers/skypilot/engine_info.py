"""Reads SkyPilot's version, clouds, clock and guarantee, and checks the supported version."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

from holdfast.errors import LauncherUnreachable
from holdfast.launchers.skypilot.admission import GateProbe
from holdfast.launchers.skypilot.api_client import SkyPilotClient
from holdfast.launchers.skypilot.version import SERIES, VERSION
from holdfast.ports import Clock, EngineInfo


async def check_version(door: SkyPilotClient) -> None:
    """Raise unless the server's version is supported.

    Raises:
        LauncherUnreachable: the version is not supported, or the server does not respond.
    """
    version = str((await door.health()).get("version", ""))
    if not version.startswith(SERIES):
        raise LauncherUnreachable(
            f"SkyPilot has version {version or 'unknown'}, but this service supports {SERIES}x: "
            f"running jobs continue, but new launches are blocked; install skypilot=={VERSION} for its API server"
        )


_CLOUDS_TTL: Final = timedelta(minutes=2)
"""How long a list of clouds is cached, because each read costs the server a process."""


class EngineInfoReader:
    """Reads the state of SkyPilot's server and caches each part for a suitable time."""

    def __init__(self, door: SkyPilotClient, probe: GateProbe, clock: Clock) -> None:
        self._client = door
        self._probe = probe
        self._clock = clock
        self._clouds: tuple[str, ...] | None = None
        self._clouds_at: datetime | None = None

    async def read(self) -> EngineInfo:
        """Return the current state.

        Raises:
            LauncherUnreachable: the server does not respond, or its gate blocks all launches.
        """
        asked_at = self._clock.now()
        response = await self._client.health()
        skew = (self._client.date - asked_at).total_seconds() if self._client.date else None
        return EngineInfo(
            version=str(response.get("version") or "unknown"),
            guarantee=await self._probe.guarantee(),
            waits_for_service=await self._probe.covers_all_requests(),
            clouds=await self._enabled_clouds(asked_at),
            clock_skew_s=skew,
        )

    async def _enabled_clouds(self, now: datetime) -> tuple[str, ...] | None:
        if self._clouds and self._clouds_at and now - self._clouds_at < _CLOUDS_TTL:
            return self._clouds
        try:
            response = await self._client.read("/enabled_clouds", None)
        except LauncherUnreachable:
            return self._clouds  # The server responds slowly because it checks the credentials of all clouds at startup.
        if isinstance(response, list):
            self._clouds, self._clouds_at = tuple(str(cloud).lower() for cloud in response), now
        return self._clouds

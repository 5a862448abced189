"""What became of a launch request: SkyPilot queues them, and its answer may have been lost on the way."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from holdfast.domain.jobs.launch_admission import Admission
from holdfast.errors import LauncherUnreachable
from holdfast.launchers.skypilot.api_client import SkyPilotClient
from holdfast.launchers.skypilot.models import read_number
from holdfast.launchers.skypilot.observe import strip_ansi
from holdfast.launchers.skypilot.responses import Asked, RequestFailed, RequestGone

LAUNCH: Final = "sky.jobs.launch"

_FINAL: Final = frozenset(
    {
        "ValueError",
        "InvalidSkyPilotConfigError",
        "InvalidYamlConfigError",
        "InvalidClusterNameError",
        "ResourcesMismatchError",
        "ResourcesUnavailableError",
        "StorageSourceError",
        "StorageSpecError",
        "AssertionError",
        "TypeError",
        "FileNotFoundError",
    }
)
"""SkyPilot's exceptions that follow from the task alone: asking again gives the same answer."""
_TROUBLE: Final = frozenset(
    {
        "CloudUserIdentityError",
        "InvalidCloudCredentials",
        "NoCloudAccessError",
        "NotSupportedError",
        "StorageBucketCreateError",
        "StorageBucketGetError",
        "StorageUploadError",
    }
)
"""Those that come, with the same words for a task that was misspelt, when the keys of SkyPilot's server do not work: a
bucket that answers 403, or no cloud left that could hold files. Once they do work, asking again gives another answer."""


@dataclass(frozen=True, slots=True)
class Launched:
    """SkyPilot made a job."""

    engine_id: int


@dataclass(frozen=True, slots=True)
class Pending:
    """A request is under way."""


@dataclass(frozen=True, slots=True)
class Failed:
    """Every request that is known has come to an end without a job."""

    kind: str
    detail: str

    @property
    def is_final(self) -> bool:
        """Whether asking again would be in vain."""
        return self.kind in _FINAL

    @property
    def is_trouble(self) -> bool:
        """Whether it may be the server that is to blame, and somebody has to look after it."""
        return self.kind in _TROUBLE


@dataclass(frozen=True, slots=True)
class Unknown:
    """SkyPilot knows no such request, or none any more."""


Fate: TypeAlias = Launched | Pending | Failed | Unknown


class Requests:
    """The launch requests of one API server."""

    def __init__(self, door: SkyPilotClient) -> None:
        self._door = door

    async def status(self, row: Admission, name: str, *, alone: bool = False) -> Fate:
        """What became of the requests for this launch; `alone`: of the one whose id is known.

        Raises:
            LauncherUnreachable: nothing was found out.
        """
        if row.request_id:
            asked = await self._door.asked(row.request_id)
            fate = await self._outcome(asked[0]) if asked else Unknown()
            if not isinstance(fate, Failed | Unknown):
                return fate
        else:
            fate = Unknown()
        if alone:
            return fate
        # An earlier request may have passed where this one was turned away, and its answer may have been lost.
        return await self._others(row, name) or fate

    async def _others(self, row: Admission, name: str) -> Fate | None:
        found: Fate | None = None
        # Of those under way none may be missed, however many others the server is busy with.
        for item in [*await self._door.under_way(), *await self._door.newest_asked()]:
            if item.name != LAUNCH or item.body.get("name") != name:
                continue
            if item.request_id == row.request_id:
                continue
            fate = await self._outcome(item)
            if isinstance(fate, Launched | Pending):
                return fate
            # What became of an older token says nothing about this one.
            if f"hfl_{row.key}_{row.generation}_" in str(item.body.get("task")):
                found = found or fate
        return found if row.request_id is None else None

    async def _outcome(self, item: Asked) -> Fate:
        if not item.is_over:
            return Pending()
        try:
            return Launched(_job_id(await self._door.answer(item.request_id)))
        except RequestFailed as failure:
            return Failed(failure.kind, strip_ansi(failure.detail))
        except RequestGone:
            return Unknown()


def _job_id(value: Any) -> int:
    """The job's number in the result of a launch: `{"job_id": [7]}`, and `[[7], handle]` in older words."""
    ids = value.get("job_id") if isinstance(value, dict) else value
    while isinstance(ids, list) and ids:
        ids = ids[0]
    try:
        return read_number(ids)
    except ValueError as error:
        raise LauncherUnreachable(
            "SkyPilot launched a job and told its number in a way unknown here"
        ) from error

"""Status of launch requests: SkyPilot queues them, and its response may be lost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from holdfast.domain.jobs.launch_admission import Admission
from holdfast.errors import LauncherUnreachable
from holdfast.launchers.skypilot.api_client import SkyPilotClient
from holdfast.launchers.skypilot.cached_reads import SharedRead
from holdfast.launchers.skypilot.models import read_number
from holdfast.launchers.skypilot.observe import strip_ansi
from holdfast.launchers.skypilot.responses import ApiRequest, RequestFailed, RequestNotFound

LAUNCH: Final = "sky.jobs.launch"

_TASK_ERRORS: Final = frozenset(
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
"""SkyPilot's exceptions caused by the task itself: a retry gives the same result."""
_SERVER_ERRORS: Final = frozenset(
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
"""Exceptions that may be caused by failing credentials of SkyPilot's server.
They have the same text as for a misspelled task: a bucket that responds 403, or no cloud left for files. A retry
succeeds once the credentials work."""


@dataclass(frozen=True, slots=True)
class Launched:
    """SkyPilot created a job."""

    engine_id: int


@dataclass(frozen=True, slots=True)
class Pending:
    """A request is pending."""


@dataclass(frozen=True, slots=True)
class Failed:
    """All known requests ended without a job."""

    exception_type: str
    detail: str

    @property
    def is_final(self) -> bool:
        """Whether a retry would fail again."""
        return self.exception_type in _TASK_ERRORS

    @property
    def is_server_error(self) -> bool:
        """Whether the server may be at fault and needs an operator."""
        return self.exception_type in _SERVER_ERRORS


@dataclass(frozen=True, slots=True)
class Unknown:
    """SkyPilot does not know such a request, or no longer does."""


RequestStatus: TypeAlias = Launched | Pending | Failed | Unknown


class LaunchRequests:
    """The launch requests of one API server."""

    def __init__(self, door: SkyPilotClient) -> None:
        self._client = door
        self._listed = SharedRead(self._list)
        """Each list carries hundreds of tasks."""

    async def status(self, row: Admission, name: str, *, alone: bool = False) -> RequestStatus:
        """Return the status of this launch's requests; `alone`: only of the one whose id is known.

        Raises:
            LauncherUnreachable: the result is unknown.
        """
        if row.request_id:
            asked = await self._client.find_requests(row.request_id)
            status = await self._outcome(asked[0]) if asked else Unknown()
            if not isinstance(status, Failed | Unknown):
                return status
        else:
            status = Unknown()
        if alone:
            return status
        # If this request was refused, an earlier one may have passed whose response was lost.
        return await self._other_requests(row, name) or status

    async def _other_requests(self, row: Admission, name: str) -> RequestStatus | None:
        found: RequestStatus | None = None
        for item in await self._listed.get():
            if item.name != LAUNCH or item.body.get("name") != name:
                continue
            if item.request_id == row.request_id:
                continue
            status = await self._outcome(item)
            if isinstance(status, Launched | Pending):
                return status
            # The status of an older token's request does not apply to this one.
            if f"hfl_{row.key}_{row.generation}_" in str(item.body.get("task")):
                found = found or status
        return found if row.request_id is None else None

    async def _list(self) -> list[ApiRequest]:
        """List all pending and the newest requests."""
        # All pending requests are needed, however busy the server is.
        pending = await self._client.list_pending()
        return [*pending, *await self._client.list_recent()]

    async def _outcome(self, item: ApiRequest) -> RequestStatus:
        if not item.is_finished:
            return Pending()
        try:
            return Launched(_job_id(await self._client.fetch_result(item.request_id)))
        except RequestFailed as failure:
            return Failed(failure.exception_type, strip_ansi(failure.detail))
        except RequestNotFound:
            return Unknown()


def _job_id(value: Any) -> int:
    """Return the job number in a launch result: `{"job_id": [7]}`, formerly `[[7], handle]`."""
    ids = value.get("job_id") if isinstance(value, dict) else value
    while isinstance(ids, list) and ids:
        ids = ids[0]
    try:
        return read_number(ids)
    except ValueError as error:
        raise LauncherUnreachable(
            "SkyPilot launched a job but returned its number in an unknown format"
        ) from error

"""Parses SkyPilot's responses strictly: missing or unknown values are errors, never guesses."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from holdfast.domain.jobs.launch_admission import EngineEvent
from holdfast.errors import LauncherUnreachable


class ManagedJobStatus(StrEnum):
    """Statuses of a managed job in SkyPilot 0.14."""

    PENDING = "PENDING"
    SUBMITTED = "SUBMITTED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    WINDING_DOWN = "WINDING_DOWN"
    RECOVERING = "RECOVERING"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    CANCELLED = "CANCELLED"
    FAILED = "FAILED"
    FAILED_SETUP = "FAILED_SETUP"
    FAILED_PRECHECKS = "FAILED_PRECHECKS"
    FAILED_NO_RESOURCE = "FAILED_NO_RESOURCE"
    FAILED_CONTROLLER = "FAILED_CONTROLLER"

    @property
    def is_terminal(self) -> bool:
        """Whether no other status follows."""
        return self in _TERMINAL


_TERMINAL: Final = frozenset(
    {
        ManagedJobStatus.SUCCEEDED,
        ManagedJobStatus.CANCELLED,
        ManagedJobStatus.FAILED,
        ManagedJobStatus.FAILED_SETUP,
        ManagedJobStatus.FAILED_PRECHECKS,
        ManagedJobStatus.FAILED_NO_RESOURCE,
        ManagedJobStatus.FAILED_CONTROLLER,
    }
)

MAX_NUMBER: Final = 2**63
"""Above every number that a database can store."""

FIELDS: Final = (
    "job_id",
    "task_id",
    "job_name",
    "status",
    "schedule_state",
    "cloud",
    "region",
    "zone",
    "cluster_resources_full",
    "submitted_at",
    "last_recovered_at",
    "controller_pid_started_at",
)
"""Fields requested in a listing, because SkyPilot omits most by default.
`details` is left out: free text from clouds, with which 0.14.1 sometimes produces invalid responses (observed for
minutes while a job was being placed)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ManagedJob:
    """Managed job in a listing."""

    engine_id: int
    name: str
    status: ManagedJobStatus
    schedule_state: str
    location: str | None
    """Location of its cluster as `cloud/region/zone`; None without a cluster."""
    region: str | None
    """Location without the zone."""
    resources: str
    """Resources of the cluster, in SkyPilot's notation."""
    nodes: int | None
    """Number of the cluster's nodes; None without a cluster."""
    started_at: datetime | None
    """Start of the search for nodes, by SkyPilot's clock; None before."""
    up_since: datetime | None
    """Start of the newest placement, by SkyPilot's clock; None before the first."""
    controller_started_at: datetime | None

    @property
    def is_queued(self) -> bool:
        """Whether no controller has taken the job yet."""
        return self.status is ManagedJobStatus.PENDING and self.started_at is None

    @property
    def never_started(self) -> bool:
        """Whether the job ended before SkyPilot started it."""
        return self.status is ManagedJobStatus.CANCELLED and self.schedule_state == "INACTIVE"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterCost:
    """Lifetime of a cluster in a cost report."""

    cluster: str
    cloud: str | None
    """Cloud of the nodes; None if not reported."""
    region: str | None
    """Region of the nodes; None if not reported, as in a summary."""
    resources: str
    """Resources in SkyPilot's notation, also of terminated clusters; empty if not reported."""
    is_running: bool
    launched_at: float
    """Seconds by SkyPilot's clock; 0 if not reported."""
    usd: float | None
    """Cost so far; None if SkyPilot does not know it."""
    duration_s: float | None
    """Lifetime in seconds; None if SkyPilot does not know it."""


def read_listing(value: Any) -> list[ManagedJob]:
    """Parse a response of `/jobs/queue/v2`.

    Raises:
        LauncherUnreachable: a row cannot be parsed, which invalidates all rows.
    """
    jobs = value.get("jobs") if isinstance(value, dict) else None
    if not isinstance(jobs, list):
        raise LauncherUnreachable("SkyPilot's list of jobs has an unknown format")
    try:
        # A pipeline has a row per task; Holdfast launches single tasks.
        return [_managed_job(item) for item in map(_mapping, jobs) if _count(item["task_id"]) == 0]
    except (KeyError, TypeError, ValueError, OverflowError, OSError) as error:
        raise LauncherUnreachable(
            f"cannot parse a row of SkyPilot's list of jobs ({type(error).__name__}: {error})"
        ) from error


def read_costs(value: Any) -> list[ClusterCost]:
    """Parse a response of `/cost_report`.

    Raises:
        LauncherUnreachable: a row cannot be parsed, which invalidates all rows.
    """
    if not isinstance(value, list):
        raise LauncherUnreachable("SkyPilot's cost report has an unknown format")
    try:
        return [_cost(item) for item in map(_mapping, value)]
    except (KeyError, TypeError) as error:
        raise LauncherUnreachable(
            f"cannot parse a row of SkyPilot's cost report ({type(error).__name__}: {error})"
        ) from error


def read_events(value: Any) -> list[EngineEvent]:
    """Parse a response of `/jobs/events`, oldest first.

    Raises:
        LauncherUnreachable: an event cannot be parsed.
    """
    if not isinstance(value, list):
        raise LauncherUnreachable("SkyPilot's list of a job's events has an unknown format")
    return list(reversed(list(_events(value))))


def read_status(text: Any) -> ManagedJobStatus:
    """Parse a job status.

    Raises:
        LauncherUnreachable: the status is unknown.
    """
    try:
        return ManagedJobStatus(str(text))
    except ValueError as error:
        raise LauncherUnreachable(
            f"SkyPilot reports an unknown job status {text!r}; job state is unchanged"
        ) from error


def read_number(value: Any) -> int:
    """Parse a job number.

    Raises:
        ValueError: the value is not one.
    """
    if type(value) is not int or not 0 < value < MAX_NUMBER:
        raise ValueError(f"{value!r:.40} is not the number of a job")
    return value


def _text(value: Any) -> str:
    """Return text limited to characters that every database can store."""
    return str(value).replace("\0", "").encode("utf-8", "replace").decode("utf-8")


def _events(value: list[Any]) -> Iterator[EngineEvent]:
    for item in value:
        try:
            yield EngineEvent(
                at=_timestamp(item["timestamp"]),
                status=read_status(item["new_status"]).value,
                code=None if item.get("code") is None else _text(item["code"]),
                reason=_text(item.get("reason") or ""),
            )
        except (KeyError, TypeError, ValueError, OverflowError, OSError) as error:
            raise LauncherUnreachable(
                f"cannot parse an event of SkyPilot ({type(error).__name__}: {error})"
            ) from error


def _managed_job(item: Mapping[str, Any]) -> ManagedJob:
    cloud, region, zone = (_location(item.get(word)) for word in ("cloud", "region", "zone"))
    where = [part for part in (cloud, region, zone) if part]
    return ManagedJob(
        engine_id=read_number(item["job_id"]),
        name=_text(_nonempty_text(item["job_name"])),
        status=read_status(item["status"]),
        schedule_state=str(item.get("schedule_state") or ""),
        location="/".join(where) or None,
        region="/".join(where[:2]) or None,
        resources=str(item.get("cluster_resources_full") or ""),
        nodes=_nodes(item.get("cluster_resources_full")),
        started_at=_seconds(item.get("submitted_at")),
        up_since=_seconds(item.get("last_recovered_at")),
        controller_started_at=_seconds(item.get("controller_pid_started_at")),
    )


def _cost(item: Mapping[str, Any]) -> ClusterCost:
    # SkyPilot reports status None for a terminated cluster. A missing status is an error.
    status = item["status"]
    return ClusterCost(
        cluster=_nonempty_text(item["name"]),
        cloud=_location(item.get("cloud")),
        region=_location(item.get("region")),
        resources=str(item.get("resources_str_full") or ""),
        is_running=status is not None and bool(_nonempty_text(status)),
        launched_at=_finite_number(item.get("launched_at")) or 0.0,
        usd=_finite_number(item.get("total_cost")),
        duration_s=_finite_number(item.get("duration")),
    )


def _mapping(item: Any) -> Mapping[str, Any]:
    if isinstance(item, dict):
        return item
    raise TypeError(f"{item!r:.40} is not a row")


def _nonempty_text(value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    raise TypeError(f"{value!r:.40} is not a text")


def _count(value: Any) -> int:
    if type(value) is int and value >= 0:
        return value
    raise TypeError(f"{value!r:.40} is not a count")


def _finite_number(value: Any) -> float | None:
    """Return a finite number, or None."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < MAX_NUMBER:
        return None
    return float(value)


def _nodes(resources: Any) -> int | None:
    """Return the number before the `x` of `2x(gpus=A100:8, ...)`."""
    head = str(resources or "").partition("x")[0].strip()
    return int(head) if head.isdecimal() else None


def _location(value: Any) -> str | None:
    word = str(value or "-").strip()
    return None if word in {"-", "None"} else word.lower()


def _timestamp(text: Any) -> datetime:
    """Parse a time; without a zone it is UTC, the zone that its server must run in."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return datetime.fromtimestamp(text, UTC)
    moment = datetime.fromisoformat(str(text))
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _seconds(value: Any) -> datetime | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        return None
    return datetime.fromtimestamp(value, UTC)

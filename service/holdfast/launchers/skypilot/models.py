"""SkyPilot's answers, read with care: what is missing or unheard of is never guessed at."""

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
    def is_over(self) -> bool:
        """Whether no other status follows."""
        return self in _OVER


_OVER: Final = frozenset(
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

LARGEST: Final = 2**63
"""Above every number that a database holds."""

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
"""What is asked of a listing; SkyPilot's default leaves most of it out. Not its `details`: free text from clouds, which
0.14.1 now and then breaks its own answer with (seen for minutes on end while a job was being placed)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ManagedJob:
    """One managed job in a listing."""

    engine_id: int
    name: str
    status: ManagedJobStatus
    schedule_state: str
    place: str | None
    """Where its cluster stands, as `cloud/region/zone`; None while it has none."""
    region: str | None
    """The same without the zone."""
    resources: str
    """What the cluster is made of, in SkyPilot's words."""
    nodes: int | None
    """How many machines the cluster has; None while it has none."""
    began_at: datetime | None
    """When SkyPilot began to look for nodes, by its clock; None before."""
    stands_since: datetime | None
    """When its newest placement came up, by SkyPilot's clock; None before the first."""
    controller_started_at: datetime | None

    @property
    def never_began(self) -> bool:
        """Whether it was over before SkyPilot had taken it up."""
        return self.status is ManagedJobStatus.CANCELLED and self.schedule_state == "INACTIVE"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterCost:
    """One life of a cluster in a cost report."""

    cluster: str
    cloud: str | None
    """Whose nodes they are; None where SkyPilot does not say."""
    region: str | None
    """None where SkyPilot does not say, as in a summary."""
    resources: str
    """What it was made of, in SkyPilot's words, which it remembers of clusters that are gone; empty where it does not say."""
    stands: bool
    launched_at: float
    """In seconds of SkyPilot's clock; 0 where it does not say."""
    usd: float | None
    """What it has cost so far; None where SkyPilot does not know."""
    lasted_s: float | None
    """How long it has stood; None where SkyPilot does not know."""


def read_listing(value: Any) -> list[ManagedJob]:
    """The rows of an answer to `/jobs/queue/v2`.

    Raises:
        LauncherUnreachable: a row cannot be understood, so nothing is concluded from any.
    """
    jobs = value.get("jobs") if isinstance(value, dict) else None
    if not isinstance(jobs, list):
        raise LauncherUnreachable("SkyPilot listed its jobs in a way that is not known here")
    try:
        # A pipeline has a row for each task; what is launched from here has one.
        return [_row(item) for item in map(_mapping, jobs) if _count(item["task_id"]) == 0]
    except (KeyError, TypeError, ValueError, OverflowError, OSError) as error:
        raise LauncherUnreachable(
            f"a row of SkyPilot's listing cannot be understood ({type(error).__name__}: {error})"
        ) from error


def read_costs(value: Any) -> list[ClusterCost]:
    """The rows of an answer to `/cost_report`.

    Raises:
        LauncherUnreachable: a row cannot be understood, so nothing is concluded from any.
    """
    if not isinstance(value, list):
        raise LauncherUnreachable("SkyPilot reports costs in a way that is not known here")
    try:
        return [_cost(item) for item in map(_mapping, value)]
    except (KeyError, TypeError) as error:
        raise LauncherUnreachable(
            f"a row of SkyPilot's costs cannot be understood ({type(error).__name__}: {error})"
        ) from error


def read_events(value: Any) -> list[EngineEvent]:
    """The events of an answer to `/jobs/events`, oldest first.

    Raises:
        LauncherUnreachable: one of them cannot be understood.
    """
    if not isinstance(value, list):
        raise LauncherUnreachable("SkyPilot told a job's events in a way that is not known here")
    return list(reversed(list(_events(value))))


def read_status(text: Any) -> ManagedJobStatus:
    """A status that this version knows.

    Raises:
        LauncherUnreachable: it is unheard of.
    """
    try:
        return ManagedJobStatus(str(text))
    except ValueError as error:
        raise LauncherUnreachable(
            f"SkyPilot says that a job is {text!r}, which is not known here; nothing is concluded"
        ) from error


def read_number(value: Any) -> int:
    """A job's number.

    Raises:
        ValueError: it is none.
    """
    if type(value) is not int or not 0 < value < LARGEST:
        raise ValueError(f"{value!r:.40} is not the number of a job")
    return value


def _text(value: Any) -> str:
    """Words of which every database can hold every letter."""
    return str(value).replace("\0", "").encode("utf-8", "replace").decode("utf-8")


def _events(value: list[Any]) -> Iterator[EngineEvent]:
    for item in value:
        try:
            yield EngineEvent(
                at=_moment(item["timestamp"]),
                status=read_status(item["new_status"]).value,
                code=None if item.get("code") is None else _text(item["code"]),
                reason=_text(item.get("reason") or ""),
            )
        except (KeyError, TypeError, ValueError, OverflowError, OSError) as error:
            raise LauncherUnreachable(
                f"an event of SkyPilot cannot be understood ({type(error).__name__}: {error})"
            ) from error


def _row(item: Mapping[str, Any]) -> ManagedJob:
    cloud, region, zone = (_place(item.get(word)) for word in ("cloud", "region", "zone"))
    where = [part for part in (cloud, region, zone) if part]
    return ManagedJob(
        engine_id=read_number(item["job_id"]),
        name=_text(_word(item["job_name"])),
        status=read_status(item["status"]),
        schedule_state=str(item.get("schedule_state") or ""),
        place="/".join(where) or None,
        region="/".join(where[:2]) or None,
        resources=str(item.get("cluster_resources_full") or ""),
        nodes=_nodes(item.get("cluster_resources_full")),
        began_at=_seconds(item.get("submitted_at")),
        stands_since=_seconds(item.get("last_recovered_at")),
        controller_started_at=_seconds(item.get("controller_pid_started_at")),
    )


def _cost(item: Mapping[str, Any]) -> ClusterCost:
    # None is said of a cluster that is gone. To say nothing is to say nothing.
    standing = item["status"]
    return ClusterCost(
        cluster=_word(item["name"]),
        cloud=_place(item.get("cloud")),
        region=_place(item.get("region")),
        resources=str(item.get("resources_str_full") or ""),
        stands=standing is not None and bool(_word(standing)),
        launched_at=_figure(item.get("launched_at")) or 0.0,
        usd=_figure(item.get("total_cost")),
        lasted_s=_figure(item.get("duration")),
    )


def _mapping(item: Any) -> Mapping[str, Any]:
    if isinstance(item, dict):
        return item
    raise TypeError(f"{item!r:.40} is no row")


def _word(value: Any) -> str:
    if isinstance(value, str) and value:
        return value
    raise TypeError(f"{value!r:.40} is no word")


def _count(value: Any) -> int:
    if type(value) is int and value >= 0:
        return value
    raise TypeError(f"{value!r:.40} is no count")


def _figure(value: Any) -> float | None:
    """A number that can be reckoned with."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) < LARGEST:
        return None
    return float(value)


def _nodes(resources: Any) -> int | None:
    """The number before the `x` of `2x(gpus=A100:8, ...)`."""
    head = str(resources or "").partition("x")[0].strip()
    return int(head) if head.isdecimal() else None


def _place(value: Any) -> str | None:
    word = str(value or "-").strip()
    return None if word in {"-", "None"} else word.lower()


def _moment(text: Any) -> datetime:
    """A time of SkyPilot's; without a zone it is UTC, as its server is told to run."""
    if isinstance(text, int | float) and not isinstance(text, bool):
        return datetime.fromtimestamp(text, UTC)
    moment = datetime.fromisoformat(str(text))
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)


def _seconds(value: Any) -> datetime | None:
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        return None
    return datetime.fromtimestamp(value, UTC)

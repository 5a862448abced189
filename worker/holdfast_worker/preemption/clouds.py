"""Clouds that announce preemptions through their metadata service. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final, Protocol, TypeAlias

from holdfast_worker.clock import now
from holdfast_worker.preemption.metadata_service import MetadataReply, MetadataService, NoAnswer


@dataclass(frozen=True, slots=True)
class TerminationNotice:
    """Notice that the cloud terminates this node."""

    deadline: datetime | None
    """None if the notice names no time."""


@dataclass(frozen=True, slots=True)
class RebalanceRecommendation:
    """Notice that a preemption may follow: a reason to save, but not to exit."""

    at: datetime


PreemptionSignal: TypeAlias = TerminationNotice | RebalanceRecommendation


class Cloud(Protocol):
    """A cloud with a metadata service on each node. Every method may raise `NoAnswer`."""

    @property
    def name(self) -> str:
        """SkyPilot's name of the cloud, in lower case."""

    @property
    def pause_s(self) -> float:
        """Interval of polls.

        A lower value may exceed rate limits; a higher value loses more of the notice.
        """

    def detect(self) -> bool:
        """Whether this node belongs to this cloud."""

    def poll(self) -> Sequence[PreemptionSignal]:
        """Current notices for this node."""


class Aws:
    """EC2: a notice two minutes in advance, sometimes a rebalance recommendation earlier.

    IMDSv2 requires a token; without token support (IMDSv1) requests are sent without one.
    """

    name: Final = "aws"
    pause_s: Final = 5.0
    TOKEN_TTL_S: Final = 21600

    def __init__(self, metadata: MetadataService) -> None:
        self._metadata = metadata
        self._token: str | None = None
        """None before the first request; empty without token support."""

    def detect(self) -> bool:
        """See `Cloud`."""
        return self._get("/latest/meta-data/instance-id").is_ok

    def poll(self) -> Sequence[PreemptionSignal]:
        """See `Cloud`."""
        action = self._get("/latest/meta-data/spot/instance-action")
        if action.is_ok:
            return [TerminationNotice(_parse_time(action.json().get("time")))]
        advice = self._get("/latest/meta-data/events/recommendations/rebalance")
        return (
            [RebalanceRecommendation(_parse_time(advice.json().get("noticeTime")) or now())]
            if advice.is_ok
            else []
        )

    def _get(self, path: str) -> MetadataReply:
        if self._token is None:
            self._token = self._new_token()
        reply = self._metadata.request(path, self._headers())
        if reply.status == 401:
            # The token has expired, or the service now requires one.
            self._token = self._new_token()
            reply = self._metadata.request(path, self._headers())
        return reply

    def _new_token(self) -> str:
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(self.TOKEN_TTL_S)}
        reply = self._metadata.request("/latest/api/token", ttl, "PUT")
        return reply.text if reply.is_ok else ""

    def _headers(self) -> dict[str, str]:
        return {"X-aws-ec2-metadata-token": self._token} if self._token else {}


class Gcp:
    """Compute Engine: `preempted` becomes TRUE 30 seconds before the preemption.

    Host maintenance that terminates the node is announced a minute before, or an hour before for nodes with GPUs. The
    response does not distinguish them, so the work is saved at once and training continues.
    """

    name: Final = "gcp"
    pause_s: Final = 1.0
    NOTICE: Final = timedelta(seconds=30)
    FLAVOR: Final = "Metadata-Flavor"

    def __init__(self, metadata: MetadataService) -> None:
        self._metadata = metadata
        self._deadline: datetime | None = None
        """Computed from the first observation, as the service names no time."""

    def detect(self) -> bool:
        """See `Cloud`."""
        return self._get("id").headers.get(self.FLAVOR.lower()) == "Google"

    def poll(self) -> Sequence[PreemptionSignal]:
        """See `Cloud`."""
        if self._get("preempted").text.strip() == "TRUE":
            self._deadline = self._deadline or now() + self.NOTICE
            return [TerminationNotice(self._deadline)]
        if self._get("maintenance-event").text.strip() == "TERMINATE_ON_HOST_MAINTENANCE":
            return [RebalanceRecommendation(now())]
        return []

    def _get(self, key: str) -> MetadataReply:
        path = f"/computeMetadata/v1/instance/{key}"
        return self._metadata.request(path, {self.FLAVOR: "Google"})


class Azure:
    """Azure: a scheduled event names the preempted nodes and the time, 30 seconds before.

    The first request enables the service, and may remain unanswered for minutes.
    """

    name: Final = "azure"
    pause_s: Final = 1.0
    HEADERS: Final = {"Metadata": "true"}

    def __init__(self, metadata: MetadataService) -> None:
        self._metadata = metadata
        self._node: str | None = None

    def detect(self) -> bool:
        """See `Cloud`."""
        return bool(self._name_of_node())

    def poll(self) -> list[PreemptionSignal]:
        """See `Cloud`."""
        reply = self._get("/metadata/scheduledevents?api-version=2020-07-01")
        if not reply.is_ok:
            return []
        node = self._name_of_node()
        return [
            # An event without a time has started.
            TerminationNotice(_parse_time(event.get("NotBefore")) or now())
            for event in reply.json().get("Events", ())
            if event.get("EventType") == "Preempt" and node in event.get("Resources", ())
        ]

    def _name_of_node(self) -> str:
        if not self._node:
            reply = self._get("/metadata/instance?api-version=2021-02-01")
            self._node = reply.json().get("compute", {}).get("name") if reply.is_ok else None
        return self._node or ""

    def _get(self, path: str) -> MetadataReply:
        return self._metadata.request(path, self.HEADERS)


CLOUDS: Final = (Aws, Gcp, Azure)


def find_cloud(metadata: MetadataService, name: str | None) -> Cloud | None:
    """The cloud with this name, or the detected one without a name.

    None for a cloud without notices.
    """
    clouds: list[Cloud] = [kind(metadata) for kind in CLOUDS]
    if name is not None:
        return next((cloud for cloud in clouds if cloud.name == name), None)
    return next((cloud for cloud in clouds if _detect(cloud)), None)


def _detect(cloud: Cloud) -> bool:
    try:
        return cloud.detect()
    except NoAnswer:
        return False


def _parse_time(text: object) -> datetime | None:
    """Parse a time of RFC 3339 or RFC 5322 to UTC; None for any other text."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = parse(str(text))
        except ValueError:
            continue
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None

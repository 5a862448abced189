"""The clouds that say beforehand when they take a node, each in its own way. Standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Final, Protocol, TypeAlias

from holdfast_worker.clock import now
from holdfast_worker.preemption.metadata_service import Metadata, NoAnswer, Reply


@dataclass(frozen=True, slots=True)
class TerminationNotice:
    """The cloud takes this node."""

    deadline: datetime | None
    """None: it does not say when."""


@dataclass(frozen=True, slots=True)
class RebalanceRecommendation:
    """The cloud may take this node before long, or never: a reason to save, and none to leave."""

    at: datetime


Omen: TypeAlias = TerminationNotice | RebalanceRecommendation


class Cloud(Protocol):
    """A cloud, asked through the metadata service of one node. Every method may raise `Silent`."""

    @property
    def name(self) -> str:
        """As SkyPilot writes it, in lower case."""

    @property
    def pause_s(self) -> float:
        """Between two looks: how much of the notice may be lost, against requests to a service that limits them."""

    def is_here(self) -> bool:
        """Whether this node is one of this cloud's."""

    def look(self) -> Sequence[Omen]:
        """What it says about this node now."""


class Aws:
    """EC2: a spot node is told two minutes before; a recommendation to rebalance may come earlier, or not at all.

    With IMDSv2 a token is asked for first; where it is not known (IMDSv1 alone) nothing is asked without one.
    """

    name: Final = "aws"
    pause_s: Final = 5.0
    TOKEN_TTL_S: Final = 21600

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._token: str | None = None
        """None before it was asked for; empty where tokens are not known."""

    def is_here(self) -> bool:
        """See `Cloud`."""
        return self._get("/latest/meta-data/instance-id").is_ok

    def look(self) -> Sequence[Omen]:
        """See `Cloud`."""
        action = self._get("/latest/meta-data/spot/instance-action")
        if action.is_ok:
            return [TerminationNotice(_time(action.json().get("time")))]
        advice = self._get("/latest/meta-data/events/recommendations/rebalance")
        return (
            [RebalanceRecommendation(_time(advice.json().get("noticeTime")) or now())]
            if advice.is_ok
            else []
        )

    def _get(self, path: str) -> Reply:
        if self._token is None:
            self._token = self._new_token()
        reply = self._metadata.ask(path, self._headers())
        if reply.status == 401:
            # The token is too old, or the service has come to ask for one.
            self._token = self._new_token()
            reply = self._metadata.ask(path, self._headers())
        return reply

    def _new_token(self) -> str:
        ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(self.TOKEN_TTL_S)}
        reply = self._metadata.ask("/latest/api/token", ttl, "PUT")
        return reply.text if reply.is_ok else ""

    def _headers(self) -> dict[str, str]:
        return {"X-aws-ec2-metadata-token": self._token} if self._token else {}


class Gcp:
    """Compute Engine: `preempted` turns TRUE half a minute before.

    Maintenance of the host that ends the node is told a minute before, and an hour before to nodes with GPUs. Which of the
    two, it does not say: so the work is saved at once, and the rest of the time used.
    """

    name: Final = "gcp"
    pause_s: Final = 1.0
    NOTICE: Final = timedelta(seconds=30)
    FLAVOR: Final = "Metadata-Flavor"

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._deadline: datetime | None = None
        """From when it was first seen; the service itself does not say."""

    def is_here(self) -> bool:
        """See `Cloud`."""
        return self._get("id").headers.get(self.FLAVOR.lower()) == "Google"

    def look(self) -> Sequence[Omen]:
        """See `Cloud`."""
        if self._get("preempted").text.strip() == "TRUE":
            self._deadline = self._deadline or now() + self.NOTICE
            return [TerminationNotice(self._deadline)]
        if self._get("maintenance-event").text.strip() == "TERMINATE_ON_HOST_MAINTENANCE":
            return [RebalanceRecommendation(now())]
        return []

    def _get(self, what: str) -> Reply:
        path = f"/computeMetadata/v1/instance/{what}"
        return self._metadata.ask(path, {self.FLAVOR: "Google"})


class Azure:
    """Azure: a scheduled event names the nodes that are preempted, and when, half a minute before.

    The first question switches the service on, and may remain without an answer for minutes.
    """

    name: Final = "azure"
    pause_s: Final = 1.0
    HEADERS: Final = {"Metadata": "true"}

    def __init__(self, metadata: Metadata) -> None:
        self._metadata = metadata
        self._node: str | None = None

    def is_here(self) -> bool:
        """See `Cloud`."""
        return bool(self._name_of_node())

    def look(self) -> list[Omen]:
        """See `Cloud`."""
        reply = self._ask("/metadata/scheduledevents?api-version=2020-07-01")
        if not reply.is_ok:
            return []
        node = self._name_of_node()
        return [
            # Without a time it has begun.
            TerminationNotice(_time(event.get("NotBefore")) or now())
            for event in reply.json().get("Events", ())
            if event.get("EventType") == "Preempt" and node in event.get("Resources", ())
        ]

    def _name_of_node(self) -> str:
        if not self._node:
            reply = self._ask("/metadata/instance?api-version=2021-02-01")
            self._node = reply.json().get("compute", {}).get("name") if reply.is_ok else None
        return self._node or ""

    def _ask(self, path: str) -> Reply:
        return self._metadata.ask(path, self.HEADERS)


CLOUDS: Final = (Aws, Gcp, Azure)


def find_cloud(metadata: Metadata, name: str | None) -> Cloud | None:
    """The cloud of that name, or, if the launcher gave none, the one that answers; None: nobody who gives notice."""
    clouds: list[Cloud] = [kind(metadata) for kind in CLOUDS]
    if name is not None:
        return next((cloud for cloud in clouds if cloud.name == name), None)
    return next((cloud for cloud in clouds if _is_here(cloud)), None)


def _is_here(cloud: Cloud) -> bool:
    try:
        return cloud.is_here()
    except NoAnswer:
        return False


def _time(text: object) -> datetime | None:
    """A time as RFC 3339 or RFC 5322 write it, in UTC; None for anything else."""
    for parse in (datetime.fromisoformat, parsedate_to_datetime):
        try:
            moment = parse(str(text))
        except ValueError:
            continue
        return moment.astimezone(UTC) if moment.tzinfo else moment.replace(tzinfo=UTC)
    return None

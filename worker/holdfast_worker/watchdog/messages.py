"""Messages between the wrappers of a run, encoded as JSON. Pure.

Any program that finds the port can send data, so that decoding validates every field.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeAlias

from holdfast_worker.protocol.gpu_health import NodeGpus
from holdfast_worker.protocol.reports import Json
from holdfast_worker.watchdog.failure_cause import MAX_DETAIL_CHARS, FailureCause
from holdfast_worker.watchdog.group_files import GroupAnswer, GroupRequest
from holdfast_worker.watchdog.hang_attribution import RankInspection
from holdfast_worker.watchdog.heartbeat import Heartbeat, Phase
from holdfast_worker.watchdog.hosting import Host

MAX_TEXT_CHARS: Final = 2 * MAX_DETAIL_CHARS
"""Characters of a text.
A lower value cuts sentences; a higher value lets strangers fill logs."""
READY: Final = "ready"
POSITIONS: Final = "pulses"
"""The keys of `RanksReady` and `RankPositions`, which the channel reads as well."""
MAX_INTEGER: Final = 2**53
"""Upper bound of an integer, below which a float is exact."""


@dataclass(frozen=True, slots=True)
class RankPositions:
    """Positions of the ranks of a node."""

    heartbeats: tuple[Heartbeat, ...]
    gpus: NodeGpus | None = None
    """New readings of the GPUs of that node, if there are any."""


@dataclass(frozen=True, slots=True)
class CauseReported:
    """A failure cause that a node has found."""

    cause: FailureCause


@dataclass(frozen=True, slots=True)
class InspectRequest:
    """A request to inspect the ranks of every node."""


@dataclass(frozen=True, slots=True)
class InspectReply:
    """Inspections of a node's ranks."""

    findings: tuple[RankInspection, ...]


@dataclass(frozen=True, slots=True)
class StopAll:
    """A command to end all ranks of all nodes, with its cause."""

    cause: FailureCause


@dataclass(frozen=True, slots=True)
class NodeExited:
    """A node has ended with this exit code."""

    exit_code: int


@dataclass(frozen=True, slots=True)
class RanksEnded:
    """All ranks of a node have ended after a failure."""

    may_restart: bool
    """Whether they may start again on this node."""


@dataclass(frozen=True, slots=True)
class RestartDecision:
    """The leader's decision after all ranks of all nodes have ended."""

    is_restart: bool
    """Whether they start again on the same nodes."""


@dataclass(frozen=True, slots=True)
class RanksBegin:
    """The leader's decision that ranks start together, as the nodes of all groups are there."""

    starts: Mapping[int, int]
    """The number of each other node's start, by which a node that comes later knows that it replaces one."""


@dataclass(frozen=True, slots=True)
class EndNodes:
    """The leader's request that nodes end as if their machines had gone."""

    starts: Mapping[int, int]
    """The nodes, each with the number of the start that has to end."""
    end_s: float
    """When, by `time.monotonic`."""


@dataclass(frozen=True, slots=True)
class GroupRequests:
    """The ranks of a node that wait for a new process group."""

    requests: tuple[GroupRequest, ...]


@dataclass(frozen=True, slots=True)
class GroupDecision:
    """The leader's decision about a process group.

    A node whose ranks have failed starts them again if the group is not formed yet.
    """

    answer: GroupAnswer


@dataclass(frozen=True, slots=True)
class RanksReady:
    """The ranks of a node that replaces a hosted one can take over."""


@dataclass(frozen=True, slots=True)
class HostingDecision:
    """The leader's decision about which nodes run the ranks of missing ones."""

    hosts: Mapping[int, Host]


Message: TypeAlias = (
    RankPositions
    | CauseReported
    | InspectRequest
    | InspectReply
    | StopAll
    | NodeExited
    | RanksEnded
    | RestartDecision
    | RanksBegin
    | GroupRequests
    | GroupDecision
    | RanksReady
    | HostingDecision
    | EndNodes
)
PhaseMessage: TypeAlias = RanksBegin | NodeExited | RanksEnded | RestartDecision | EndNodes
"""Messages about the start or the end of ranks."""


def encode(  # noqa: C901, PLR0911, PLR0912 - one for each kind
    message: Message, now_s: float
) -> dict[str, Json]:
    """Encode a message as JSON. Times become ages, as clocks of nodes differ."""
    match message:
        case RankPositions(heartbeats, gpus):
            positions: list[Json] = [_encode_heartbeat(each, now_s) for each in heartbeats]
            return {POSITIONS: positions, **({"gpus": gpus.dump()} if gpus else {})}
        case CauseReported(cause):
            return {"told": _encode_cause(cause)}
        case InspectRequest():
            return {"ask": True}
        case InspectReply(findings):
            return {"found": [_encode_finding(finding) for finding in findings]}
        case StopAll(cause):
            return {"end": _encode_cause(cause)}
        case NodeExited(code):
            return {"bye": code}
        case RanksEnded(may_restart):
            return {"ended": may_restart}
        case RestartDecision(is_restart):
            return {"restart": is_restart}
        case RanksBegin(starts):
            return {"begin": [[node, start] for node, start in starts.items()]}
        case GroupRequests(requests):
            return {"waiting": [_encode_request(each) for each in requests]}
        case GroupDecision(answer):
            hosted: list[Json] = [*answer.hosted]
            return {"group": [answer.generation, answer.address, answer.cause, hosted]}
        case RanksReady():
            return {READY: True}
        case HostingDecision(hosts):
            return {"hosts": [[node, host.node, host.start] for node, host in hosts.items()]}
        case EndNodes(starts, end_s):
            left_s = round(max(0.0, end_s - now_s), 3)
            return {"drill": [[node, start] for node, start in starts.items()], "left": left_s}


def decode(  # noqa: C901, PLR0912 - one for each kind
    body: Mapping[str, Json], now_s: float
) -> Message:
    """Decode a message.

    Raises:
        ValueError: the JSON is not a message.
    """
    message: Message
    match body:
        case {"pulses": list(heartbeats)}:
            gpus = NodeGpus.parse(body["gpus"]) if "gpus" in body else None
            found = tuple(_decode_heartbeat(each, now_s) for each in heartbeats)
            message = RankPositions(found, gpus)
        case {"told": cause}:
            message = CauseReported(_decode_cause(cause))
        case {"ask": True}:
            message = InspectRequest()
        case {"found": list(findings)}:
            message = InspectReply(tuple(_decode_finding(finding) for finding in findings))
        case {"end": cause}:
            message = StopAll(_decode_cause(cause))
        case {"bye": code}:
            message = NodeExited(_decode_int(code))
        case {"ended": bool(may_restart)}:
            message = RanksEnded(may_restart)
        case {"restart": bool(is_restart)}:
            message = RestartDecision(is_restart)
        case {"begin": list(starts)}:
            message = RanksBegin(dict(map(_decode_start, starts)))
        case {"waiting": list(requests)}:
            message = GroupRequests(tuple(map(_decode_request, requests)))
        case {"group": [generation, str(address), str(cause), list(hosted)]}:
            message = GroupDecision(
                GroupAnswer(
                    generation=_decode_int(generation),
                    address=address[:MAX_TEXT_CHARS],
                    cause=cause[:MAX_TEXT_CHARS],
                    hosted=tuple(map(_decode_int, hosted)),
                )
            )
        case {"ready": True}:
            message = RanksReady()
        case {"hosts": list(hosts)}:
            message = HostingDecision(dict(map(_decode_host, hosts)))
        case {"drill": list(starts), "left": int() | float() as left_s}:
            message = EndNodes(dict(map(_decode_start, starts)), now_s + _decode_age(left_s))
        case _:
            raise ValueError(f"not a message: {sorted(body)[:3]}")
    return message


def _encode_heartbeat(heartbeat: Heartbeat, now_s: float) -> Json:
    age_s = max(0.0, now_s - heartbeat.since_s)
    numbers = (heartbeat.rank, heartbeat.step, heartbeat.steps_here, heartbeat.agreements)
    return [*numbers, int(heartbeat.phase), heartbeat.is_waiting, round(age_s, 3)]


def _decode_heartbeat(raw: Json, now_s: float) -> Heartbeat:
    match raw:
        case [
            rank,
            step,
            steps_here,
            agreements,
            phase,
            bool(is_waiting),
            int() | float() as age_s,
        ]:
            return Heartbeat(
                rank=_decode_int(rank),
                phase=Phase(_decode_int(phase)),
                is_waiting=is_waiting,
                step=_decode_int(step),
                steps_here=_decode_int(steps_here),
                agreements=_decode_int(agreements),
                since_s=now_s - _decode_age(age_s),
            )
    raise ValueError("not a heartbeat")


def _encode_cause(cause: FailureCause) -> Json:
    flags = (cause.is_consequence, cause.has_rank_died, cause.is_node_lost)
    return [cause.exit_code, cause.step, cause.detail, *flags]


def _decode_cause(raw: Json) -> FailureCause:
    match raw:
        case [code, step, str(detail), bool(is_consequence), bool(has_rank_died), *more]:
            return FailureCause(
                _decode_int(code),
                _decode_int(step),
                detail[:MAX_TEXT_CHARS],
                is_consequence,
                has_rank_died,
                more == [True],  # Absent in the previous version.
            )
    raise ValueError("not a cause")


def _encode_finding(finding: RankInspection) -> Json:
    collectives: dict[str, Json] = dict(finding.collectives)
    return [finding.rank, finding.is_stopped, finding.location, finding.is_in_torch, collectives]


def _decode_finding(raw: Json) -> RankInspection:
    match raw:
        case [rank, bool(is_stopped), str(location), bool(is_in_torch), dict(collectives)]:
            return RankInspection(
                rank=_decode_int(rank),
                is_stopped=is_stopped,
                location=location[:MAX_TEXT_CHARS],
                is_in_torch=is_in_torch,
                collectives={group: _decode_int(begun) for group, begun in collectives.items()},
            )
    raise ValueError("not a finding")


def _encode_request(request: GroupRequest) -> Json:
    return [request.rank, request.generation, request.address, request.is_new, request.moves]


def _decode_request(raw: Json) -> GroupRequest:
    match raw:
        case [rank, generation, str(address), bool(is_new), bool(moves)]:
            return GroupRequest(
                rank=_decode_int(rank),
                generation=_decode_int(generation),
                address=address[:MAX_TEXT_CHARS],
                is_new=is_new,
                moves=moves,
            )
    raise ValueError("not a request")


def _decode_start(raw: Json) -> tuple[int, int]:
    match raw:
        case [node, start]:
            return _decode_int(node), _decode_int(start)
    raise ValueError("not a start")


def _decode_host(raw: Json) -> tuple[int, Host]:
    match raw:
        case [node, host, start]:
            return _decode_int(node), Host(_decode_int(host), _decode_int(start))
    raise ValueError("not a host")


def _decode_int(raw: Json) -> int:
    if not isinstance(raw, int) or not 0 <= raw < MAX_INTEGER:
        raise ValueError(f"{str(raw)[:20]} is not a count")
    return int(raw)


def _decode_age(raw: float) -> float:
    if not 0 <= raw < MAX_INTEGER:
        raise ValueError("not an age")
    return raw

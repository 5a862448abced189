"""Hang attribution: the rank for which the others wait, if none makes a step. Pure.

Ranks take part in the same collectives of Holdfast in the same order. A rank that reached fewer of them, or is in an
earlier phase before the next one, is behind, and the others wait for it. Ranks at the same position are distinguished by
their inspection: stopped from outside, fewer collectives begun than others, or outside of torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast_worker.watchdog.heartbeat import Heartbeat, Phase
from holdfast_worker.watchdog.stall import Stall

PHASE_TEXT: Final = {
    Phase.ABSENT: "it had not reached Run.start()",
    Phase.STARTING: "it was starting",
    Phase.RESTORING: "it was restoring a checkpoint",
    Phase.PREPARING: "it was in the script before its loop",
    Phase.SAVING: "it was taking a checkpoint",
    Phase.LOADING: "it was loading a batch",
    Phase.STEPPING: "it was in its step",
    Phase.FINISHED: "it had left the loop",
}
MAX_LISTED_RANKS: Final = 4
"""Ranks that a sentence describes.
A lower value omits more ranks; a higher value exceeds the length limit. Logs have all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RankInspection:
    """Inspection of one stalled rank."""

    rank: int
    is_stopped: bool = False
    """Whether a signal or a debugger stopped it."""
    location: str = ""
    """Location of its main thread as text; empty if unknown."""
    is_in_torch: bool = False
    """Whether that location is in torch."""
    collectives: Mapping[str, int] = field(default_factory=dict)
    """Number of collectives that it has begun, by process group; empty if unknown."""


@dataclass(frozen=True, slots=True)
class HangAttribution:
    """The ranks that are behind, and a sentence about them."""

    ranks: tuple[int, ...]
    """Blamed ranks; all ranks if they are at the same position."""
    sentence: str


def attribute_hang(
    stall: Stall,
    heartbeats: Sequence[Heartbeat],
    findings: Iterable[RankInspection],
    nodes: Mapping[int, int],
    *,
    is_whole: bool,
) -> HangAttribution:
    """Attribute a stall to ranks.

    `nodes` has the node of each rank; `is_whole`: `heartbeats` has all ranks.
    """
    found = {finding.rank: finding for finding in findings}
    suspects = _suspects(heartbeats, found)
    by_rank = {each.rank: each for each in heartbeats}
    others = [each.rank for each in heartbeats if each.rank not in suspects]
    how_long = f"for {_format_duration(stall.for_s)} after step {stall.step}"
    is_all_waiting = all(by_rank[rank].is_waiting for rank in suspects)
    if others or len(suspects) == 1:
        names = _format_ranks(suspects, nodes)
        sentence = f"{names} made no step {how_long}: {_describe_ranks(suspects, by_rank, found)}"
        if others:
            them = "it" if len(suspects) == 1 else "them"
            sentence += (
                f"; the other {'one' if len(others) == 1 else len(others)} waited for {them}"
            )
    else:
        sentence = f"no rank made a step {how_long}: {_describe_ranks(suspects, by_rank, found)}"
    if is_all_waiting and not is_whole:
        sentence += "; the state of ranks on other nodes is unknown"
    return HangAttribution(tuple(suspects), sentence)


def _suspects(heartbeats: Sequence[Heartbeat], found: Mapping[int, RankInspection]) -> list[int]:
    """The ranks that are behind all others, as far as they differ."""
    last = min(each.position for each in heartbeats)
    suspects = sorted(each.rank for each in heartbeats if each.position == last)
    here = [found[rank] for rank in suspects if rank in found]
    furthest = _furthest(found.values())
    # In this order: a stopped rank cannot continue, and a missing collective is recorded. The other criteria are only likely,
    # as a rank may be unable to reply, or be outside of torch by chance. They apply only if they mark less than half.
    few = len(suspects) // 2
    for marked, most in (
        ([finding.rank for finding in here if finding.is_stopped], len(suspects)),
        (
            [finding.rank for finding in here if _has_missing_collective(finding, furthest)],
            len(suspects),
        ),
        ([finding.rank for finding in here if furthest and not finding.collectives], few),
        ([finding.rank for finding in here if finding.location and not finding.is_in_torch], few),
    ):
        if 0 < len(marked) <= most:
            return marked
    return suspects


def _furthest(findings: Collection[RankInspection]) -> dict[str, int]:
    """The highest number of collectives that any rank has begun, by process group."""
    furthest: dict[str, int] = {}
    for finding in findings:
        for group, begun in finding.collectives.items():
            furthest[group] = max(begun, furthest.get(group, 0))
    return furthest


def _has_missing_collective(finding: RankInspection, furthest: Mapping[str, int]) -> bool:
    """Whether a different rank has begun a collective that this one has not.

    False without a record.
    """
    begun = finding.collectives
    return any(begun[group] < furthest[group] for group in begun)


def _describe_ranks(
    ranks: Sequence[int], by_rank: Mapping[int, Heartbeat], found: Mapping[int, RankInspection]
) -> str:
    """Describe the activity of these ranks."""
    if len(ranks) == 1:
        return _describe_rank(by_rank[ranks[0]], found.get(ranks[0]))
    parts = [
        _describe_rank(by_rank[rank], found.get(rank)).replace("it ", f"rank {rank} ", 1)
        for rank in ranks[:MAX_LISTED_RANKS]
    ]
    if len(ranks) > MAX_LISTED_RANKS:
        parts.append("and so on")
    return ", ".join(parts)


def _describe_rank(heartbeat: Heartbeat, finding: RankInspection | None) -> str:
    """Describe the activity of a rank, as a sentence with the subject "it"."""
    doing = "it waited for the others" if heartbeat.is_waiting else PHASE_TEXT[heartbeat.phase]
    if finding and finding.is_stopped:
        doing += ", stopped by a signal or a debugger"
    if finding and finding.location:
        doing += f", in {finding.location}"
    return doing


def _format_ranks(ranks: Sequence[int], nodes: Mapping[int, int]) -> str:
    """The ranks by number, with their node if the run has several."""
    found = sorted({nodes[rank] for rank in ranks if rank in nodes})
    where = f" on node {found[0]}" if len(set(nodes.values())) > 1 and len(found) == 1 else ""
    if len(ranks) == 1:
        return f"rank {ranks[0]}{where}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}{where}"


def _format_duration(for_s: float) -> str:
    """Format a duration as `15 min 4 s`, or as hours and minutes from one hour on."""
    minutes, seconds = divmod(round(for_s), 60)
    if minutes < 1:
        return f"{seconds} s"
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"

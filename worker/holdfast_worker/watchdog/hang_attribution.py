"""The culprit: which rank the others wait for, when none makes a step. Pure.

Ranks come to the same agreements in the same order. So whoever came to fewer of them, or is at an earlier phase before
the next one, is behind, and those ahead wait for it. Ranks at the same place are told apart by what was found out
about them: who was stopped from outside, who has begun fewer collectives than others, who is not in torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from holdfast_worker.watchdog.heartbeat import Heartbeat, Phase
from holdfast_worker.watchdog.stall import Stall

DOING: Final = {
    Phase.ABSENT: "it had not come to Run.start()",
    Phase.STARTING: "it was starting",
    Phase.RESTORING: "it was restoring a checkpoint",
    Phase.PREPARING: "it was in the script before its loop",
    Phase.SAVING: "it was taking a checkpoint",
    Phase.LOADING: "it was loading a batch",
    Phase.STEPPING: "it was in its step",
    Phase.OVER: "it had left the loop",
}
MOST_TOLD: Final = 4
"""Ranks of which is told what they did. More fill a sentence that is cut off anyway; the rest is in the logs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What was found out about one rank that stands still."""

    rank: int
    is_stopped: bool = False
    """By a signal or a debugger."""
    place: str = ""
    """Where its main thread was, in words; empty if that could not be seen."""
    is_in_torch: bool = False
    """Whether that is in torch."""
    collectives: Mapping[str, int] = field(default_factory=dict)
    """Collectives that it has begun, by process group; empty if it does not say."""


@dataclass(frozen=True, slots=True)
class HangAttribution:
    """Who is behind, and the sentence that says so."""

    culprits: tuple[int, ...]
    """Ranks; all of them if they cannot be told apart."""
    sentence: str


def attribute_hang(
    stall: Stall,
    pulses: Sequence[Heartbeat],
    findings: Iterable[Finding],
    homes: Mapping[int, int],
    *,
    is_whole: bool,
) -> HangAttribution:
    """Who is to blame for a stall. `homes` says on which node each rank is; `is_whole`, whether `pulses` are of all ranks."""
    found = {finding.rank: finding for finding in findings}
    suspects = _suspects(pulses, found)
    spoken = {pulse.rank: pulse for pulse in pulses}
    others = [pulse.rank for pulse in pulses if pulse.rank not in suspects]
    how_long = f"for {_span(stall.for_s)} after step {stall.step}"
    is_all_waiting = all(spoken[rank].is_waiting for rank in suspects)
    if others or len(suspects) == 1:
        who = _ranks(suspects, homes)
        told = f"{who} made no step {how_long}: {_doings(suspects, spoken, found)}"
        if others:
            them = "it" if len(suspects) == 1 else "them"
            told += f"; the other {'one' if len(others) == 1 else len(others)} waited for {them}"
    else:
        told = f"no rank made a step {how_long}: {_doings(suspects, spoken, found)}"
    if is_all_waiting and not is_whole:
        told += "; nothing is known of the ranks on other nodes"
    return HangAttribution(tuple(suspects), told)


def _suspects(pulses: Sequence[Heartbeat], found: Mapping[int, Finding]) -> list[int]:
    """The ranks that are behind all others, as far as they can be told apart."""
    last = min(pulse.position for pulse in pulses)
    suspects = sorted(pulse.rank for pulse in pulses if pulse.position == last)
    here = [found[rank] for rank in suspects if rank in found]
    furthest = _furthest(found.values())
    # In this order: who was stopped is not able to go on, who lags was recorded. The others are only likely: who is silent
    # may be kept from answering, who is outside of torch waits for nobody in there. That is said of few, not of most.
    few = len(suspects) // 2
    for marked, most in (
        ([finding.rank for finding in here if finding.is_stopped], len(suspects)),
        ([finding.rank for finding in here if _is_short(finding, furthest)], len(suspects)),
        ([finding.rank for finding in here if furthest and not finding.collectives], few),
        ([finding.rank for finding in here if finding.place and not finding.is_in_torch], few),
    ):
        if 0 < len(marked) <= most:
            return marked
    return suspects


def _furthest(findings: Collection[Finding]) -> dict[str, int]:
    """The most collectives that any rank has begun, by process group."""
    furthest: dict[str, int] = {}
    for finding in findings:
        for group, begun in finding.collectives.items():
            furthest[group] = max(begun, furthest.get(group, 0))
    return furthest


def _is_short(finding: Finding, furthest: Mapping[str, int]) -> bool:
    """Whether another rank has begun a collective that this one has not. Who does not say anything is not accused."""
    told = finding.collectives
    return any(told[group] < furthest[group] for group in told)


def _doings(
    ranks: Sequence[int], spoken: Mapping[int, Heartbeat], found: Mapping[int, Finding]
) -> str:
    """What these ranks did."""
    if len(ranks) == 1:
        return _doing(spoken[ranks[0]], found.get(ranks[0]))
    told = [
        _doing(spoken[rank], found.get(rank)).replace("it ", f"rank {rank} ", 1)
        for rank in ranks[:MOST_TOLD]
    ]
    if len(ranks) > MOST_TOLD:
        told.append("and so on")
    return ", ".join(told)


def _doing(pulse: Heartbeat, finding: Finding | None) -> str:
    """What a rank did, as a sentence about "it"."""
    doing = "it waited for the others" if pulse.is_waiting else DOING[pulse.phase]
    if finding and finding.is_stopped:
        doing += ", stopped by a signal or a debugger"
    if finding and finding.place:
        doing += f", in {finding.place}"
    return doing


def _ranks(ranks: Sequence[int], homes: Mapping[int, int]) -> str:
    """These ranks by name, with their nodes if there are several."""
    nodes = sorted({homes[rank] for rank in ranks if rank in homes})
    where = f" on node {nodes[0]}" if len(set(homes.values())) > 1 and len(nodes) == 1 else ""
    if len(ranks) == 1:
        return f"rank {ranks[0]}{where}"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}{where}"


def _span(for_s: float) -> str:
    """`15 min 4 s`, and less exactly what is longer."""
    minutes, seconds = divmod(round(for_s), 60)
    if minutes < 1:
        return f"{seconds} s"
    if minutes < 60:
        return f"{minutes} min {seconds} s"
    return f"{minutes // 60} h {minutes % 60} min"

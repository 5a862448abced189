"""Hints: what the trouble of a job looks like, and what to do about it, from all that is known of it. Pure.

A hint is a guess that names its evidence. It changes nothing, and nothing follows from it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from holdfast_worker.protocol.environment import Exit

from holdfast.domain.diagnostics.known_failures import ADVICE, FailurePattern, match_failure
from holdfast.domain.diagnostics.run_health import findings
from holdfast.domain.events import (
    CapacityLost,
    Cause,
    CheckpointCommitted,
    Event,
    Finished,
    Outcome,
    RunDescribed,
    TrainingStarted,
    WorkerLeft,
)
from holdfast.domain.jobs.reports import Point

LONGEST_LINE: Final = 400
"""Characters of a line that are looked at and shown. Fewer cut the words that matter, more make an answer heavy."""
MOST_EVIDENCE: Final = 4
"""Of one hint. More fill a page with what one rank after the other says, fewer hide that several do."""
_RANK: Final = re.compile(r"^\[?(?:\[RANK |\[rank |\[rank|rank[ -]?)(\d+)\b", re.IGNORECASE)
"""How torch, and many scripts, begin a line of a rank."""
_BY_EXIT: Final = {
    Exit.APART: FailurePattern.DESYNC,
    Exit.STALLED: FailurePattern.HANG,
    137: FailurePattern.HOST_MEMORY,
    -9: FailurePattern.HOST_MEMORY,
}


@dataclass(frozen=True, slots=True)
class Printed:
    """Some of what a node or a rank printed."""

    attempt: int
    node: int
    rank: int | None
    """None for what the node itself printed, where several ranks may stand in one log."""
    text: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """From what a hint follows."""

    attempt: int
    text: str
    node: int | None = None
    """None for what is known without a log, as is the rank."""
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Hint:
    """What it looks like, and what to do."""

    trouble: FailurePattern
    looks: str
    remedy: str
    page: str
    """Of the documentation, below `docs`; empty where none says more."""
    evidence: tuple[Evidence, ...] = ()


@dataclass
class _Case:
    """Troubles with their evidence, in the order in which they were found."""

    world_size: int
    found: dict[FailurePattern, list[Evidence]] = field(default_factory=dict)

    def add(self, trouble: FailurePattern, evidence: Evidence) -> None:
        self.found.setdefault(trouble, []).append(evidence)

    def read(self, text: str, attempt: int, node: int | None, rank: int | None) -> None:
        """Look for signs in what was printed."""
        for raw in text.splitlines():
            line = raw.strip()[:LONGEST_LINE]
            if trouble := match_failure(line):
                told = _RANK.match(line)
                who = int(told[1]) if told and rank is None else rank
                self.add(trouble, Evidence(attempt, line, node, who))


def failed_attempt(facts: Iterable[Event]) -> int | None:
    """The newest attempt whose own program failed, whose logs are worth reading; None: none did."""
    failed, newest = None, 0
    for fact in facts:
        newest = max(newest, getattr(fact, "attempt", 0))
        match fact:
            case CapacityLost(cause=Cause.USER_ERROR, attempt=attempt):
                failed = attempt
            case Finished(outcome=Outcome.FAILED):
                failed = newest or None
            case _:
                pass
    return failed


def hints(
    facts: Sequence[Event], points: Sequence[Point], printed: Iterable[Printed] = ()
) -> list[Hint]:
    """What the trouble looks like, the most certain first; empty where nothing is known to be wrong.

    `points` are the newest of the job, oldest first. `printed` is of the attempt that failed, or of the newest.
    """
    case = _Case(_world_size(facts))
    _of_ends(case, facts)
    for log in printed:
        case.read(log.text, log.attempt, log.node, log.rank)
    _of_result(case, facts)
    _of_manifest(case, facts)
    for trouble, attempt, words in findings(points):
        case.add(trouble, Evidence(attempt, words))
    if FailurePattern.SLOW_LOADING in case.found:
        _of_loader(case, facts)
    return [_hint(trouble, evidence, case) for trouble, evidence in case.found.items()]


def _of_ends(case: _Case, facts: Iterable[Event]) -> None:
    """By what was said of the newest failure, and of no older one: it may have been mended."""
    failed = failed_attempt(facts)
    for fact in facts:
        match fact:
            case WorkerLeft(attempt=attempt, exit_code=code, detail=detail) if attempt == failed:
                if trouble := _BY_EXIT.get(code):
                    case.add(trouble, Evidence(attempt, f"exit code {code}: {detail}"))
                case.read(detail, attempt, None, None)
            case CapacityLost(attempt=attempt, detail=detail) if attempt == failed:
                case.read(detail, attempt, None, None)
            case Finished(outcome=Outcome.FAILED, exit_code=code, detail=detail):
                trouble = _BY_EXIT.get(code) if code is not None else None
                if trouble and trouble not in case.found:
                    case.add(trouble, Evidence(failed or 0, f"exit code {code}: {detail}"))
                if not case.found:
                    case.read(detail, failed or 0, None, None)
            case _:
                pass


def _of_result(case: _Case, facts: Sequence[Event]) -> None:
    succeeded = [f for f in facts if isinstance(f, Finished) and f.outcome is Outcome.SUCCEEDED]
    if succeeded and not any(isinstance(fact, CheckpointCommitted) for fact in facts):
        newest = max((f.attempt for f in facts if isinstance(f, TrainingStarted)), default=0)
        case.add(
            FailurePattern.NOT_SAVED, Evidence(newest, "it has succeeded without a checkpoint")
        )


def _of_manifest(case: _Case, facts: Sequence[Event]) -> None:
    """By what the newest attempt told of itself and its first node."""
    told = next((f for f in reversed(facts) if isinstance(f, RunDescribed)), None)
    if told is None:
        return
    transport = told.manifest.get("nccl_transport")
    if isinstance(transport, str) and transport.endswith("Socket"):
        case.add(FailurePattern.SOCKETS, Evidence(told.attempt, f"NCCL took {transport}"))
    _of_threads(case, told)


def _of_loader(case: _Case, facts: Sequence[Event]) -> None:
    """By how the newest attempt loads what it waits for."""
    told = next((f for f in reversed(facts) if isinstance(f, RunDescribed)), None)
    loader = told.manifest.get("loader") if told else None
    if told and isinstance(loader, Mapping):
        ways = {"num_workers": 0, "pin_memory": False}
        poor = [
            f"{name}={loader[name]}" for name, value in ways.items() if loader.get(name, 1) == value
        ]
        if poor:
            words = f"its loader has {' and '.join(poor)}"
            case.add(FailurePattern.SLOW_LOADING, Evidence(told.attempt, words, node=0))


def _of_threads(case: _Case, told: RunDescribed) -> None:
    threads, cpus = _threads(told.manifest), told.manifest.get("cpus")
    ranks, nodes = told.manifest.get("world_size"), told.manifest.get("nodes")
    if not (
        threads and isinstance(cpus, int) and isinstance(ranks, int) and isinstance(nodes, int)
    ):
        return
    local = -(-ranks // max(1, nodes))
    if local * threads > cpus:
        words = f"{local} ranks on a node with OMP_NUM_THREADS={threads}, and {cpus} cores"
        case.add(FailurePattern.TOO_MANY_THREADS, Evidence(told.attempt, words))


def _threads(manifest: Mapping[str, Any]) -> int | None:
    environment = manifest.get("environment")
    told = environment.get("OMP_NUM_THREADS") if isinstance(environment, Mapping) else None
    return int(told) if isinstance(told, str) and told.isdecimal() and len(told) < 6 else None


def _world_size(facts: Sequence[Event]) -> int:
    """Ranks of the newest attempt that trained; 0 where none did."""
    told = (f.world_size for f in reversed(facts) if isinstance(f, TrainingStarted))
    return next(told, 0)


def _hint(trouble: FailurePattern, evidence: Sequence[Evidence], case: _Case) -> Hint:
    advice = ADVICE[trouble]
    looks, remedy = advice.looks, advice.remedy
    if trouble is FailurePattern.GPU_MEMORY:
        looks, remedy = _of_memory(evidence, case.world_size) or (looks, remedy)
    return Hint(trouble, looks, remedy, advice.page, tuple(_one_each(evidence)))


def _of_memory(evidence: Sequence[Evidence], world_size: int) -> tuple[str, str] | None:
    """Other words where only some ranks ran out of memory; None where all did, or nobody knows which."""
    ranks = sorted({one.rank for one in evidence if one.rank is not None})
    if not ranks or len(ranks) >= world_size:
        return None
    who = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    return (
        f"The GPU of {who} ran out of memory, and those of the other {world_size - len(ranks)} ranks did not.",
        "Their batches are bigger: pad or bucket sequences by length, and look whether the sampler divides the data evenly.",
    )


def _one_each(evidence: Sequence[Evidence]) -> Iterator[Evidence]:
    """The first of each rank, and of what is of no rank the first of each node; a few of them say it all."""
    seen: set[tuple[int | None, int | None]] = set()
    for one in evidence:
        who = (one.rank, one.node if one.rank is None else None)
        if who not in seen and len(seen) < MOST_EVIDENCE:
            seen.add(who)
            yield one

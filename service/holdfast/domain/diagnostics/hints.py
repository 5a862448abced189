"""Hints: likely causes of a job's problems, with remedies. Pure.

They are derived from events, metrics and logs. A hint is a guess with its evidence. Hints are
displayed only; job state does not depend on them.
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
    GpuUnhealthy,
    Outcome,
    RunDescribed,
    TrainingStarted,
    WorkerLeft,
)
from holdfast.domain.jobs.reports import Point

MAX_LINE_CHARS: Final = 400
"""Characters of a line that are searched and shown. A lower value cuts relevant text; a higher value enlarges responses."""
MAX_EVIDENCE: Final = 4
"""Evidence entries of one hint. A higher value repeats the same line for many ranks; a lower value hides that several are affected."""
_RANK: Final = re.compile(r"^\[?(?:\[RANK |\[rank |\[rank|rank[ -]?)(\d+)\b", re.IGNORECASE)
"""Line prefix with the rank number, as printed by torch and many scripts."""
_BY_EXIT: Final = {
    Exit.APART: FailurePattern.DESYNC,
    Exit.STALLED: FailurePattern.HANG,
    137: FailurePattern.HOST_MEMORY,
    -9: FailurePattern.HOST_MEMORY,
}


@dataclass(frozen=True, slots=True)
class LogExcerpt:
    """An excerpt of the log of a node or a rank."""

    attempt: int
    node: int
    rank: int | None
    """None for a node's log, which may contain lines of several ranks."""
    text: str


@dataclass(frozen=True, slots=True)
class Evidence:
    """A log line or measurement that supports a hint."""

    attempt: int
    text: str
    node: int | None = None
    """None if the evidence is not from a log; the same holds for `rank`."""
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Hint:
    """A likely problem with its remedy and evidence."""

    pattern: FailurePattern
    symptom: str
    remedy: str
    page: str
    """Documentation page below `docs`; empty without one."""
    evidence: tuple[Evidence, ...] = ()


@dataclass
class _Diagnosis:
    """Failure patterns found so far with their evidence, in order of discovery."""

    world_size: int
    found: dict[FailurePattern, list[Evidence]] = field(default_factory=dict)

    def add(self, pattern: FailurePattern, evidence: Evidence) -> None:
        self.found.setdefault(pattern, []).append(evidence)

    def scan(self, text: str, attempt: int, node: int | None, rank: int | None) -> None:
        """Match known failures against each line of a log."""
        for raw in text.splitlines():
            line = raw.strip()[:MAX_LINE_CHARS]
            if pattern := match_failure(line):
                prefix = _RANK.match(line)
                found_rank = int(prefix[1]) if prefix and rank is None else rank
                self.add(pattern, Evidence(attempt, line, node, found_rank))


def failed_attempt(facts: Iterable[Event]) -> int | None:
    """The newest attempt whose program failed; None if no program failed."""
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


def find_hints(
    facts: Sequence[Event], points: Sequence[Point], logs: Iterable[LogExcerpt] = ()
) -> list[Hint]:
    """Hints for a job, the most certain first; empty if no known pattern matches.

    `points` are the newest of the job, oldest first. `logs` are of the failed attempt, or else of the newest.
    """
    case = _Diagnosis(_world_size(facts))
    _check_gpus(case, facts)
    _check_exits(case, facts)
    for log in logs:
        case.scan(log.text, log.attempt, log.node, log.rank)
    _check_result(case, facts)
    _check_manifest(case, facts)
    for pattern, attempt, text in findings(points):
        case.add(pattern, Evidence(attempt, text))
    if FailurePattern.SLOW_LOADING in case.found:
        _check_loader(case, facts)
    return [_hint(pattern, evidence, case) for pattern, evidence in case.found.items()]


def _check_gpus(case: _Diagnosis, facts: Sequence[Event]) -> None:
    """Name faulty GPUs of the failed attempt, or else of the newest: they cause other errors."""
    found = [fact for fact in facts if isinstance(fact, GpuUnhealthy)]
    newest = max((getattr(fact, "attempt", 0) for fact in facts), default=0)
    attempt = failed_attempt(facts) or newest
    # The last event of a GPU has all its faults.
    newest_of = {(fact.node, fact.gpu): fact for fact in found if fact.attempt == attempt}
    for fact in newest_of.values():
        case.add(FailurePattern.GPU_BROKEN, Evidence(attempt, fact.sentence, fact.node))


def _check_exits(case: _Diagnosis, facts: Iterable[Event]) -> None:
    """Match the exit of the newest failure only; causes of older ones may have been corrected."""
    failed = failed_attempt(facts)
    for fact in facts:
        match fact:
            case WorkerLeft(attempt=attempt, exit_code=code, detail=detail) if attempt == failed:
                if pattern := _BY_EXIT.get(code):
                    case.add(pattern, Evidence(attempt, f"exit code {code}: {detail}"))
                case.scan(detail, attempt, None, None)
            case CapacityLost(attempt=attempt, detail=detail) if attempt == failed:
                case.scan(detail, attempt, None, None)
            case Finished(outcome=Outcome.FAILED, exit_code=code, detail=detail):
                pattern = _BY_EXIT.get(code) if code is not None else None
                if pattern and pattern not in case.found:
                    case.add(pattern, Evidence(failed or 0, f"exit code {code}: {detail}"))
                if not case.found:
                    case.scan(detail, failed or 0, None, None)
            case _:
                pass


def _check_result(case: _Diagnosis, facts: Sequence[Event]) -> None:
    succeeded = [f for f in facts if isinstance(f, Finished) and f.outcome is Outcome.SUCCEEDED]
    if succeeded and not any(isinstance(fact, CheckpointCommitted) for fact in facts):
        newest = max((f.attempt for f in facts if isinstance(f, TrainingStarted)), default=0)
        case.add(
            FailurePattern.NOT_SAVED, Evidence(newest, "the job succeeded without a checkpoint")
        )


def _check_manifest(case: _Diagnosis, facts: Sequence[Event]) -> None:
    """Check the manifest of the newest attempt: NCCL transport and threads."""
    described = next((f for f in reversed(facts) if isinstance(f, RunDescribed)), None)
    if described is None:
        return
    transport = described.manifest.get("nccl_transport")
    if isinstance(transport, str) and transport.endswith("Socket"):
        case.add(FailurePattern.SOCKETS, Evidence(described.attempt, f"NCCL uses {transport}"))
    _check_threads(case, described)


def _check_loader(case: _Diagnosis, facts: Sequence[Event]) -> None:
    """Add the slow options of the newest attempt's data loader."""
    described = next((f for f in reversed(facts) if isinstance(f, RunDescribed)), None)
    loader = described.manifest.get("loader") if described else None
    if described and isinstance(loader, Mapping):
        slow = {"num_workers": 0, "pin_memory": False}
        poor = [
            f"{name}={loader[name]}" for name, value in slow.items() if loader.get(name, 1) == value
        ]
        if poor:
            text = f"the data loader has {' and '.join(poor)}"
            case.add(FailurePattern.SLOW_LOADING, Evidence(described.attempt, text, node=0))


def _check_threads(case: _Diagnosis, described: RunDescribed) -> None:
    threads, cpus = _threads(described.manifest), described.manifest.get("cpus")
    ranks, nodes = described.manifest.get("world_size"), described.manifest.get("nodes")
    if not (
        threads and isinstance(cpus, int) and isinstance(ranks, int) and isinstance(nodes, int)
    ):
        return
    local = -(-ranks // max(1, nodes))
    if local * threads > cpus:
        text = f"{local} ranks on a node with OMP_NUM_THREADS={threads} and {cpus} cores"
        case.add(FailurePattern.TOO_MANY_THREADS, Evidence(described.attempt, text))


def _threads(manifest: Mapping[str, Any]) -> int | None:
    environment = manifest.get("environment")
    threads = environment.get("OMP_NUM_THREADS") if isinstance(environment, Mapping) else None
    if isinstance(threads, str) and threads.isdecimal() and len(threads) < 6:
        return int(threads)
    return None


def _world_size(facts: Sequence[Event]) -> int:
    """Ranks of the newest attempt that trained; 0 if none did."""
    sizes = (f.world_size for f in reversed(facts) if isinstance(f, TrainingStarted))
    return next(sizes, 0)


def _hint(pattern: FailurePattern, evidence: Sequence[Evidence], case: _Diagnosis) -> Hint:
    advice = ADVICE[pattern]
    symptom, remedy = advice.symptom, advice.remedy
    if pattern is FailurePattern.GPU_MEMORY:
        symptom, remedy = _memory_advice(evidence, case.world_size) or (symptom, remedy)
    return Hint(pattern, symptom, remedy, advice.page, tuple(_sample_evidence(evidence)))


def _memory_advice(evidence: Sequence[Evidence], world_size: int) -> tuple[str, str] | None:
    """Advice if only some ranks ran out of memory; None if all did or the ranks are unknown."""
    ranks = sorted({one.rank for one in evidence if one.rank is not None})
    if not ranks or len(ranks) >= world_size:
        return None
    which = f"rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))}"
    return (
        f"The GPU of {which} ran out of memory; the other {world_size - len(ranks)} ranks did not.",
        "Their batches are larger: pad or bucket sequences by length, and check that the sampler divides the data evenly.",
    )


def _sample_evidence(evidence: Sequence[Evidence]) -> Iterator[Evidence]:
    """The first evidence of each rank, or of each node if unknown, up to `MAX_EVIDENCE`."""
    seen: set[tuple[int | None, int | None]] = set()
    for one in evidence:
        source = (one.rank, one.node if one.rank is None else None)
        if source not in seen and len(seen) < MAX_EVIDENCE:
            seen.add(source)
            yield one

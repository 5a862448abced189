"""Phases of an attempt's provisioned time: consecutive spans, each of one phase.

setup | restore | useful, with stalls in it | lost | stalled
      ^ the program is up                   ^      ^ the worker has left
                ^ training starts           ^ the newest state that was or may be reused

Where ranks failed and started again on the nodes of the attempt, these phases follow each other once for each start.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from holdfast.domain.attempts import Attempt, RankStart
from holdfast.domain.billing.rate import RateSchedule, to_ms
from holdfast.domain.events import (
    CheckpointCommitted,
    EventBase,
    RanksReplaced,
    TrainingStarted,
)


class Phase(StrEnum):
    """Use of provisioned time."""

    SETUP = "setup"
    RESTORE = "restore"
    USEFUL = "useful"
    STALLED = "stalled"
    LOST = "lost"
    UNMEASURED = "unmeasured"


@dataclass(frozen=True, kw_only=True, slots=True)
class Phases:
    """Amounts by phase: milliseconds or micro-dollars."""

    setup: int = 0
    restore: int = 0
    useful: int = 0
    stalled: int = 0
    """Nodes ran without progress: snapshots, waits for replaced ranks, and the time after the worker
    exited."""
    lost: int = 0
    unmeasured: int = 0
    """The program sent no reports, so its progress is unknown."""

    @property
    def total(self) -> int:
        """Sum of all phases."""
        return self.measured + self.unmeasured

    @property
    def measured(self) -> int:
        """Sum of all phases with reports."""
        return self.setup + self.restore + self.useful + self.stalled + self.lost

    @property
    def wasted(self) -> int:
        """Sum of the phases without durable progress."""
        return self.measured - self.useful

    @property
    def goodput(self) -> float | None:
        """Useful share of the measured amount, 0 to 1; None if nothing was measured."""
        return self.useful / self.measured if self.measured else None

    def __add__(self, other: Phases) -> Phases:
        return Phases(
            setup=self.setup + other.setup,
            restore=self.restore + other.restore,
            useful=self.useful + other.useful,
            stalled=self.stalled + other.stalled,
            lost=self.lost + other.lost,
            unmeasured=self.unmeasured + other.unmeasured,
        )


@dataclass(frozen=True, slots=True)
class Span:
    """A span of one phase, in milliseconds since 1970."""

    phase: Phase
    begin_ms: int
    end_ms: int


def duration_by_phase(spans: Iterable[Span]) -> Phases:
    """Milliseconds by phase."""
    ms = dict.fromkeys(Phase, 0)
    for span in spans:
        ms[span.phase] += span.end_ms - span.begin_ms
    return _to_phases(ms)


def useful_ms_within(spans: Iterable[Span], times: Sequence[tuple[int, int]]) -> int:
    """Milliseconds of the useful spans within some times, each with its begin and end."""
    return sum(
        max(0, min(span.end_ms, end_ms) - max(span.begin_ms, begin_ms))
        for span in spans
        for begin_ms, end_ms in times
        if span.phase is Phase.USEFUL
    )


def cost_by_phase(spans: Sequence[Span], tariff: RateSchedule, begin_ms: int) -> Phases:
    """Micro-dollars by phase for nodes provisioned at `begin_ms`.

    They add up to the cost of the whole time.
    """
    micros = dict.fromkeys(Phase, 0)
    before = tariff.micros_at(begin_ms, [span.begin_ms for span in spans])
    after = tariff.micros_at(begin_ms, [span.end_ms for span in spans])
    for span, paid, had in zip(spans, after, before, strict=True):
        micros[span.phase] += paid - had
    return _to_phases(micros)


def _to_phases(amounts: dict[Phase, int]) -> Phases:
    return Phases(
        setup=amounts[Phase.SETUP],
        restore=amounts[Phase.RESTORE],
        useful=amounts[Phase.USEFUL],
        stalled=amounts[Phase.STALLED],
        lost=amounts[Phase.LOST],
        unmeasured=amounts[Phase.UNMEASURED],
    )


def phase_spans(attempt: Attempt, kept: Sequence[float], start: int, end: int) -> tuple[Span, ...]:
    """The phases of an attempt in order. Worker timestamps are clamped to the time of the nodes.

    `kept` has the step up to which the work of each start of its ranks counts; infinite if no work was lost.
    """
    spans: list[Span] = []
    following = (*(ranks.training for ranks in attempt.starts[1:]), None)
    for ranks, steps, resumed in zip(attempt.starts, kept, following, strict=True):
        ended = end if ranks.restart is None else min(max(to_ms(ranks.restart.at), start), end)
        spans += _spans_of_start(ranks, steps, resumed, start, ended)
        start = ended
    return _merge_adjacent(spans)


def _spans_of_start(
    ranks: RankStart, kept: float, resumed: TrainingStarted | None, start: int, end: int
) -> tuple[Span, ...]:
    """`resumed`: the next start of the same ranks, if they have trained again."""

    def when(fact: EventBase | None, low: int) -> int:
        return end if fact is None else min(max(to_ms(fact.at), low), end)

    training = ranks.training
    restored = when(ranks.restore or training, start)
    trained = when(training, restored)
    setup = Span(Phase.SETUP, start, restored), Span(Phase.RESTORE, restored, trained)
    if training is None:
        # The program started but never trained: any time after startup was restore.
        return setup
    left = when(ranks.worker_exit, trained)
    safe = [c for c in ranks.checkpoints if c.step <= kept]
    is_fully_reported = ranks.worker_exit is not None and kept >= (ranks.last_step or 0)
    if (
        kept == math.inf or is_fully_reported
    ):  # A worker killed without a report may have made more steps.
        keep = left
    elif resumed and resumed.held_at and resumed.step == kept:
        keep = min(max(to_ms(resumed.held_at), trained), left)
    elif safe and kept > training.step:
        newest = max(safe, key=lambda c: c.step)
        keep = min(max(to_ms(newest.snapshot_at) + newest.stall_ms, trained), left)
    else:
        keep = trained
    return (
        *setup,
        *_with_stalls(_stalls(safe, ranks.replacements), trained, keep),
        Span(Phase.LOST, keep, left),
        Span(Phase.STALLED, left, end),
    )


def unreported(attempt: Attempt, start: int, end: int) -> tuple[Span, ...]:
    """Time of a program without reports.

    It is lost with its nodes, because the program restarts, or else unmeasured.
    """
    return _merge_adjacent([Span(Phase.LOST if attempt.cause else Phase.UNMEASURED, start, end)])


def _stalls(
    saved: Iterable[CheckpointCommitted], replaced: Iterable[RanksReplaced]
) -> Iterator[tuple[int, int]]:
    """Begin and length of each snapshot, and of each wait for replaced ranks."""
    for snapshot in saved:
        yield to_ms(snapshot.snapshot_at), snapshot.stall_ms
    for replacement in replaced:
        yield to_ms(replacement.at) - replacement.paused_ms, replacement.paused_ms


def _with_stalls(stalls: Iterable[tuple[int, int]], begin_ms: int, end_ms: int) -> Iterator[Span]:
    """Useful time split by its stalls. Overlapping stalls count once."""
    at = begin_ms
    for begun_ms, stall_ms in sorted(stalls):
        begin = min(max(begun_ms, at), end_ms)
        end = min(max(begun_ms + stall_ms, begin), end_ms)
        yield Span(Phase.USEFUL, at, begin)
        yield Span(Phase.STALLED, begin, end)
        at = end
    yield Span(Phase.USEFUL, at, end_ms)


def _merge_adjacent(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Drop empty spans and merge adjacent spans of one phase."""
    filled: list[Span] = []
    for span in spans:
        if span.end_ms <= span.begin_ms:
            continue
        if filled and filled[-1].phase is span.phase:
            filled[-1] = Span(span.phase, filled[-1].begin_ms, span.end_ms)
        else:
            filled.append(span)
    return tuple(filled)

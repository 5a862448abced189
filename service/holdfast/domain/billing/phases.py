"""What the provisioned time of an attempt was spent on: spans without a gap, each of one phase.

setup | restore | useful, with stalls in it | lost | stalled
      ^ the program is up                   ^      ^ the worker has left
                ^ training starts           ^ the newest state that was used again, or may be
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from holdfast.domain.attempts import Attempt
from holdfast.domain.billing.rate import RateSchedule, to_ms
from holdfast.domain.events import CheckpointCommitted, EventBase


class Phase(StrEnum):
    """What a moment of provisioned time was."""

    SETUP = "setup"
    RESTORE = "restore"
    USEFUL = "useful"
    STALLED = "stalled"
    LOST = "lost"
    UNMEASURED = "unmeasured"


@dataclass(frozen=True, kw_only=True, slots=True)
class Phases:
    """Amounts by phase of a provisioned time: milliseconds, or micro-dollars."""

    setup: int = 0
    restore: int = 0
    useful: int = 0
    stalled: int = 0
    """Nodes stood without stepping forward: snapshots, and the time after the worker left."""
    lost: int = 0
    unmeasured: int = 0
    """The program has reported nothing, so that its progress is unknown."""

    @property
    def total(self) -> int:
        """All of it."""
        return self.measured + self.unmeasured

    @property
    def measured(self) -> int:
        """All phases of a program that reports."""
        return self.setup + self.restore + self.useful + self.stalled + self.lost

    @property
    def wasted(self) -> int:
        """What is known to have produced no durable step."""
        return self.measured - self.useful

    @property
    def goodput(self) -> float | None:
        """Useful share of what was measured, 0 to 1; None where nothing was."""
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
    """Some milliseconds since 1970 that were all of one phase."""

    phase: Phase
    begin_ms: int
    end_ms: int


def lasted(spans: Iterable[Span]) -> Phases:
    """Milliseconds by phase."""
    ms = dict.fromkeys(Phase, 0)
    for span in spans:
        ms[span.phase] += span.end_ms - span.begin_ms
    return _phases(ms)


def cost(spans: Sequence[Span], tariff: RateSchedule, begin_ms: int) -> Phases:
    """Micro-dollars by phase, for nodes that came at `begin_ms`. They add up to what the whole time costs."""
    micros = dict.fromkeys(Phase, 0)
    before = tariff.micros_at(begin_ms, [span.begin_ms for span in spans])
    after = tariff.micros_at(begin_ms, [span.end_ms for span in spans])
    for span, paid, had in zip(spans, after, before, strict=True):
        micros[span.phase] += paid - had
    return _phases(micros)


def _phases(amounts: dict[Phase, int]) -> Phases:
    return Phases(
        setup=amounts[Phase.SETUP],
        restore=amounts[Phase.RESTORE],
        useful=amounts[Phase.USEFUL],
        stalled=amounts[Phase.STALLED],
        lost=amounts[Phase.LOST],
        unmeasured=amounts[Phase.UNMEASURED],
    )


def phase_spans(attempt: Attempt, kept: float, start: int, end: int) -> tuple[Span, ...]:
    """The provisioned time of an attempt in order. Times of the worker are held within those of its nodes.

    `kept` is the step up to which its work counts; infinite where nothing of it was lost.
    """

    def when(fact: EventBase | None, low: int) -> int:
        return end if fact is None else min(max(to_ms(fact.at), low), end)

    training = attempt.training
    restored = when(attempt.restore or training, start)
    trained = when(training, restored)
    setup = Span(Phase.SETUP, start, restored), Span(Phase.RESTORE, restored, trained)
    if training is None:
        # It came up and never trained: looking for a checkpoint was all it did, if it did that.
        return _filled(setup)
    left = when(attempt.left, trained)
    safe = [c for c in attempt.checkpoints if c.step <= kept]
    all_told = attempt.left is not None and kept >= (attempt.last_step or 0)
    if kept == math.inf or all_told:  # Who was killed without a word may have gone further.
        keep = left
    elif safe and kept > training.step:
        newest = max(safe, key=lambda c: c.step)
        keep = min(max(to_ms(newest.snapshot_at) + newest.stall_ms, trained), left)
    else:
        keep = trained
    return _filled(
        (
            *setup,
            *_with_stalls(safe, trained, keep),
            Span(Phase.LOST, keep, left),
            Span(Phase.STALLED, left, end),
        )
    )


def unreported(attempt: Attempt, start: int, end: int) -> tuple[Span, ...]:
    """The time of a program that has reported nothing: lost with its nodes, as it then starts over, else unmeasured."""
    return _filled([Span(Phase.LOST if attempt.cause else Phase.UNMEASURED, start, end)])


def _with_stalls(
    saved: Iterable[CheckpointCommitted], begin_ms: int, end_ms: int
) -> Iterator[Span]:
    """Useful time with the snapshots in it. What two of them say of one moment counts once."""
    at = begin_ms
    for snapshot in sorted(saved, key=lambda c: c.snapshot_at):
        begin = min(max(to_ms(snapshot.snapshot_at), at), end_ms)
        end = min(max(to_ms(snapshot.snapshot_at) + snapshot.stall_ms, begin), end_ms)
        yield Span(Phase.USEFUL, at, begin)
        yield Span(Phase.STALLED, begin, end)
        at = end
    yield Span(Phase.USEFUL, at, end_ms)


def _filled(spans: Sequence[Span]) -> tuple[Span, ...]:
    """Without those of no length; those of one phase that touch are one."""
    filled: list[Span] = []
    for span in spans:
        if span.end_ms <= span.begin_ms:
            continue
        if filled and filled[-1].phase is span.phase:
            filled[-1] = Span(span.phase, filled[-1].begin_ms, span.end_ms)
        else:
            filled.append(span)
    return tuple(filled)

"""The story of a job in sentences, for whoever asks why: what matters most first, then all in order. Pure.

Every sentence follows from facts and the bill. Money that is simulated or estimated is marked with `~`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from holdfast.domain.attempts import Attempt, gather
from holdfast.domain.billing.ledger import AttemptBill, Bill, step_of
from holdfast.domain.billing.rate import to_ms
from holdfast.domain.events import (
    CancelRequested,
    CapacityDenied,
    Cause,
    CleanupFailed,
    Event,
    Finished,
    GuardTripped,
    LimitsChanged,
    Outcome,
    Paused,
    PauseRequested,
    ResumeRequested,
    RunsCompared,
    Submitted,
)
from holdfast.domain.jobfile.limits import MICROS_PER_USD
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs.job import Job, State

CAUSE_TEXT: Final = {
    Cause.PREEMPTED: "the market took its nodes",
    Cause.NODE_FAILED: "its nodes were gone without a word",
    Cause.LAUNCHER_RESTARTED: "its launcher was restarted and gave the nodes up",
    Cause.LAUNCHER_FORGOT: "its launcher no longer knew of it",
    Cause.USER_ERROR: "its own program failed",
    Cause.PAUSED: "its nodes were given back, as it was to pause",
}


@dataclass(frozen=True, slots=True)
class Sentence:
    """One thing that happened, or is so."""

    at: datetime | None
    """When; None for what is so now."""
    text: str


def timeline(job: Job, facts: Sequence[Event], account: Bill) -> list[Sentence]:
    """The story so far. The first sentence says how it stands, the second what it cost; the others are in order."""
    attempts = gather(facts, {})
    forebear = _forebear(facts)
    happened = [
        *_asked(facts),
        *_denied(facts, attempts),
        *(
            sentence
            for attempt, item in zip(attempts, account.attempts, strict=True)
            for sentence in _lived(attempt, item, forebear)
        ),
        *_over(facts),
    ]
    told = sorted(happened, key=lambda s: s.at or account.until)
    return [Sentence(None, _now(job, account)), Sentence(None, _money(account)), *told]


def _now(job: Job, account: Bill) -> str:
    why = f": {job.detail}" if job.detail else ""
    if job.outcome is not None:
        return _end(job, account, why)
    if job.warning:
        return f"It is {job.state}, and needs you: {job.warning}."
    if job.state is State.TRAINING:
        total = f" of {job.total_steps:,}" if job.total_steps is not None else ""
        taken = _times(job.preemptions, "Its nodes were taken")
        return f"It trains in {job.zone}, at step {step_of(job, account):,}{total}. {taken}"
    if job.state is State.PAUSED:
        return f"It is paused, and costs nothing{why}."
    if job.placed:
        return f"It has nodes in {job.zone}, and does not train yet{why}."
    waited = _span(to_ms(account.until) - to_ms(job.account.free_since))
    return f"It has had no nodes for {waited}{why}."


def _end(job: Job, account: Bill, why: str) -> str:
    if job.outcome is Outcome.SUCCEEDED:
        taken = _times(job.preemptions, "Its nodes were taken")
        return f"It has succeeded, at step {step_of(job, account):,}. {taken}"
    return f"It has {'failed' if job.outcome is Outcome.FAILED else 'been cancelled'}{why}."


def _said(limit: object) -> str:
    return "none" if limit is None else str(limit)


def _times(count: int, what: str) -> str:
    if not count:
        return "Nothing was taken from it."
    return f"{what} {count:,} time{'s' * (count != 1)}."


def _money(account: Bill) -> str:
    mark = account.simulated or account.is_price_estimate
    micros = account.micros
    parts = {
        "setup": micros.setup,
        "restores": micros.restore,
        "standing still": micros.stalled,
        "work done twice": micros.lost,
    }
    wasted = ", ".join(f"{_usd(sum_, mark)} {word}" for word, sum_ in parts.items() if sum_)
    moved = account.adjusted_micros
    how = f"after {_usd(-moved, mark)} that its provider gives back"
    how = how if moved < 0 else f"with {_usd(moved, mark)} that its provider adds"
    rules = f" ({how})" if moved else ""
    paid = f"{_usd(account.paid_micros, mark)}{rules} for {_span(account.ms.total)} with nodes"
    unmeasured = micros.unmeasured
    lines = [
        f"It has cost {paid}, and waited {_span(account.waiting_ms - account.paused_ms)} for them, which is free",
        *[f"it was paused for {_span(account.paused_ms)}, which is free, too"]
        * bool(account.paused_ms),
        f"the same useful work would have cost {_usd(account.on_demand_micros, mark)} on demand",
        f"{_usd(account.wasted_micros, mark)} bought no step forward"
        + f" ({wasted})" * bool(wasted),
        *[f"{_usd(unmeasured, mark)} is not measured, as the program has reported nothing"]
        * bool(unmeasured),
    ]
    return "; ".join(lines) + "."


def _asked(facts: Sequence[Event]) -> Iterator[Sentence]:
    for fact in facts:
        match fact:
            case Submitted(at=at, name=name, by=by):
                who, before = f" by {by}" if by else "", _forebear([fact])
                onward = f", to go on from job {before}" if before else ""
                yield Sentence(at, f'"{name}" was submitted{who}{onward}.')
            case CancelRequested(at=at, reason=reason, by=by):
                yield Sentence(at, f"{by or 'Somebody'} asked for its end: {reason}.")
            case GuardTripped(at=at, detail=detail):
                yield Sentence(at, f"A limit was reached: {detail}. Its worker was asked to save.")
            case PauseRequested(at=at, reason=reason, by=by):
                yield Sentence(at, f"{by or 'Somebody'} asked that it pause: {reason}.")
            case Paused(at=at):
                yield Sentence(at, "It was paused: nothing of it ran or cost anything any more.")
            case ResumeRequested(at=at, reason=reason, by=by):
                yield Sentence(at, f"{by or 'Somebody'} asked that it go on: {reason}.")
            case LimitsChanged(at=at, changed=changed, limits=limits, by=by):
                others = ", ".join(f"{name} is {_said(limits.get(name))}" for name in changed)
                yield Sentence(at, f"{by or 'Somebody'} changed its limits: {others}.")
            case CleanupFailed(at=at, detail=detail):
                yield Sentence(at, f"Something was left that may be billed: {detail}.")
            case _:
                pass


def _denied(facts: Sequence[Event], attempts: Sequence[Attempt]) -> Iterator[Sentence]:
    """One sentence for all denials on the way to one placement."""
    denials = [fact for fact in facts if isinstance(fact, CapacityDenied)]
    ways = [attempt.ready.at for attempt in attempts]
    for n in range(len(ways) + 1):
        since, until = ways[n - 1] if n else None, ways[n] if n < len(ways) else None
        mine = [
            d
            for d in denials
            if (since is None or d.at > since) and (until is None or d.at <= until)
        ]
        if mine:
            zones = ", ".join(dict.fromkeys(d.zone for d in mine))
            count = f" ({len(mine):,} tries)" if len(mine) > 1 else ""
            yield Sentence(mine[-1].at, f"There was no room in {zones}{count}.")


def _lived(attempt: Attempt, item: AttemptBill, forebear: str | None) -> Iterator[Sentence]:
    mark = item.simulated or item.is_price_estimate
    ready = attempt.ready
    nodes = f"{ready.nodes} node{'s' * (ready.nodes != 1)}"
    kind = f" ({ready.instance_type})" if ready.instance_type else ""
    yield Sentence(
        ready.at,
        f"Attempt {item.attempt}: {nodes}{kind} stood in {item.zone} after {_span(item.waiting_ms - item.paused_ms)}, "
        f"for {_usd(ready.micros_per_hour, mark)} an hour.",
    )
    for step in item.price_changes:
        yield Sentence(
            step.at, f"They cost {_usd(step.micros_per_hour, mark)} an hour from then on."
        )
    if attempt.training is not None:
        how = _from_where(attempt.training.restored_from, forebear)
        paid = _usd(item.micros.setup + item.micros.restore, mark)
        yield Sentence(
            attempt.training.at,
            f"It trained at step {attempt.training.step:,}, {how}; to get there had cost {paid}.",
        )
    if attempt.notice is not None:
        left = attempt.notice.left_s
        warning = f"{left:.0f} s" if left is not None else "an unknown time"
        yield Sentence(
            attempt.notice.at,
            f"Termination notice at step {attempt.notice.step:,}: its nodes are to be taken in {warning}.",
        )
        in_time = [saved for saved in attempt.checkpoints if saved.at >= attempt.notice.at]
        for saved in in_time[-1:]:
            yield Sentence(saved.at, f"Step {saved.step:,} was saved before that.")
    if attempt.lost is not None:
        detail = f" ({attempt.lost.detail})" if attempt.lost.detail else ""
        yield Sentence(
            attempt.lost.at,
            f"Attempt {item.attempt} ended: {CAUSE_TEXT[attempt.lost.cause]}{detail}. {_toll(item, mark)}",
        )


def _from_where(checkpoint: str | None, forebear: str | None) -> str:
    """With what an attempt went on; `forebear` is the job from which this one goes on, None where there is none."""
    if checkpoint is None:
        return "from the beginning" + f", as no checkpoint of job {forebear} could be used" * bool(
            forebear
        )
    whose, _, name = checkpoint.rpartition("/")
    return f"from checkpoint {name}" + f" of job {whose}" * bool(whose)


def _forebear(facts: Sequence[Event]) -> str | None:
    """The job from which this one goes on while it has no checkpoint of its own; None: there is none."""
    submitted = next(fact for fact in facts if isinstance(fact, Submitted))
    checkpoint = JobSpec.stored(submitted.spec).holdfast.checkpoint
    return checkpoint.from_job if checkpoint else None


def _toll(item: AttemptBill, mark: bool) -> str:
    if not item.ms.lost:
        return "No work was lost."
    steps = f"{item.lost_steps:,} step{'s' * (item.lost_steps != 1)}, " if item.lost_steps else ""
    return f"Lost: {steps}{_span(item.ms.lost)} of work, {_usd(item.micros.lost, mark)}."


def _over(facts: Sequence[Event]) -> Iterator[Sentence]:
    for fact in facts:
        if isinstance(fact, RunsCompared):
            word, who = (
                "was proven" if fact.holds else "was NOT proven",
                f" by {fact.by}" * bool(fact.by),
            )
            yield Sentence(fact.at, f"Its resume {word}{who}: {fact.why}.")
        if isinstance(fact, Finished):
            code = f" with exit code {fact.exit_code}" if fact.exit_code else ""
            why = f": {fact.detail}" if fact.detail else ""
            word = {Outcome.SUCCEEDED: "succeeded", Outcome.FAILED: "failed"}.get(
                fact.outcome, "was cancelled"
            )
            yield Sentence(fact.at, f"It {word}{code}{why}.")


def _usd(micros: int, mark: bool) -> str:
    dollars = abs(micros) / MICROS_PER_USD
    text = f"${dollars:,.2f}" if dollars >= 1 or not micros else f"${dollars:.4f}"
    return f"{'~' * mark}{'-' * (micros < 0)}{text}"


def _span(ms: int) -> str:
    seconds = ms / 1000
    if seconds < 60:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"

"""The timeline of a job in sentences: its status and cost, then all events in order. Pure.

Every sentence is derived from events and the bill. Simulated and estimated amounts are marked with `~`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from itertools import pairwise
from typing import Final

from holdfast.domain.attempts import Attempt, NodeLoss, collect_attempts
from holdfast.domain.billing.bill import AttemptBill, Bill, current_step
from holdfast.domain.billing.rate import to_ms
from holdfast.domain.diagnostics.request_sentences import (
    Sentence,
    actor_text,
    duration_text,
    job_spec,
    parent_job,
    request_sentences,
    short_duration_text,
)
from holdfast.domain.events import (
    CapacityDenied,
    Cause,
    Event,
    Finished,
    GpuUnhealthy,
    NodeLost,
    NodeReplaced,
    NodesKept,
    NodesReady,
    Outcome,
    PriceChanged,
    RanksReplaced,
    RanksRestarted,
    RunsCompared,
    TrainingStarted,
)
from holdfast.domain.events.values import NodeGroup
from holdfast.domain.jobfile.limits import MICROS_PER_USD
from holdfast.domain.jobfile.spec import JobSpec
from holdfast.domain.jobs.job import IN_TRAINING, Job, State, hosting_text, node_names

CAUSE_TEXT: Final = {
    Cause.PREEMPTED: "preempted",
    Cause.NODE_FAILED: "nodes lost without notice",
    Cause.LAUNCHER_RESTARTED: "the launcher was restarted and released the nodes",
    Cause.LAUNCHER_FORGOT: "lost by the launcher",
    Cause.USER_ERROR: "the program failed",
    Cause.PAUSED: "nodes released for a pause",
    Cause.MOVED: "nodes released for a move",
    Cause.ENDED: "its program ended",
}
NODE_CAUSE_TEXT: Final = {
    Cause.PREEMPTED: "was preempted",
    Cause.NODE_FAILED: "was lost without notice",
}
DRILL_TEXT: Final = "preempted in a drill"
MAX_NAMED_RANKS: Final = 8
"""Ranks that a sentence names. A lower value hides more of them; a higher value makes it long."""


def timeline(job: Job, facts: Sequence[Event], account: Bill) -> list[Sentence]:
    """The timeline so far: current status, cost, then events in order."""
    attempts = collect_attempts(facts, {})
    spec = job_spec(facts)
    happened = [
        *request_sentences(facts),
        *_denial_sentences(facts, attempts),
        *(
            sentence
            for attempt, item in zip(attempts, account.attempts, strict=True)
            for sentence in _attempt_sentences(attempt, item, spec)
        ),
        *(Sentence(f.at, f"{f.sentence}.") for f in facts if isinstance(f, GpuUnhealthy)),
        *(
            Sentence(f.at, f"The program has failed; its nodes are kept until {f.until:%H:%M} UTC.")
            for f in facts
            if isinstance(f, NodesKept)
        ),
        *_end_sentences(facts),
    ]
    ordered = sorted(happened, key=lambda s: s.at or account.until)
    return [
        Sentence(None, _status_text(job, account)),
        Sentence(None, _cost_text(account)),
        *ordered,
    ]


def _status_text(job: Job, account: Bill) -> str:
    why = f": {job.detail}" if job.detail else ""
    if job.outcome is not None:
        return _outcome_text(job, account, why)
    if job.warning:
        return f"The job is {job.state} and needs action: {job.warning}."
    if job.state is State.PAUSED:
        return f"Paused, without cost{why}."
    if job.placed:
        return _placed_text(job, account, why)
    waited = duration_text(to_ms(account.until) - to_ms(job.account.free_since))
    return f"Without nodes for {waited}{why}."


def _placed_text(job: Job, account: Bill, why: str) -> str:
    preemptions = _preemptions_text(job.preemptions)
    if job.awaited_nodes and not job.is_leaving:
        return f"Waiting in {job.zone}: {job.lost_nodes_text}. {preemptions}"
    if job.state in IN_TRAINING:
        total = f" of {job.total_steps:,}" if job.total_steps is not None else ""
        step = current_step(job.attempt, job.step, account)
        where = f"in {job.zone} at step {step:,}{total}"
        if job.state is State.DEGRADED:
            hosts = hosting_text(job.hosted_nodes)
            return f"Training {where} on {job.nodes_in_training} of {job.nodes} nodes: {hosts}. {preemptions}"
        return f"Training {where}. {preemptions}"
    return f"Starting on {job.zone}{why}."


def _outcome_text(job: Job, account: Bill, why: str) -> str:
    if job.outcome is Outcome.SUCCEEDED:
        step = current_step(job.attempt, job.step, account)
        return f"Succeeded at step {step:,}. {_preemptions_text(job.preemptions)}"
    return f"{'Failed' if job.outcome is Outcome.FAILED else 'Cancelled'}{why}."


def _preemptions_text(count: int) -> str:
    return f"{count:,} preemption{'s' * (count != 1)}." if count else "No preemptions."


def _cost_text(account: Bill) -> str:
    mark = account.simulated or account.is_price_estimate
    micros = account.micros
    parts = {
        "setup": micros.setup,
        "restore": micros.restore,
        "stalled": micros.stalled,
        "recomputed": micros.lost,
    }
    wasted = ", ".join(f"{word} {_usd(sum_, mark)}" for word, sum_ in parts.items() if sum_)
    adjusted = account.adjusted_micros
    how = f"after a provider credit of {_usd(-adjusted, mark)}"
    how = how if adjusted < 0 else f"including a provider charge of {_usd(adjusted, mark)}"
    rules = f" ({how})" if adjusted else ""
    paid = (
        f"{_usd(account.paid_micros, mark)}{rules} for {duration_text(account.ms.total)} with nodes"
    )
    unmeasured = micros.unmeasured
    lines = [
        f"Cost: {paid}; {duration_text(account.waiting_ms - account.paused_ms)} waiting for nodes, not billed",
        *[f"{duration_text(account.paused_ms)} paused, not billed"] * bool(account.paused_ms),
        f"the same useful work on demand: {_usd(account.on_demand_micros, mark)}",
        f"{_usd(account.wasted_micros, mark)} wasted" + f" ({wasted})" * bool(wasted),
        *[f"{_usd(unmeasured, mark)} unmeasured: the program sent no reports"] * bool(unmeasured),
    ]
    return "; ".join(lines) + "."


def _denial_sentences(facts: Sequence[Event], attempts: Sequence[Attempt]) -> Iterator[Sentence]:
    """One sentence for all capacity denials before each attempt."""
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
            count = f" ({len(mine):,} attempts)" if len(mine) > 1 else ""
            yield Sentence(mine[-1].at, f"No capacity in {zones}{count}.")


def _attempt_sentences(attempt: Attempt, item: AttemptBill, spec: JobSpec) -> Iterator[Sentence]:
    mark = item.simulated or item.is_price_estimate
    ready = attempt.ready
    yield Sentence(
        ready.at,
        f"Attempt {item.attempt}: {_nodes_text(ready)} after {duration_text(item.waiting_ms - item.paused_ms)}, "
        f"{_usd(ready.micros_per_hour, mark)}/h.",
    )
    for change in attempt.changes:
        if isinstance(change, PriceChanged) and change.at > ready.at:
            yield Sentence(change.at, f"Price changed to {_usd(change.micros_per_hour, mark)}/h.")
    if ready.has_named_groups:
        yield from _group_sentences(attempt, mark)
    else:
        for loss in attempt.node_losses:
            yield from _node_loss_sentences(loss, waits=spec.min_nodes is None)
    yield from _replacement_sentences(attempt)
    for start in attempt.starts:
        if start.training is not None:
            how = _resume_text(start.training, parent_job(spec))
            paid = _usd(item.micros.setup + item.micros.restore, mark)
            cost = f"; startup cost {paid}" * (len(attempt.starts) == 1)
            yield Sentence(start.training.at, f"{how}{cost}.")
        if start.restart is not None:
            yield Sentence(
                start.restart.at,
                _restart_text(start.restart),
            )
    yield from _notice_sentences(attempt)
    if attempt.lost is not None:
        detail = f" ({attempt.lost.detail})" if attempt.lost.detail else ""
        cause = DRILL_TEXT if attempt.is_drill else CAUSE_TEXT[attempt.lost.cause]
        yield Sentence(
            attempt.lost.at,
            f"Attempt {item.attempt} ended: {cause}{detail}. {_lost_work_text(item, mark)}",
        )


def _nodes_text(ready: NodesReady) -> str:
    """The nodes that an attempt begins with, and where they stand."""
    if ready.has_named_groups:
        stand = [part for part, running in ready.running_parts if running]
        groups = [f"{part.name} ({_part_text(part, ready)})" for part in stand]
        waits = [part.name for part, running in ready.running_parts if not running]
        missing = f", without {' and '.join(waits)}," if waits else ""
        return f"{', '.join(groups)} provisioned{missing}"
    nodes = f"{ready.nodes} node{'s' * (ready.nodes != 1)}"
    if ready.instance_type:
        nodes = f"{ready.nodes} \u00d7 {ready.instance_type}"
    return f"{nodes} provisioned in {ready.zone}"


def _part_text(part: NodeGroup, ready: NodesReady) -> str:
    kind = part.instance_type or ready.instance_type
    nodes = f"{part.nodes} \u00d7 {kind}" if kind else f"{part.nodes} node{'s' * (part.nodes != 1)}"
    return f"{nodes} in {part.zone}"


def _group_sentences(attempt: Attempt, mark: bool) -> Iterator[Sentence]:
    """When node groups were lost, released, replaced, or there for the first time."""
    ready, lost_at = attempt.ready, dict[int, datetime]()
    for change in attempt.changes:
        if isinstance(change, PriceChanged):
            continue
        name = ready.groups[change.group].name
        if isinstance(change, NodeLost) and not change.nodes:
            how = "was lost without notice" if change.cause is Cause.NODE_FAILED else None
            how = how or f"ended: {CAUSE_TEXT[change.cause]}"
            how = f"was {DRILL_TEXT}" if change.drill else how
            detail = f" ({change.detail})" if change.detail else ""
            lost_at[change.group] = change.at
            yield Sentence(change.at, f"Group {name} {how}{detail}.")
        elif isinstance(change, NodeReplaced) and (part := change.placed) and change.nodes == part.nodes:  # fmt: skip
            since = lost_at.pop(change.group, None)
            waited = short_duration_text(max(0, to_ms(change.at) - to_ms(since or ready.at)))
            how = "was replaced" if since else "is there"
            price = f"{_usd(part.micros_per_hour, mark or change.is_price_estimate)}/h"
            where = _part_text(part, ready)
            yield Sentence(change.at, f"Group {name} {how} after {waited}: {where}, {price}.")


def _node_loss_sentences(loss: NodeLoss, *, waits: bool) -> Iterator[Sentence]:
    """The loss of a single node and its replacement.

    `waits`: whether the others wait in any case, which those of an elastic job do not.
    """
    lost, replaced = loss.lost, loss.replaced
    detail = f" ({lost.detail})" if lost.detail else ""
    cause = f"was {DRILL_TEXT}" if lost.drill else NODE_CAUSE_TEXT.get(lost.cause, "was lost")
    then = "; the others wait for its replacement" if waits else ""
    yield Sentence(lost.at, f"Node {lost.node} {cause}{detail}{then}.")
    if replaced is not None:
        waited_ms = max(0, to_ms(replaced.at) - to_ms(lost.at))
        yield Sentence(
            replaced.at, f"Node {lost.node} was replaced after {short_duration_text(waited_ms)}."
        )


def _notice_sentences(attempt: Attempt) -> Iterator[Sentence]:
    """The notice of each lost node and the last one, with the newest checkpoint within each."""
    lost = [loss.lost.at for loss in attempt.node_losses]
    found = {
        notice.at: (notice, until)
        for since, until in pairwise([None, *lost, None])
        if (notice := attempt.notice_between(since, until))
    }
    for notice, until in found.values():
        left = f"{notice.left_s:.0f} s" if notice.left_s is not None else "duration unknown"
        yield Sentence(notice.at, f"Termination notice ({left}) at step {notice.step:,}.")
        in_time = [
            saved
            for saved in attempt.checkpoints
            if saved.at >= notice.at and (until is None or saved.at <= until)
        ]
        for saved in in_time[-1:]:
            yield Sentence(
                saved.at, f"Checkpoint committed at step {saved.step:,} within the notice."
            )


def _replacement_sentences(attempt: Attempt) -> Iterator[Sentence]:
    """How training continued after each loss of ranks without a restart."""
    hosted_since = dict[int, datetime]()
    for event in attempt.replacements:
        came = sorted(set(event.hosted_nodes) - hosted_since.keys())
        went = sorted(hosted_since.keys() - set(event.hosted_nodes))
        if not came and not went:
            yield Sentence(event.at, _replacement_text(event))
            continue
        waited = short_duration_text(event.paused_ms)
        texts = []
        if went:
            hosted_ms = to_ms(event.at) - to_ms(min(hosted_since.pop(node) for node in went))
            its = "its replacement" if len(went) == 1 else "their replacements"
            texts.append(
                f"The ranks of {node_names(went)} moved to {its} after {duration_text(hosted_ms)}, while the others waited {waited}."
            )
        if came:
            hosted_since |= dict.fromkeys(came, event.at)
            left = max(0, attempt.ready.nodes - len(hosted_since))
            texts.append(
                f"Training continues on {left} of {attempt.ready.nodes} nodes after {waited}, at step {event.step:,}: {hosting_text(came)}."
            )
        yield Sentence(event.at, f"{' '.join(texts)} No step lost.")


def _replacement_text(event: RanksReplaced) -> str:
    """How a run continued on the same nodes after a loss of ranks without a restart."""
    ranks, paused = event.ranks, short_duration_text(event.paused_ms)
    where = f"after step {event.step:,}"
    what = f"All ranks waited {paused} {where} and continued"
    if ranks:
        named = ", ".join(map(str, ranks[:MAX_NAMED_RANKS]))
        more = len(ranks) - MAX_NAMED_RANKS
        named += f" and {more:,} other{'s' * (more != 1)}" if more > 0 else ""
        subject = f"Ranks {named} were" if len(ranks) > 1 else f"Rank {named} was"
        what = f"{subject} replaced {where} while the others waited {paused}"
    why = f": {event.cause}" if event.cause else ""
    return f"{what}{why}. No step lost."


def _resume_text(training: TrainingStarted, parent: str | None) -> str:
    """Where an attempt began; `parent` is the job this one continues, if any."""
    step, checkpoint = training.step, training.restored_from
    if training.held_at:
        return f"Training resumed at step {step:,} from a snapshot in the memory of the nodes"
    if checkpoint is None:
        why = f" (no usable checkpoint of job {parent})" if parent else ""
        return f"Training started at step {step:,} without a checkpoint{why}"
    owner, _, name = checkpoint.rpartition("/")
    of_job = f" of job {owner}" if owner else ""
    return f"Training resumed at step {step:,} from checkpoint {name}{of_job}"


def _restart_text(restart: RanksRestarted) -> str:
    if restart.node_lost:
        return f"Ranks started again with a new node after step {restart.step:,}: {restart.detail}."
    return f"Ranks started again on the same nodes after a failure at step {restart.step:,}: {restart.detail}."


def _lost_work_text(item: AttemptBill, mark: bool) -> str:
    lost_ms, lost_micros = item.final_loss()
    if not lost_ms:
        return "No work lost."
    lost = item.final_lost_steps
    steps = f"{lost:,} step{'s' * (lost != 1)}, " if lost else ""
    return f"Work lost: {steps}{duration_text(lost_ms)}, {_usd(lost_micros, mark)}."


def _end_sentences(facts: Sequence[Event]) -> Iterator[Sentence]:
    for fact in facts:
        if isinstance(fact, RunsCompared):
            word = "proven" if fact.is_equivalent else "NOT proven"
            yield Sentence(
                fact.at, f"Resume {word} correct{actor_text(fact.by)}: {fact.explanation}."
            )
        if isinstance(fact, Finished):
            code = f" with exit code {fact.exit_code}" if fact.exit_code else ""
            why = f": {fact.detail}" if fact.detail else ""
            word = {Outcome.SUCCEEDED: "succeeded", Outcome.FAILED: "failed"}.get(
                fact.outcome, "cancelled"
            )
            yield Sentence(fact.at, f"Job {word}{code}{why}.")


def _usd(micros: int, mark: bool) -> str:
    dollars = abs(micros) / MICROS_PER_USD
    text = f"${dollars:,.2f}" if dollars >= 1 or not micros else f"${dollars:.4f}"
    return f"{'~' * mark}{'-' * (micros < 0)}{text}"

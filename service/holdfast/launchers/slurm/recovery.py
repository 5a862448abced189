"""When a launch on Slurm is submitted again, requeued, or ended.

`decide` derives new records and at most one action from the records of the launch and Slurm's state. Pure. Slurm requeues
a job itself after a node failure or a preemption. Where it does not, another Slurm job follows under the same launch:
on clusters that cancel preempted jobs, and if Slurm mistook the end for the program's own. If a node falls silent while
Slurm reports the job as running, the job is requeued (`SILENT_S`). The same applies to an elastic job that has lost its
first node, because Slurm keeps the others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from holdfast_worker.protocol.environment import NO_RETRY, Exit

from holdfast.domain.events import Cause, Outcome
from holdfast.launchers.slurm.launch_state import Fact, LaunchState
from holdfast.launchers.slurm.scontrol import FORGOTTEN, QUEUE_REASONS, SlurmJob

SILENT_S: Final = 180
"""Seconds without a heartbeat, while Slurm reports the job as running, until it is requeued.
This happens to a job whose node reboots before Slurm notices. With a lower value, a short hang of the file system
costs a restart; with a higher value, nodes idle longer."""
NODE_TRIES: Final = 5
"""Limit of unexplained ends that count as node failures.
With a lower value, a bad rack ends the job; with a higher value, other causes are retried as often."""
_INSTANT_S: Final = 0.001


class SlurmAction(StrEnum):
    """Action to take at Slurm."""

    SUBMIT = "submit"
    """Submit another Slurm job for this launch."""
    REQUEUE = "requeue"
    """Requeue the newest Slurm job, which still runs, as a new placement."""


@dataclass(frozen=True, slots=True)
class SlurmPlan:
    """Records to write first, then one action."""

    facts: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    action: SlurmAction | None = None
    failures: int = 0
    """Failures of the program so far, if the action restarts it after one; otherwise 0."""


@dataclass(frozen=True, slots=True)
class _Lost:
    cause: Cause
    detail: str
    is_guess: bool = False
    """Whether the node failure is only inferred."""


@dataclass(frozen=True, slots=True)
class _Ended:
    outcome: Outcome
    exit_code: int | None
    detail: str


_TIME_IS_UP: Final = _Lost(Cause.LAUNCHER_RESTARTED, "the time limit of the Slurm job was reached")
_PREEMPTED: Final = _Lost(Cause.PREEMPTED, "Slurm preempted the job")
_BY_STATE: Final[Mapping[str, _Lost | _Ended]] = {
    "CANCELLED": _Ended(Outcome.CANCELLED, None, "cancelled in Slurm, not through Holdfast"),
    "PREEMPTED": _PREEMPTED,
    "NODE_FAIL": _Lost(Cause.NODE_FAILED, "Slurm lost a node"),
    "BOOT_FAIL": _Lost(Cause.NODE_FAILED, "Slurm could not boot a node"),
    "TIMEOUT": _TIME_IS_UP,
}
"""Ends whose reason Slurm itself reports."""
_BY_REASON: Final[Mapping[str, _Lost]] = {
    "preempted": _PREEMPTED,
    "time": _TIME_IS_UP,
    "lost": _Lost(
        Cause.NODE_FAILED, "Slurm lost a node without which the others could not continue"
    ),
    "told": _Lost(Cause.NODE_FAILED, "Slurm ended the job, as after the loss of a node"),
    "drill": _Lost(Cause.NODE_FAILED, "preempted on request"),
}
"""Ends whose reason was reported to the script."""


def decide(state: LaunchState, now_s: float) -> SlurmPlan:
    """Return the next plan; empty for a launch that has ended or was never submitted."""
    if not state.facts.keys().isdisjoint({"ended", "forgotten"}):
        return SlurmPlan()
    if state.job is None:
        return _before_submission(state)
    placed, lost = state.numbered("placed"), state.numbered("lost")
    facts: dict[str, Mapping[str, object]] = {}
    for number in [*placed][:-1]:
        if number not in lost:  # A later placement has started, so this loss was not observed.
            until_s = float(placed[number + 1]["at"]) - _INSTANT_S
            facts[f"lost.{number}"] = _loss(state, number, _cause(state, number), until_s)
    newest = max(placed, default=0)
    stands = bool(newest) and newest not in lost and _is_current(state, placed[newest], state.job)
    if state.job.has_nodes:
        return _while_running(state, newest, facts, now_s, stands=stands)
    if newest and newest not in lost and (state.job.is_waiting or not stands):
        facts[f"lost.{newest}"] = _loss(state, newest, _cause(state, newest), now_s)
        stands = False
    if state.job.is_waiting:
        if (
            state.job.reason not in QUEUE_REASONS
            and f"denied.{state.job.reason}" not in state.facts
        ):
            facts[f"denied.{state.job.reason}"] = {"at": now_s}
        return SlurmPlan(facts)
    is_its_end = stands or _was_lost_too_early(state, newest)
    return _at_end(state, newest if is_its_end else 0, facts, now_s)


def _before_submission(state: LaunchState) -> SlurmPlan:
    """Decide before there is a Slurm job: a cancel takes precedence."""
    if cancelled := state.facts.get("cancelled"):
        over = _Ended(Outcome.CANCELLED, None, "cancelled before it began")
        return SlurmPlan({"ended": _end(over, float(cancelled["at"]))})
    return SlurmPlan()


def _while_running(
    state: LaunchState,
    newest: int,
    facts: dict[str, Mapping[str, object]],
    now_s: float,
    *,
    stands: bool,
) -> SlurmPlan:
    """Decide while Slurm reports that the job has nodes."""
    assert state.job is not None
    placed = state.numbered("placed")
    if newest and not stands and f"lost.{newest}" not in state.facts:
        # The job was requeued and already has other nodes, which have not written a record yet.
        facts[f"lost.{newest}"] = _loss(state, newest, _cause(state, newest), now_s)
    if state.job.state != "RUNNING" or "cancelled" in state.facts:
        return SlurmPlan(facts)
    if not facts and not stands and newest and _is_current(state, placed[newest], state.job):
        # The placement is already recorded as lost, but Slurm did not receive the requeue.
        return SlurmPlan({}, SlurmAction.REQUEUE)
    if stands and (detail := _unnoticed_loss(state, state.job)):
        gone = _Lost(Cause.NODE_FAILED, detail)
        facts[f"lost.{newest}"] = _loss(state, newest, gone, now_s)
        return SlurmPlan(facts, SlurmAction.REQUEUE)
    return SlurmPlan(facts)


def _unnoticed_loss(state: LaunchState, row: SlurmJob) -> str:
    """Describe a loss after which Slurm does not requeue the running job; empty without one."""
    if state.lost_first_node:
        return f"Slurm lost {state.lost_first_node}, the first node, whose script requeues the job"
    if state.silent_s > SILENT_S and not row.was_suspended:
        return f"a node sent no heartbeat for {state.silent_s} s although Slurm reports the job as running"
    return ""


def _at_end(
    state: LaunchState, number: int, facts: dict[str, Mapping[str, object]], now_s: float
) -> SlurmPlan:
    """Decide after the end of the Slurm job; `number` is the placement that ended, or 0."""
    assert state.job is not None
    if not number and _awaits_restart(state):
        return SlurmPlan(facts, SlurmAction.SUBMIT, _failures(state))
    if (
        state.job.state == FORGOTTEN
        and "cancelled" not in state.facts
        and not _exit_fact(state, number)
    ):
        return SlurmPlan({**facts, "forgotten": {"at": now_s}})
    meant = _end_meaning(state, number)
    placed_s = float(state.facts[f"placed.{number}"]["at"]) if number else 0.0
    if isinstance(meant, _Ended):
        at_s = max(placed_s, float(state.job.ended_s or now_s))
        if left := _exit_fact(state, number):
            at_s = max(placed_s, float(left["at"]))
        return SlurmPlan({**facts, "ended": _end(meant, at_s)})
    if number and f"lost.{number}" not in state.facts:
        facts[f"lost.{number}"] = _loss(state, number, meant, now_s)
    failures = _failures(state) + 1 if meant.cause is Cause.USER_ERROR else 0
    return SlurmPlan(facts, SlurmAction.SUBMIT, failures)


def _awaits_restart(state: LaunchState) -> bool:
    """Whether the newest placement is recorded as failed and was not resubmitted."""
    assert state.job is not None
    number = max(state.numbered("placed"), default=0)
    lost = state.facts.get(f"lost.{number}", {})
    return (
        lost.get("cause") == Cause.USER_ERROR
        and "cancelled" not in state.facts
        and _is_current(state, state.facts[f"placed.{number}"], state.job)
    )


def _failures(state: LaunchState) -> int:
    """Number of recorded losses by failures of the program."""
    return sum(each.get("cause") == Cause.USER_ERROR for each in state.numbered("lost").values())


def _end_meaning(state: LaunchState, number: int) -> _Lost | _Ended:
    """Classify the end of a Slurm job, by its own last record if there is one."""
    row, left = state.job, _exit_fact(state, number)
    assert row is not None
    is_done = (left is not None and left["code"] == "0") or (
        left is None and row.state == "COMPLETED"
    )
    if "cancelled" in state.facts and not (is_done and left):
        return _Ended(Outcome.CANCELLED, None, "cancelled on request")
    if is_done:
        return _Ended(Outcome.SUCCEEDED, 0, "")
    if row.state in _BY_STATE:
        return _BY_STATE[row.state]
    if left is not None:
        return _exit_meaning(state, left)
    if number or row.exit_code > 128:
        # The script did not complete, so the program is not known to have failed.
        return _node_lost(
            state, f"the job ended with {row.exit_code} and left no record", row.exit_code
        )
    reason = "" if row.reason == "None" else f", {row.reason}"
    return _Ended(
        Outcome.FAILED, row.exit_code or None, f"Slurm could not start the job: {row.state}{reason}"
    )


def _exit_meaning(state: LaunchState, left: Fact) -> _Lost | _Ended:
    """Classify the last record of a placement that did not complete."""
    code = int(left["code"])
    if (why := left.get("why", "")) in _BY_REASON:
        return _BY_REASON[why]
    if why == "node":
        gone = "a node was lost, and Slurm treated it as a failure of the program"
        return _node_lost(state, left.get("words") or gone, code)
    if code == Exit.PREEMPTED:
        detail = "the program saved and exited without a notice from Holdfast"
        return _Lost(Cause.NODE_FAILED, detail)
    return _program_failure(state, left, code)


def _program_failure(state: LaunchState, left: Fact, code: int) -> _Lost | _Ended:
    """Classify a failure of the program: retry once more if it has trained and retries are left."""
    node, words = left["node"], _exit_detail(left) or left.get("words", "")
    detail = f"node {node} exited with {code}" + (f": {words}" if words else "")
    trained = any(each.get("trained") for each in state.numbered("left").values())
    failures_left = int(state.order.get("max_failures", 1)) - _failures(state)
    if not trained or failures_left <= 1 or code in NO_RETRY:
        return _Ended(Outcome.FAILED, code, detail)
    return _Lost(Cause.USER_ERROR, detail)


def _node_lost(state: LaunchState, detail: str, code: int) -> _Lost | _Ended:
    before = sum(each.get("guess") == "yes" for each in state.numbered("lost").values())
    if before >= NODE_TRIES:
        return _Ended(Outcome.FAILED, code, f"{detail}; this happened {before + 1} times")
    return _Lost(Cause.NODE_FAILED, detail, is_guess=True)


def _cause(state: LaunchState, number: int) -> _Lost:
    """Return the cause of a loss after which the job was requeued."""
    left = _exit_fact(state, number)
    meant = _exit_meaning(state, left) if left is not None and left["code"] != "0" else None
    if isinstance(meant, _Lost):
        return meant
    return _Lost(Cause.NODE_FAILED, "Slurm requeued the job without giving a reason")


def _is_current(state: LaunchState, placed: Fact, row: SlurmJob) -> bool:
    """Whether Slurm's job is still at this placement."""
    jobs = [fact["job"] for fact in state.numbered("submitted").values()]
    is_newest = bool(jobs) and placed["job"] == jobs[-1]
    return is_newest and row.restarts in {None, int(placed["restart"])}


def _exit_fact(state: LaunchState, number: int) -> Fact | None:
    return state.facts.get(f"left.{number}")


def _was_lost_too_early(state: LaunchState, number: int) -> bool:
    """Whether a placement of the newest Slurm job was marked lost too early.

    If a script starts late, as after a slow login profile, Slurm requeues the job and then mistakes the end of the
    first script for the job's end.
    """
    left, lost = _exit_fact(state, number), state.facts.get(f"lost.{number}")
    if left is None or lost is None or float(left["at"]) <= float(lost["at"]):
        return False
    jobs = [fact["job"] for fact in state.numbered("submitted").values()]
    return state.facts[f"placed.{number}"]["job"] == jobs[-1]


def _exit_detail(left: Fact) -> str:
    """Return the worker's exit message, which is more specific than the last line."""
    with suppress(ValueError, TypeError, AttributeError):
        return str(json.loads(left.get("said", "")).get("detail") or "")[:200]
    return ""


def _loss(state: LaunchState, number: int, lost: _Lost, until_s: float) -> Mapping[str, object]:
    """Return a loss, dated to the last record or the detection, and never before the start."""
    left = _exit_fact(state, number)
    at_s = float(left["at"]) if left else until_s
    placed_s = float(state.facts[f"placed.{number}"]["at"])
    fact = {"at": max(min(at_s, until_s), placed_s), "cause": lost.cause, "detail": lost.detail}
    return {**fact, "guess": "yes"} if lost.is_guess else fact


def _end(over: _Ended, at_s: float) -> Mapping[str, object]:
    code = "" if over.exit_code is None else over.exit_code
    return {"at": at_s, "outcome": over.outcome, "exit_code": code, "detail": over.detail}

"""What follows from the books and from Slurm's word: facts to be written, and one thing to be done. Pure.

Slurm queues a job again by itself where a node fails or a partition is taken; where it does not, as on clusters that cancel
what they take, or after an end that it took for the program's, another Slurm job follows under the same launch.
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
from holdfast.launchers.slurm.scontrol import GONE, PATIENT, SlurmJob

SILENT_S: Final = 180
"""Without a sign of a node of a job that Slurm calls running, until it is queued again. A node that boots faster than Slurm looks
leaves such a job. Smaller: a file system that hangs for a while costs a restart. Bigger: nodes idle."""
NODE_TRIES: Final = 5
"""How often an end that nobody's program explains is a node's fault. Smaller: a bad rack ends the job. Bigger: what only looks
like it is tried so often."""
_INSTANT_S: Final = 0.001


class SlurmAction(StrEnum):
    """What is to be done at Slurm."""

    SUBMIT = "submit"
    """Another Slurm job for this launch."""
    REQUEUE = "requeue"
    """The newest one, which still runs, as a new placement."""


@dataclass(frozen=True, slots=True)
class SlurmPlan:
    """Facts to be written first, then one deed."""

    facts: Mapping[str, Mapping[str, object]] = field(default_factory=dict)
    deed: SlurmAction | None = None


@dataclass(frozen=True, slots=True)
class _Lost:
    cause: Cause
    detail: str
    is_guess: bool = False
    """Whether nobody but us says that it was a node."""


@dataclass(frozen=True, slots=True)
class _Over:
    outcome: Outcome
    exit_code: int | None
    detail: str


_TIME_IS_UP: Final = _Lost(Cause.LAUNCHER_RESTARTED, "the time limit of the Slurm job was reached")
_TAKEN: Final = _Lost(Cause.PREEMPTED, "Slurm took the nodes for another job")
_BY_STATE: Final[Mapping[str, _Lost | _Over]] = {
    "CANCELLED": _Over(
        Outcome.CANCELLED, None, "cancelled at Slurm, by somebody else than Holdfast"
    ),
    "PREEMPTED": _TAKEN,
    "NODE_FAIL": _Lost(Cause.NODE_FAILED, "Slurm lost a node"),
    "BOOT_FAIL": _Lost(Cause.NODE_FAILED, "Slurm could not boot a node"),
    "TIMEOUT": _TIME_IS_UP,
}
"""Ends that Slurm itself knows the reason of."""
_BY_WHY: Final[Mapping[str, _Lost]] = {
    "preempted": _TAKEN,
    "time": _TIME_IS_UP,
    "told": _Lost(Cause.NODE_FAILED, "Slurm ended it, as it does when a node is lost"),
}
"""Ends that the script was told the reason of."""


def decide(books: LaunchState, now_s: float) -> SlurmPlan:
    """What follows now. Nothing of a launch that is over, or that nobody has submitted."""
    if not books.facts.keys().isdisjoint({"ended", "forgotten"}):
        return SlurmPlan()
    if books.row is None:
        return _before(books)
    placed, lost = books.numbered("placed"), books.numbered("lost")
    facts: dict[str, Mapping[str, object]] = {}
    for number in [*placed][:-1]:
        if number not in lost:  # A later one has begun: this one went unseen.
            until_s = float(placed[number + 1]["at"]) - _INSTANT_S
            facts[f"lost.{number}"] = _loss(books, number, _cause(books, number), until_s)
    newest = max(placed, default=0)
    stands = bool(newest) and newest not in lost and _is_of(books, placed[newest], books.row)
    if books.row.is_standing:
        return _while_standing(books, newest, facts, now_s, stands=stands)
    if newest and newest not in lost and (books.row.is_waiting or not stands):
        facts[f"lost.{newest}"] = _loss(books, newest, _cause(books, newest), now_s)
        stands = False
    if books.row.is_waiting:
        if books.row.reason not in PATIENT and f"denied.{books.row.reason}" not in books.facts:
            facts[f"denied.{books.row.reason}"] = {"at": now_s}
        return SlurmPlan(facts)
    is_its_end = stands or _spoke_after_all(books, newest)
    return _at_end(books, newest if is_its_end else 0, facts, now_s)


def _before(books: LaunchState) -> SlurmPlan:
    """Before there is a Slurm job: a cancel has the last word."""
    if cancelled := books.facts.get("cancelled"):
        over = _Over(Outcome.CANCELLED, None, "cancelled before it began")
        return SlurmPlan({"ended": _end(over, float(cancelled["at"]))})
    return SlurmPlan()


def _while_standing(
    books: LaunchState,
    newest: int,
    facts: dict[str, Mapping[str, object]],
    now_s: float,
    *,
    stands: bool,
) -> SlurmPlan:
    """While Slurm says that there are nodes."""
    assert books.row is not None
    placed = books.numbered("placed")
    if newest and not stands and f"lost.{newest}" not in books.facts:
        # Queued again, and on other nodes already, which have not written a word.
        facts[f"lost.{newest}"] = _loss(books, newest, _cause(books, newest), now_s)
    if books.row.state != "RUNNING" or "cancelled" in books.facts:
        return SlurmPlan(facts)
    if not facts and not stands and newest and _is_of(books, placed[newest], books.row):
        # Given up before, but Slurm was not told, or did not hear it.
        return SlurmPlan({}, SlurmAction.REQUEUE)
    if stands and books.silent_s > SILENT_S and not books.row.was_suspended:
        detail = f"no sign of a node for {books.silent_s} s, though Slurm says that the job runs"
        gone = _Lost(Cause.NODE_FAILED, detail)
        facts[f"lost.{newest}"] = _loss(books, newest, gone, now_s)
        return SlurmPlan(facts, SlurmAction.REQUEUE)
    return SlurmPlan(facts)


def _at_end(
    books: LaunchState, number: int, facts: dict[str, Mapping[str, object]], now_s: float
) -> SlurmPlan:
    """Once the Slurm job is over; `number` is the placement that ended with it, 0 if there was none."""
    assert books.row is not None
    if books.row.state == GONE and "cancelled" not in books.facts and not _left(books, number):
        return SlurmPlan({**facts, "forgotten": {"at": now_s}})
    meant = _meaning(books, number)
    begun_s = float(books.facts[f"placed.{number}"]["at"]) if number else 0.0
    if isinstance(meant, _Over):
        at_s = max(begun_s, float(books.row.ended_s or now_s))
        if left := _left(books, number):
            at_s = max(begun_s, float(left["at"]))
        return SlurmPlan({**facts, "ended": _end(meant, at_s)})
    if number and f"lost.{number}" not in books.facts:
        facts[f"lost.{number}"] = _loss(books, number, meant, now_s)
    return SlurmPlan(facts, SlurmAction.SUBMIT)


def _meaning(books: LaunchState, number: int) -> _Lost | _Over:
    """What the end of a Slurm job means, by its own last words where it had any."""
    row, left = books.row, _left(books, number)
    assert row is not None
    is_done = (left is not None and left["code"] == "0") or (
        left is None and row.state == "COMPLETED"
    )
    if "cancelled" in books.facts and not (is_done and left):
        return _Over(Outcome.CANCELLED, None, "cancelled on request")
    if is_done:
        return _Over(Outcome.SUCCEEDED, 0, "")
    if row.state in _BY_STATE:
        return _BY_STATE[row.state]
    if left is not None:
        return _words(books, left)
    if number or row.exit_code > 128:
        # The script never came to its end: whatever took it, its program is not known to have failed.
        return _node_lost(
            books, f"the job ended with {row.exit_code} and without a word", row.exit_code
        )
    reason = "" if row.reason == "None" else f", {row.reason}"
    return _Over(
        Outcome.FAILED, row.exit_code or None, f"Slurm could not begin it: {row.state}{reason}"
    )


def _words(books: LaunchState, left: Fact) -> _Lost | _Over:
    """What the last words of a placement mean that has not done its work."""
    code = int(left["code"])
    if (why := left.get("why", "")) in _BY_WHY:
        return _BY_WHY[why]
    if why == "node":
        gone = "a node went, and Slurm took it for an error of the program"
        return _node_lost(books, left.get("words") or gone, code)
    if code == Exit.PREEMPTED:
        detail = "the program left with its work saved, but not on our notice"
        return _Lost(Cause.NODE_FAILED, detail)
    return _own_fault(books, left, code)


def _own_fault(books: LaunchState, left: Fact, code: int) -> _Lost | _Over:
    """What an error of the program comes to: one more try, if it has trained and any are left."""
    node, words = left["node"], _said(left) or left.get("words", "")
    detail = f"node {node} exited with {code}" + (f": {words}" if words else "")
    trained = any(each.get("trained") for each in books.numbered("left").values())
    failed = sum(each["cause"] == Cause.USER_ERROR for each in books.numbered("lost").values())
    failures_left = int(books.order.get("max_failures", 1)) - failed
    if not trained or failures_left <= 1 or code in NO_RETRY:
        return _Over(Outcome.FAILED, code, detail)
    return _Lost(Cause.USER_ERROR, detail)


def _node_lost(books: LaunchState, detail: str, code: int) -> _Lost | _Over:
    before = sum(each.get("guess") == "yes" for each in books.numbered("lost").values())
    if before >= NODE_TRIES:
        return _Over(Outcome.FAILED, code, f"{detail}; that was {before + 1} times")
    return _Lost(Cause.NODE_FAILED, detail, is_guess=True)


def _cause(books: LaunchState, number: int) -> _Lost:
    """Why a placement is gone whose job was queued again."""
    left = _left(books, number)
    meant = _words(books, left) if left is not None and left["code"] != "0" else None
    if isinstance(meant, _Lost):
        return meant
    return _Lost(Cause.NODE_FAILED, "Slurm queued the job again, and does not tell why")


def _is_of(books: LaunchState, placed: Fact, row: SlurmJob) -> bool:
    """Whether a placement is the one that Slurm speaks of."""
    jobs = [fact["job"] for fact in books.numbered("submitted").values()]
    is_newest = bool(jobs) and placed["job"] == jobs[-1]
    return is_newest and row.restarts in {None, int(placed["restart"])}


def _left(books: LaunchState, number: int) -> Fact | None:
    return books.facts.get(f"left.{number}")


def _spoke_after_all(books: LaunchState, number: int) -> bool:
    """Whether a placement of the newest Slurm job was given up too early. Where a script begins late, as after a login profile that takes
    its time, Slurm queues the job again, and then takes the end of the first script for that of the job."""
    left, lost = _left(books, number), books.facts.get(f"lost.{number}")
    if left is None or lost is None or float(left["at"]) <= float(lost["at"]):
        return False
    jobs = [fact["job"] for fact in books.numbered("submitted").values()]
    return books.facts[f"placed.{number}"]["job"] == jobs[-1]


def _said(left: Fact) -> str:
    """What the worker has said on leaving, which is more than its last line."""
    with suppress(ValueError, TypeError, AttributeError):
        return str(json.loads(left.get("said", "")).get("detail") or "")[:200]
    return ""


def _loss(books: LaunchState, number: int, lost: _Lost, until_s: float) -> Mapping[str, object]:
    """A loss: at the last word of the placement, or when it was seen; never before it began."""
    left = _left(books, number)
    at_s = float(left["at"]) if left else until_s
    begun_s = float(books.facts[f"placed.{number}"]["at"])
    fact = {"at": max(min(at_s, until_s), begun_s), "cause": lost.cause, "detail": lost.detail}
    return {**fact, "guess": "yes"} if lost.is_guess else fact


def _end(over: _Over, at_s: float) -> Mapping[str, object]:
    code = "" if over.exit_code is None else over.exit_code
    return {"at": at_s, "outcome": over.outcome, "exit_code": code, "detail": over.detail}

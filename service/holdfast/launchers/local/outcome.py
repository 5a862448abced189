"""What the end of a placement means. Pure: exit codes and circumstances in, loss or ending out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from holdfast_worker.protocol.environment import NO_RETRY, Exit

from holdfast.domain.events import Cause, Outcome


@dataclass(frozen=True, slots=True)
class NodeExit:
    """How one node ended by itself."""

    node: int
    code: int | None
    """None: the node failed, not the program."""
    words: str = ""
    """The worker's reason, or the last line that the node printed."""

    @property
    def done(self) -> bool:
        """True when the program is over and satisfied."""
        return self.code == Exit.DONE

    @property
    def failed(self) -> bool:
        """True when the placement cannot go on: neither done nor gone with its work saved."""
        return self.code not in {Exit.DONE, Exit.PREEMPTED}


@dataclass(frozen=True, slots=True)
class RecallReason:
    """Why a placement was called back before its program ended by itself."""

    cancelled: bool
    """False: the market takes it."""
    detail: str


@dataclass(frozen=True, slots=True)
class Lost:
    """The placement is gone; the launch goes on."""

    cause: Cause
    detail: str


@dataclass(frozen=True, slots=True)
class LaunchEnded:
    """The launch is over."""

    outcome: Outcome
    exit_code: int | None
    detail: str


Verdict: TypeAlias = Lost | LaunchEnded


def classify_exit(
    exits: Sequence[NodeExit],
    *,
    nodes: int,
    call: RecallReason | None,
    trained: bool,
    failures_left: int,
) -> Verdict:
    """What became of a placement of `nodes` nodes, of which `exits` ended by themselves, in this order.

    `trained` is true once any placement of this launch has finished a step: what never trained fails at once, for
    the same files would fail again. `failures_left` counts the one that may be told here.
    """
    if call and call.cancelled:
        return LaunchEnded(Outcome.CANCELLED, None, call.detail)
    if len(exits) == nodes and all(end.done for end in exits):
        return LaunchEnded(Outcome.SUCCEEDED, Exit.DONE, "")
    if call:
        return Lost(Cause.PREEMPTED, call.detail)
    failure = next((end for end in exits if end.failed), None)
    if failure is None:
        # Nobody gave a notice, so nobody can say that the market took it: somebody signalled the program.
        return Lost(
            Cause.NODE_FAILED, "the program left with its work saved, but not on our notice"
        )
    return _failed(failure, last=not trained or failures_left <= 1)


def _failed(end: NodeExit, *, last: bool) -> Verdict:
    """What the first failure among the nodes means; the others only followed it."""
    if end.code is None:
        return Lost(Cause.NODE_FAILED, f"node {end.node} was lost")
    detail = f"node {end.node} exited with {end.code}" + (f": {end.words}" if end.words else "")
    if last or end.code in NO_RETRY:
        return LaunchEnded(Outcome.FAILED, end.code, detail)
    return Lost(Cause.USER_ERROR, detail)

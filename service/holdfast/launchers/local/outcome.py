"""Classifies the end of a placement from exit codes and circumstances. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from holdfast_worker.protocol.environment import NO_RETRY, Exit

from holdfast.domain.events import Cause, Outcome


@dataclass(frozen=True, slots=True)
class NodeExit:
    """Exit of one node that ended by itself."""

    node: int
    code: int | None
    """Exit code of the program; None if the node failed instead."""
    detail: str = ""
    """The worker's reason, or the node's last output line."""

    @property
    def has_succeeded(self) -> bool:
        """Whether the program completed successfully."""
        return self.code == Exit.DONE

    @property
    def has_failed(self) -> bool:
        """Whether the node neither completed nor left with its work saved."""
        return self.code not in {Exit.DONE, Exit.PREEMPTED}


@dataclass(frozen=True, slots=True)
class RecallReason:
    """Why a placement was ended before its program exited."""

    cancelled: bool
    """False: the simulated market preempts it."""
    detail: str


@dataclass(frozen=True, slots=True)
class PlacementLost:
    """The placement has ended; the launch continues."""

    cause: Cause
    detail: str


@dataclass(frozen=True, slots=True)
class LaunchEnded:
    """The launch has ended."""

    outcome: Outcome
    exit_code: int | None
    detail: str


PlacementOutcome: TypeAlias = PlacementLost | LaunchEnded


def classify_exit(
    exits: Sequence[NodeExit],
    *,
    nodes: int,
    call: RecallReason | None,
    trained: bool,
    failures_left: int,
) -> PlacementOutcome:
    """Classify the end of a placement of `nodes` nodes.

    The nodes in `exits` ended by themselves, in this order.

        `trained` is true once any placement of this launch has finished a step. A launch that never trained fails at
        once,
    because the same files would fail again. `failures_left` includes the failure that may be reported here.
    """
    if call and call.cancelled:
        return LaunchEnded(Outcome.CANCELLED, None, call.detail)
    if len(exits) == nodes and all(end.has_succeeded for end in exits):
        return LaunchEnded(Outcome.SUCCEEDED, Exit.DONE, "")
    if call:
        return PlacementLost(Cause.PREEMPTED, call.detail)
    failure = next((end for end in exits if end.has_failed), None)
    if failure is None:
        # Without a notice of ours, the market did not preempt it: something else signalled the program.
        return PlacementLost(
            Cause.NODE_FAILED, "the program saved and exited without a notice from Holdfast"
        )
    return _failed(failure, last=not trained or failures_left <= 1)


def _failed(end: NodeExit, *, last: bool) -> PlacementOutcome:
    """Classify the first failure among the nodes; the other nodes only followed it."""
    if end.code is None:
        return PlacementLost(Cause.NODE_FAILED, f"node {end.node} was lost")
    detail = f"node {end.node} exited with {end.code}" + (f": {end.detail}" if end.detail else "")
    if last or end.code in NO_RETRY:
        return LaunchEnded(Outcome.FAILED, end.code, detail)
    return PlacementLost(Cause.USER_ERROR, detail)

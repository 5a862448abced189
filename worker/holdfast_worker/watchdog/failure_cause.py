"""Failure causes of nodes, the election among several, and restarts after them. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from signal import SIGABRT, SIGHUP, SIGINT, SIGQUIT, SIGTERM
from typing import Final

from holdfast_worker.protocol.environment import Exit
from holdfast_worker.run_dir import ExitReason, Failure

MAX_DETAIL_CHARS: Final = 500
"""Characters of an error that go into a report; some carry whole tensors."""
CONSEQUENCE: Final = re.compile(
    r"\bgloo\b|\bNCCL\b|\bDist(Backend|Network|Store)Error\b|\bby peer\b|\bNotRecoverable\b"
)
"""Text in errors of torch and its libraries after the loss of another rank."""
ELECTION_S: Final = 3.0
"""Time to wait for a root cause after a consequence.
A lower value reports the consequence; a higher value pays for idle ranks."""
NODE_LOST_S: Final = 10.0
"""Time for a disconnected node to reconnect.
A lower value takes a network interruption for a loss; a higher value pays for nodes that wait for a lost one."""
FINAL_SAVE_S: Final = 10.0
"""Time for a save in progress when the script fails.
A lower value loses work; a higher value pays for a failed job."""
COORDINATED_REASONS: Final = frozenset({"finished", "preempted"})
"""Reasons with which all ranks exit after a vote."""

FINAL_CODES: Final = frozenset(Exit) - {Exit.FAILED}
"""Exit codes with a meaning of their own: success, a preemption, or a failure for which a retry needs a different node or setting."""
REQUESTED_ENDS: Final = frozenset(128 + number for number in (SIGHUP, SIGINT, SIGQUIT, SIGTERM))
"""Exit codes of ranks that somebody ended on purpose."""


@dataclass(frozen=True, slots=True)
class FailureCause:
    """Why the ranks of all nodes have to end."""

    exit_code: int
    step: int
    detail: str
    is_consequence: bool = False
    """Whether it looks like the consequence of a failure elsewhere."""
    has_rank_died: bool = True
    """Whether a rank has just died, so that the others get some seconds to save.
    Otherwise all ranks end at once."""
    is_node_lost: bool = False
    """Whether nodes were lost for whose replacements the others wait, to start all ranks again."""

    def to_exit_reason(self, *, is_noticed: bool) -> ExitReason:
        """The exit reason of this cause.

        The loss of a node after a termination notice is a preemption.
        """
        if is_noticed and self.is_consequence:
            return ExitReason("preempted", Exit.PREEMPTED, self.step, self.detail)
        return ExitReason("failed", self.exit_code, self.step, self.detail)


def is_coordinated_exit(left: ExitReason | None) -> bool:
    """Whether all ranks decided together to exit; failures during such an exit do not count."""
    return left is not None and (
        left.reason in COORDINATED_REASONS
        or left.exit_code in {Exit.USAGE, Exit.FENCED, Exit.UNUSABLE_STORE, Exit.PREEMPTED}
    )


def cause_of_failure(
    failure: Failure, left: ExitReason | None, last_line: str, step: int, where: str
) -> FailureCause:
    """The cause of the first failure of a node's rank.

    `left` is the exit reason of any of its ranks, None if none was recorded. `last_line` is the failed rank's last output,
    `step` the number of completed steps, and `where` is ` on node 1` if there are several nodes.
    """
    number = failure.exit_code - 128
    # torch aborts a process after some errors, and torchrun sends SIGTERM: then the exit reason is more specific.
    is_killed = number > 0 and not (left and number in {SIGABRT, SIGTERM})
    if is_killed:
        detail = f"rank {failure.rank}{where} was killed by signal {number}"
        return FailureCause(failure.exit_code, step, detail, is_consequence=number == SIGTERM)
    if left:
        source = f"rank {left.rank}{where}: " if where and left.rank is not None else ""
        detail = source + left.detail
        return FailureCause(
            left.exit_code, left.step, detail, is_consequence=bool(CONSEQUENCE.search(detail))
        )
    detail = f"rank {failure.rank}{where}: {last_line[:MAX_DETAIL_CHARS]}"
    return FailureCause(
        failure.exit_code, step, detail, is_consequence=bool(CONSEQUENCE.search(detail))
    )


class CauseElection:
    """Reported causes of a run's end in order of arrival, and the choice among them."""

    def __init__(self, *, is_leader: bool) -> None:
        """`is_leader`: the choice counts on all nodes. Other nodes wait for the leader's choice."""
        self._is_leader = is_leader
        self._candidates: list[tuple[float, FailureCause]] = []
        self._disconnected: dict[int, float] = {}

    def add(self, at_s: float, cause: FailureCause) -> None:
        """Add a reported cause."""
        self._candidates.append((at_s, cause))

    def forget(self) -> None:
        """Forget the reported causes, because the ranks that failed are replaced."""
        self._candidates.clear()

    def mark_disconnected(self, at_s: float, node: int) -> None:
        """Record that the connection to a node broke."""
        self._disconnected[node] = at_s

    def mark_connected(self, node: int) -> None:
        """Record that a node has reconnected or has exited."""
        self._disconnected.pop(node, None)

    @property
    def misses_nodes(self) -> bool:
        """Whether the connection to a node is broken."""
        return bool(self._disconnected)

    def restart_timeouts(self, at_s: float) -> None:
        """Restart the timeouts of disconnected nodes."""
        self._disconnected = dict.fromkeys(self._disconnected, at_s)

    def elect(self, now_s: float, step: int, *, is_suspected: bool = False) -> FailureCause | None:
        """The elected cause; None if there is none yet.

        `step` is the number of completed steps. `is_suspected`: there is a sign that a node is lost.
        """
        strong = [cause for _, cause in self._candidates if not cause.is_consequence]
        if strong and (self._is_leader or self._disconnected or self._has_waited(now_s)):
            return strong[0]
        for node in self.lost_nodes(now_s, is_suspected=is_suspected):
            detail = f"node {node} is lost: its connection broke and did not recover"
            return FailureCause(Exit.FAILED, step, detail, is_consequence=True, has_rank_died=False)
        return self._candidates[0][1] if self._candidates and self._has_waited(now_s) else None

    def lost_nodes(self, now_s: float, *, is_suspected: bool) -> list[int]:
        """Nodes that are disconnected and will not return.

        Two signs are enough: a node is disconnected, and a rank failed as a consequence or suspects a loss. With the first one, all
        others that are disconnected count as lost: a cloud takes several nodes within seconds.
        """
        is_suspected = is_suspected or bool(self._candidates)
        longest_s = max((now_s - since_s for since_s in self._disconnected.values()), default=0.0)
        return [*self._disconnected] if is_suspected or longest_s > NODE_LOST_S else []

    def _has_waited(self, now_s: float) -> bool:
        return now_s - self._candidates[0][0] > ELECTION_S


class RestartPolicy:
    """Whether failed ranks start again on their nodes, or the failure ends the attempt.

    Ranks that start again on standing nodes need no provisioning and no launch. They do so after a failure that has nothing to do
    with a node, and only while the run gets further: a program that fails at the same step again is ended, and the launcher counts
    the failure as before. Numbers of steps are over all attempts.
    """

    def __init__(self, max_restarts: int) -> None:
        """`max_restarts`: how often ranks start again without getting further than before."""
        self._max_restarts = max_restarts
        self._restarts = 0
        """Restarts since the run got further than at an earlier failure."""
        self._furthest_step = -1
        """The furthest step at which the run failed; -1 before the first failure."""

    def allows(self, cause: FailureCause) -> bool:
        """Whether the ranks may start again after `cause`."""
        if cause.exit_code in FINAL_CODES | REQUESTED_ENDS:
            return False
        restarts = 0 if cause.step > self._furthest_step else self._restarts
        return restarts < self._max_restarts

    def record(self, cause: FailureCause) -> None:
        """Record that the ranks start again after `cause`."""
        if cause.step > self._furthest_step:
            self._furthest_step, self._restarts = cause.step, 0
        self._restarts += 1

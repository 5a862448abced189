"""The first failure of a rank of one node, as its files show it. Standard library only."""

from __future__ import annotations

from dataclasses import replace
from signal import SIGKILL
from typing import Final

from holdfast_worker.protocol.environment import Exit
from holdfast_worker.run_dir import Failure, RunDir
from holdfast_worker.watchdog.failure_cause import (
    FINAL_SAVE_S,
    FailureCause,
    cause_of_failure,
    is_coordinated_exit,
)

EXIT_TIMEOUT_S: Final = 30.0
"""Time from a rank's exit reason to its exit, including a save in progress.
A lower value may cut off the save; a higher value detects a hung exit later."""
CLEAN_EXITS: Final = frozenset({Exit.DONE, Exit.PREEMPTED})
"""Exit codes that need no failure cause."""
KILLED: Final = 128 + SIGKILL


class LocalFailures:
    """Finds the failure of a rank of this node."""

    def __init__(self, run_dir: RunDir, node_suffix: str) -> None:
        """`node_suffix` is ` on node 1` if there are several nodes."""
        self._run_dir = run_dir
        self._node_suffix = node_suffix
        self._exit_seen_s: float | None = None

    def find(self, now_s: float, step: int) -> FailureCause | None:
        """The failure; None without one, or on a coordinated exit.

        `step`: number of completed steps.
        """
        left, failure = self._run_dir.exit_reason(), self._run_dir.failure()
        if is_coordinated_exit(left):
            return None
        if left and self._exit_seen_s is None:
            self._exit_seen_s = now_s
        exiting_for_s = 0.0 if self._exit_seen_s is None else now_s - self._exit_seen_s
        last_line = ""
        if failure and failure.exit_code not in CLEAN_EXITS:
            last_line = self._run_dir.last_line(failure.rank)
        elif left and exiting_for_s > EXIT_TIMEOUT_S:
            # A rank exits once its save in progress has ended. A longer exit hangs.
            failure = Failure(left.rank or 0, left.exit_code)
        else:
            return None
        cause = cause_of_failure(failure, left, last_line, step, self._node_suffix)
        # After a long wait the rank's save has failed, so that the saves of the others cannot complete a checkpoint.
        return replace(cause, has_rank_died=exiting_for_s < FINAL_SAVE_S)

    def of_agent(self, code: int, step: int) -> FailureCause:
        """The failure of the agent, which has ended with `code`, if no rank has failed."""
        return FailureCause(
            code,
            step,
            f"torchrun{self._node_suffix} ended with exit code {code}",
            # It ends after its ranks, unless something killed it.
            is_consequence=code != KILLED,
        )

"""Distribution of tests over the processes of a run: one file per process at a time, and all tests with a Slurm in one process."""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

WITH_SLURM: Final = ("tests/contract/", "tests/e2e/test_slurm.py")
"""Where tests use the Slurm of their test process. A Slurm in each process takes half a minute each to start and end."""
SLURM: Final = "slurm"
WAITING: Final = (SLURM, "tests/e2e/", "tests/demo_history/")
"""Tests that mostly wait for other processes."""
LANES: Final = 3
"""One process in so many runs what waits while the others compute. With a lower value cores idle once what computes is done; with a
higher value the tests that wait end last."""


class Scheduling(LoadFileScheduling):
    """Keeps tests together that share what is expensive, and runs tests that wait beside tests that compute."""

    def _split_scope(self, nodeid: str) -> str:
        if "slurm" in nodeid and nodeid.startswith(WITH_SLURM):
            return SLURM
        scope: str = super()._split_scope(nodeid)
        return scope

    def _assign_work_unit(self, node: WorkerController) -> None:
        waits = self.nodes.index(node) % LANES == 0
        fit = (scope for scope in self.workqueue if scope.startswith(WAITING) == waits)
        if (scope := next(fit, None)) is not None:
            self.workqueue.move_to_end(scope, last=False)
        super()._assign_work_unit(node)

    def remove_node(self, node: WorkerController) -> str | None:
        """Give what a process has not run to the others, but for the test on which it ended, which would end them, too."""
        units = self.assigned_work[node]
        left = [
            (unit, test) for unit in units.values() for test, is_over in unit.items() if not is_over
        ]
        for unit, test in left[:1]:
            unit[test] = True
        for scope in [scope for scope, unit in units.items() if all(unit.values())]:
            del units[scope]  # A process that is given nothing is never given anything again.
        super().remove_node(node)
        return left[0][1] if left else None

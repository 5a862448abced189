"""Distribution of tests over test processes: by file, and all Slurm tests in one process."""

from __future__ import annotations

from typing import Final

from xdist.scheduler import LoadFileScheduling
from xdist.workermanage import WorkerController

WITH_SLURM: Final = ("tests/contract/", "tests/e2e/test_slurm.py")
"""Tests that use the Slurm of their test process.

A Slurm takes half a minute to start and end.
"""
SLURM: Final = "slurm"
WAITING: Final = (
    SLURM,
    "tests/e2e/",
    "tests/repository/test_interruption.py",
    "tests/repository/test_hang_guard.py",
    "tests/demo_history/",
)
"""Tests that mostly wait for other processes."""
LANES: Final = 3
"""One in this many processes runs waiting tests while the others compute.

With a lower value, cores idle once the computing tests are done; with a higher value, the waiting tests end
last.
"""


class Scheduling(LoadFileScheduling):
    """Schedules tests with a common fixture together, and waiting tests beside CPU-bound ones."""

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
        """Reassign the remaining tests of a crashed process, except for the test that crashed it."""
        units = self.assigned_work[node]
        left = [
            (unit, test) for unit in units.values() for test, is_over in unit.items() if not is_over
        ]
        for unit, test in left[:1]:
            unit[test] = True
        for scope in [scope for scope, unit in units.items() if all(unit.values())]:
            del units[scope]  # A process without assigned tests is never assigned any again.
        super().remove_node(node)
        return left[0][1] if left else None

"""The distribution of test files over the processes of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

from support.scheduling import Scheduling

COLLECTED = [
    "tests/e2e/test_slurm.py::test_a",
    "tests/e2e/test_up.py::test_a",
    "tests/e2e/test_demo.py::test_a",
    "tests/fault_injection/test_reconciler_faults.py::test_a",
    "tests/worker/test_run.py::test_a",
    "tests/worker/test_run.py::test_b",
    "tests/api/test_jobs.py::test_a",
    "tests/contract/test_slurm.py::test_a",
]


@dataclass(eq=False)
class Process:
    """A test process with the interface that the scheduler uses."""

    received: list[str] = field(default_factory=list)
    shutting_down: bool = False
    gateway: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(id="gw"))

    def send_runtest_some(self, indices: list[int]) -> None:
        self.received += [COLLECTED[index] for index in indices]

    def shutdown(self) -> None:
        self.shutting_down = True


def started(count: int) -> list[Process]:
    """Processes with their first files."""
    return scheduled(count)[1]


def scheduled(count: int) -> tuple[Scheduling, list[Process]]:
    """The scheduler, and processes with their first files."""
    option = SimpleNamespace(loadscopereorder=False)
    config = SimpleNamespace(option=option, getvalue=lambda _: [f"{count}*popen"])
    scheduling = Scheduling(config, None)
    processes = [Process() for _ in range(count)]
    for process in processes:
        scheduling.add_node(process)
        scheduling.add_node_collection(process, COLLECTED)
    scheduling.schedule()
    return scheduling, processes


def test_one_worker_in_three_gets_waiting_and_slurm_tests() -> None:
    first, second, third = started(3)

    assert first.received == [COLLECTED[0], COLLECTED[7], COLLECTED[1]], (
        "all tests with a Slurm first"
    )
    assert second.received == [COLLECTED[3], COLLECTED[6]]
    assert third.received[:2] == COLLECTED[4:6]


def test_worker_without_compute_tests_gets_waiting_tests() -> None:
    _, _, third = started(3)

    assert third.received[2:] == [COLLECTED[2]]


def test_test_that_crashed_its_process_is_not_repeated() -> None:
    scheduling, (first, second) = scheduled(2)

    crashed = scheduling.remove_node(first)
    for number, test in enumerate(second.received):  # Grows when the process receives more tests.
        scheduling.mark_test_complete(second, COLLECTED.index(test))
        assert number < len(COLLECTED)

    assert crashed == COLLECTED[0]
    assert sorted(second.received) == sorted(COLLECTED[1:])
    assert scheduling.tests_finished


def test_worker_crash_on_the_last_test_leaves_no_pending_tests() -> None:
    scheduling, [only] = scheduled(1)
    for test in COLLECTED:
        if test != COLLECTED[6]:
            scheduling.mark_test_complete(only, COLLECTED.index(test))

    crashed = scheduling.remove_node(only)

    assert crashed == COLLECTED[6]
    assert scheduling.tests_finished

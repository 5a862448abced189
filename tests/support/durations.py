"""Wall and CPU seconds of each test file, summed over setup, call and teardown of its tests."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Generator

import pytest
from support.fork_server import Forked


class Durations:
    """A plugin that prints the slowest test files after a run.

    `--durations=N` prints N files, and `--durations=0` all of them.
    """

    def __init__(self, shown: int | None) -> None:
        self._shown = shown
        self._wall_s: defaultdict[str, float] = defaultdict(float)
        self._cpu_s: defaultdict[str, float] = defaultdict(float)
        self._used_s = _used_s()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """Add the CPU time to the report.

        This runs in the test process, which may differ from the process that prints the table.
        """
        report = yield
        before_s, self._used_s = self._used_s, _used_s()
        report.__dict__["cpu_s"] = self._used_s - before_s
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Add the time of a setup, call or teardown."""
        file = report.nodeid.partition("::")[0]
        self._wall_s[file] += report.duration
        # The report of a test process that crashed has no CPU time.
        self._cpu_s[file] += getattr(report, "cpu_s", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the slowest files."""
        if self._shown is None:
            return
        slowest = sorted(self._wall_s, key=lambda file: -self._wall_s[file])
        terminalreporter.section("slowest files")
        for file in slowest[: self._shown or None]:
            self._write(terminalreporter, file, self._wall_s[file], self._cpu_s[file])
        sums = sum(self._wall_s.values()), sum(self._cpu_s.values())
        self._write(terminalreporter, f"all {len(slowest)} files", *sums)

    def _write(
        self, reporter: pytest.TerminalReporter, what: str, wall_s: float, cpu_s: float
    ) -> None:
        reporter.write_line(f"{wall_s:8.1f} s {cpu_s:8.1f} CPU-s  {what}")


def _used_s() -> float:
    """Return the CPU time of this process and of its terminated child processes."""
    times = os.times()
    own_s = times.user + times.system + times.children_user + times.children_system
    return own_s + Forked.used_s

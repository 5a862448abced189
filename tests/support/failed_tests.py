"""A file with the tests of a run that failed, one in each line, so that `make test-failed` can run them alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

import pytest

FILE: Final = "HOLDFAST_TEST_FAILED"
"""Environment variable: the file to write."""


class FailedTests:
    """A plugin that writes the file at the end of a run. Without the variable it writes nothing."""

    def __init__(self) -> None:
        name = os.environ.get(FILE)
        self._file = Path(name) if name else None
        self._failed: dict[str, None] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember a test whose setup, call or teardown failed."""
        if report.failed:
            self._failed[report.nodeid] = None

    def pytest_sessionfinish(self, exitstatus: int) -> None:
        """Write the file, but not if the run broke off."""
        if self._file and exitstatus == pytest.ExitCode.TESTS_FAILED:
            self._file.parent.mkdir(exist_ok=True)
            self._file.write_text("".join(f"{name}\n" for name in self._failed))

"""One planted mistake: a replacement in one file, and the tests that have to notice it."""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = {"service": "holdfast", "worker": "holdfast_worker"}
"""Importable package by top folder."""
TEST_TIMEOUT_S: Final = 60
"""A mistake may make a test hang. A lower value fails slow tests that would pass."""

_FORK: Final = multiprocessing.get_context("forkserver")
_FORK.set_forkserver_preload(["torch", "sqlalchemy", "alembic", "boto3", "pydantic"])
"""Test runs are forked from a process that has imported these, which takes seconds."""


class Tier(StrEnum):
    """The make target whose tests notice a mistake."""

    TEST = "test"
    TEST_ALL = "test-all"


@dataclass(frozen=True, kw_only=True, slots=True)
class Mistake:
    """A mistake and the tests that have to fail with it."""

    name: str
    file: str
    """Path from the root of the repository."""
    old: str
    """Occurs exactly once in the file."""
    new: str
    tests: tuple[str, ...] = ()
    """Test files or node ids, from the root of the repository."""
    tier: Tier = Tier.TEST
    equivalent: str = ""
    """Why no test can notice it; empty if tests have to."""

    def planted_text(self) -> str:
        """The text of the file with the mistake.

        Raises:
            ValueError: `old` does not occur exactly once.
        """
        text = (ROOT / self.file).read_text(encoding="utf-8")
        if (count := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: the old text occurs {count} times in {self.file}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class TestRun:
    """The result of a run of pytest."""

    exit_code: int
    failed: tuple[str, ...]
    """Node ids of tests that failed."""
    output: str

    @property
    def is_caught(self) -> bool:
        """Whether tests ran and one of them failed."""
        return self.exit_code == pytest.ExitCode.TESTS_FAILED and bool(self.failed)


def run_tests(
    tests: Sequence[str],
    tier: Tier,
    options: Sequence[str] = (),
    python_path: Sequence[str] = (),
) -> TestRun:
    """Run tests in a separate process, with `python_path` before the installed packages."""
    arguments = ["-rfE", "--tb=short", *options, *tests]
    with tempfile.NamedTemporaryFile("r") as output:
        process = _FORK.Process(
            target=_run_pytest, args=(arguments, tier, python_path, output.name)
        )
        process.start()
        process.join()
        text = output.read()
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+::\S+)", text, re.MULTILINE)
    return TestRun(process.exitcode or 0, tuple(failed), text)


def _run_pytest(
    arguments: Sequence[str], tier: Tier, python_path: Sequence[str], output: str
) -> None:
    with Path(output).open("w") as file:
        os.dup2(file.fileno(), sys.stdout.fileno())
        os.dup2(file.fileno(), sys.stderr.fileno())
    multiprocessing.set_start_method(None, force=True)  # Data loaders of tests use the default.
    os.chdir(ROOT)
    sys.path[:0] = python_path
    for package in PACKAGES.values() if python_path else ():
        found = importlib.util.find_spec(package)
        origin = str(found and found.origin)
        assert origin.startswith(tuple(python_path)), f"{origin} is imported instead of the copy"
    # Otherwise every run would compile all modules.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPATH"] = os.pathsep.join(python_path)
    os.environ["HOLDFAST_TEST_FULL"] = "1" if tier is Tier.TEST_ALL else ""
    sys.exit(pytest.main([*arguments]))


def run_planted(mistake: Mistake) -> TestRun:
    """Run the tests of a mistake on a copy of its package, up to the first failure.

    Raises:
        ValueError: the mistake does not fit its file.
    """
    with _planted_copy(mistake) as copy:
        path = [str(copy / top) for top in PACKAGES]
        return run_tests(mistake.tests, mistake.tier, ("-x", f"--timeout={TEST_TIMEOUT_S}"), path)


@contextmanager
def _planted_copy(mistake: Mistake) -> Iterator[Path]:
    """Copy the package with the mistake to a directory that links to the rest of the repository."""
    planted = mistake.planted_text()
    top = Path(mistake.file).parts[0]
    with tempfile.TemporaryDirectory(prefix="holdfast-mistake-") as folder:
        copy = Path(folder)
        for entry in ROOT.iterdir():
            if entry.name != top:
                (copy / entry.name).symlink_to(entry)
        shutil.copytree(ROOT / top, copy / top)
        # Copied files keep their times, so that compiled files of all but this one stay valid.
        (copy / mistake.file).write_text(planted, encoding="utf-8")
        yield copy

"""A hang in a test, in its cleanup or at the exit of the interpreter fails the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]
CONFTEST = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
from support.hang_guard import LastResort

def pytest_configure(config):
    config.pluginmanager.register(LastResort(grace_s=1))
"""
WAITS_IN_FINALLY = """
import threading

def test_it():
    try:
        threading.Event().wait()
    finally:
        threading.Event().wait()
"""
WAITS_IN_A_FIXTURE = """
import threading
import pytest

@pytest.fixture
def thing():
    yield
    threading.Event().wait()

def test_it(thing):
    assert False
"""
WAITS_AT_EXIT = """
import threading

def test_it():
    threading.Thread(target=threading.Event().wait).start()
"""
LONGEST_S = 240
"""Longest duration of a run that hangs. A lower value would fail on a busy machine."""


@pytest.mark.parametrize(
    "text",
    [WAITS_IN_FINALLY, WAITS_IN_A_FIXTURE, WAITS_AT_EXIT],
    ids=["finally", "fixture", "exit"],
)
def test_hanging_test_fails_the_run(tmp_path: Path, text: str) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(text)
    options = ["--rootdir", tmp_path, "-o", "timeout=8", "-p", "no:cacheprovider"]

    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        check=False,
        cwd=tmp_path,
        timeout=LONGEST_S,
        capture_output=True,
        text=True,
    )

    assert run.returncode == 1, run.stdout
    assert "Timeout (0:00:0" in run.stderr
    assert "in wait" in run.stderr

"""An interrupted test run leaves no process behind, and no test listens beyond loopback."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psutil
import pytest
from support.process_sweep import LOOPBACK, may_listen_anywhere
from support.tiers import TIER, UNTIL
from worker.support.run_driver import wait_until

ROOT = Path(__file__).parents[2]
GONE_WITHIN_S = 60
AT_TERMINAL = [sys.executable, "-c", "import pty, sys; pty.spawn(sys.argv[1:])"]
CTRL_C = b"\x03"


@pytest.mark.parametrize(
    ("test", "by", "names"),
    [
        ("test_with_a_daemon", signal.SIGINT, {"python"}),
        ("test_with_servers", signal.SIGKILL, {"postgres"}),
    ],
)
def test_nothing_outlives_an_interrupted_run(
    tmp_path: Path, test: str, by: signal.Signals, names: set[str]
) -> None:
    ready = tmp_path / "ready"
    command, given = interrupted_run(test, tmp_path, ready)
    with started_run(command, given) as run:
        wait_until(lambda: is_ready(ready))
        started = psutil.Process(run.pid).children(recursive=True)
        found = names_of(started)

        run.send_signal(by)
        _, alive = psutil.wait_procs(started, timeout=GONE_WITHIN_S)

    for folder in parse_qs(urlsplit(ready.read_text()).query).get("host", []):
        shutil.rmtree(folder.strip())
    assert names <= found
    assert not alive


@pytest.mark.full
def test_nothing_outlives_ctrl_c_with_several_test_processes(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    command, given = interrupted_run("test_with_a_daemon", tmp_path, ready)
    several = ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    with started_run([*AT_TERMINAL, *command, *several], given, stdin=subprocess.PIPE) as run:
        assert run.stdin
        wait_until(lambda: is_ready(ready))
        started = psutil.Process(run.pid).children(recursive=True)

        run.stdin.write(CTRL_C)
        run.stdin.flush()
        _, alive = psutil.wait_procs(started, timeout=GONE_WITHIN_S)

    assert len(started) >= 6, "the run, its reaper, what they run in, two test processes, a daemon"
    assert not alive


def interrupted_run(test: str, folder: Path, ready: Path) -> tuple[list[str], dict[str, str]]:
    """Command and environment of a run of a test that writes `ready` and waits for an interrupt."""
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "conftest"]
    words = [
        f"--basetemp={folder / 'inner'}",
        f"{Path(__file__).with_name('interrupted_run.py')}::{test}",
    ]
    outer = {name: value for name, value in os.environ.items() if name not in (TIER, UNTIL)}
    return [*command, *words], {
        **outer,
        "PYTHONPATH": str(ROOT / "tests"),
        "READY": str(ready),
    }


@contextmanager
def started_run(
    command: list[str], given: dict[str, str], stdin: int | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A run that ends with the block, also when the test fails."""
    with subprocess.Popen(command, env=given, stdin=stdin, stdout=subprocess.DEVNULL) as run:
        try:
            yield run
        finally:
            run.kill()


def names_of(processes: list[psutil.Process]) -> set[str]:
    """Names of the processes that still run. PostgreSQL starts some that end at once."""
    names = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            names.add(process.name())
    return names


def is_ready(file: Path) -> bool:
    return file.exists() and file.read_text().endswith("\n")


@pytest.mark.parametrize(
    ("address", "is_loopback"),
    [
        ("0100007F", True),
        ("0200007F", True),
        ("00000000", False),
        ("0100000A", False),
        ("00000000000000000000000001000000", True),
        ("0000000000000000FFFF00000100007F", True),
        ("00000000000000000000000000000000", False),
        ("0000000000000000FFFF000000000000", False),
    ],
)
def test_loopback_addresses_are_recognized(address: str, is_loopback: bool) -> None:
    assert bool(LOOPBACK.fullmatch(address)) == is_loopback


@pytest.mark.parametrize(
    ("maps", "may_listen"),
    [
        ("7f0000000000-7f0000001000 r-xp 00000000 08:01 1 /usr/lib/libc.so.6\n", False),
        ("7f0000000000-7f0000001000 r-xp 00000000 08:01 1 /venv/libtorch_cpu.so\n", True),
        ("", True),
    ],
    ids=["python", "torch", "terminating"],
)
def test_torch_and_terminating_processes_may_listen(maps: str, may_listen: bool) -> None:
    assert may_listen_anywhere(maps) == may_listen

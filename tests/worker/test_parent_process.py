"""Processes that end with their parent, also if it ends before the call."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CHILD = """
import os, sys
from holdfast_worker.parent_process import die_with_parent
starter = int(sys.argv[1])
while sys.argv[2] == "late" and os.getppid() == starter:
    pass  # As while torch is loaded.
die_with_parent(starter)
print("tied", flush=True)
"""


def output_of(child: str, starter: str, when: str) -> str:
    """Output of a child whose parent exits at once if `when` is `late`, and waits otherwise."""
    script = f'"{sys.executable}" "{child}" {starter} {when}' + (
        " &" if when == "late" else "; true"
    )
    started = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, timeout=60, check=True
    )
    return started.stdout


def test_process_orphaned_before_being_tied_exits(tmp_path: Path) -> None:
    child = tmp_path / "child.py"
    child.write_text(CHILD)

    in_time = output_of(str(child), "$$", "early")
    too_late = output_of(str(child), "$$", "late")

    assert in_time == "tied\n"
    assert too_late == ""


def test_ranks_know_the_process_of_their_agent(tmp_path: Path) -> None:
    program = (
        "import os; from holdfast_worker.config import AGENT, Config, export_variable, environment; "
        "export_variable(AGENT, str(os.getpid())); print(Config.read(environment()).agent == os.getpid())"
    )

    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True,
        env={"PATH": os.environ["PATH"]}, cwd=tmp_path,
    )  # fmt: skip

    assert output.stdout == "True\n"


def test_failed_rank_exits_without_interpreter_teardown(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import atexit, sys\n"
        "class Large:\n"
        "    def __del__(self): print('torn down')\n"
        "large = sys.modules['large'] = Large()\n"
        "atexit.register(print, 'handled')\n"
        "if len(sys.argv) > 1: raise ValueError('it failed')\n"
    )
    run = [sys.executable, "-m", "holdfast_worker.node.rank_entrypoint", str(script)]

    ends = [
        subprocess.run([*run, *args], check=False, capture_output=True, text=True)
        for args in ([], ["x"])
    ]

    assert [(end.returncode, end.stdout.split("\n")[:-1]) for end in ends] == [
        (0, ["handled", "torn down"]),
        (1, ["handled"]),
    ]
    assert "ValueError: it failed" in ends[1].stderr

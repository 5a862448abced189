"""Processes that die with their parent, also if it dies before the call."""

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
    """What a child prints whose starter ends at once where it is `late`, and waits for it elsewhere."""
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


def test_the_ranks_of_an_agent_know_it(tmp_path: Path) -> None:
    words = (
        "import os; from holdfast_worker.config import AGENT, Config, export_variable, environment; "
        "export_variable(AGENT, str(os.getpid())); print(Config.read(environment()).agent == os.getpid())"
    )

    output = subprocess.run(
        [sys.executable, "-c", words], capture_output=True, text=True, timeout=60, check=True,
        env={"PATH": os.environ["PATH"]}, cwd=tmp_path,
    )  # fmt: skip

    assert output.stdout == "True\n"


def test_rank_that_failed_ends_without_taking_its_memory_apart(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        "import atexit, sys\n"
        "class Large:\n"
        "    def __del__(self): print('taken apart')\n"
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
        (0, ["handled", "taken apart"]),
        (1, ["handled"]),
    ]
    assert "ValueError: it failed" in ends[1].stderr

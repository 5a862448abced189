"""The example, which a test holds at a given step: however slow the test is, the program has not ended before it acts."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

from support.live_service import EXAMPLE

HELD_AT = 24
"""Step in which the program is held, some steps after the first checkpoint is due."""
_END_OF_STEP = "        scheduler.step()\n"


def held_example(
    folder: Path, *, first: int = HELD_AT, last: int = HELD_AT, most_s: float = math.inf
) -> Path:
    """A copy of the example in which the steps `first` to `last` do not end before the release, but after `most_s` seconds."""
    copy = folder / "held"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    script = (copy / "train.py").read_text()
    assert script.count(_END_OF_STEP) == 1
    hold = f"""\
        while (
            {first} <= run.step <= {last}
            and not Path({str(folder / "released")!r}).exists()
            and time.monotonic() < began_s + float("{most_s}")
        ):
            time.sleep(0.05)
"""
    (copy / "train.py").write_text(script.replace(_END_OF_STEP, _END_OF_STEP + hold))
    return copy


def release(folder: Path) -> None:
    """Let the program of `held_example` continue."""
    (folder / "released").touch()

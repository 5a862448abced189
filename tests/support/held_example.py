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
    folder: Path,
    *,
    first: int = HELD_AT,
    last: int = HELD_AT,
    again: int = -1,
    most_s: float = math.inf,
    until_notice: bool = False,
) -> Path:
    """A copy of the example in which the steps `first` to `last` and `again` do not end before the release, but after `most_s` seconds.

    With `until_notice`, a rank with a termination notice is not held. `is_held` returns whether the program has reached such a step.
    """
    copy = folder / "held"
    shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    script = (copy / "train.py").read_text()
    assert script.count(_END_OF_STEP) == 1
    hold = f"""\
        from holdfast_worker.preemption.notice import NOTICE
        if {first} <= run.step <= {last} or run.step == {again}:
            Path({str(folder)!r}, f"held-{{run.step}}").touch()
        while (
            ({first} <= run.step <= {last} or run.step == {again})
            and not any(Path({str(folder)!r}, name).exists() for name in ("released", f"released-{{run.step}}"))
            and time.monotonic() < began_s + float("{most_s}")
            and not ({until_notice} and NOTICE.is_raised)
        ):
            time.sleep(0.05)
"""
    (copy / "train.py").write_text(script.replace(_END_OF_STEP, _END_OF_STEP + hold))
    return copy


def release(folder: Path, step: int | None = None) -> None:
    """Let the program of `held_example` continue after a step; None: after all."""
    (folder / ("released" if step is None else f"released-{step}")).touch()


def is_held(folder: Path, step: int = HELD_AT) -> bool:
    """Whether a rank of `held_example` has reached the end of a step in which it is held."""
    return (folder / f"held-{step}").exists()

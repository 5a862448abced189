"""Ends the run of a tracker that is still open when the ranks have ended.

Rank 0 ends its own run unless it is killed, as after a stall. The wrapper then opens that run again, in a process of its own, as
the package of a tracker may take long or fail, and shows how the attempt ended.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final

from holdfast_worker.console import log_info
from holdfast_worker.run_dir import ExitReason, RunDir
from holdfast_worker.telemetry.trackers import AttemptOutcome, MLflow, Trackio, WandB

END_S: Final = 20.0
"""How long the end of such a run may take.
A lower value leaves a run behind a slow server shown as running; a higher value pays for an idle node."""

TRACKERS: Final[Mapping[str, type[MLflow | Trackio | WandB]]] = {
    kind.__name__: kind for kind in (MLflow, Trackio, WandB)
}
"""Trackers whose runs have a status, by name. Those of users end with their process."""


def end_open_tracker(run_dir: RunDir, left: ExitReason) -> None:
    """Show in a tracker's open run, if there is one, how the attempt ended. Errors are logged."""
    opened = run_dir.open_tracker()
    if not opened or opened.get("tracker") not in TRACKERS:
        return
    program = [sys.executable, "-m", __name__, str(run_dir.path), json.dumps(asdict(left))]
    try:
        done = subprocess.run(
            program, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, timeout=END_S, check=False
        )  # fmt: skip
        lines = done.stderr.decode(errors="replace").strip().splitlines()
        problem = (lines or [f"exit code {done.returncode}"])[-1] if done.returncode else ""
    except subprocess.TimeoutExpired:
        problem = f"no answer within {END_S:.0f} s"
    except OSError as error:
        problem = str(error)
    if problem:
        log_info(f"the end of the attempt is not shown in {opened['tracker']}: {problem}")


def main(folder: str, reason: str) -> None:
    """End the open run that is recorded in a run directory."""
    run_dir = RunDir(Path(folder))
    opened = run_dir.open_tracker()
    if not opened:
        return
    kind, arguments = TRACKERS[str(opened["tracker"])], opened["arguments"]
    assert isinstance(arguments, dict), "written as an object"
    left = ExitReason(**json.loads(reason))
    tracker = kind(**arguments)
    tracker.open(str(opened["job"]), int(str(opened["step"])))
    tracker.end(AttemptOutcome.of(left, run_dir.stop()), left)
    tracker.close()
    run_dir.clear_tracker()


if __name__ == "__main__":
    main(*sys.argv[1:])

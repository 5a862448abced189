"""Log two attempts of a job to trackio and print the recorded steps and alerts.

The second attempt starts at step 20. The program runs in the environment of trackio.
"""

from __future__ import annotations

import json

from holdfast_worker.optional_imports import import_optional
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.run_dir import ExitReason
from holdfast_worker.telemetry.trackers import TrackerRun, Trackio

PROJECT, JOB = "lessons", "j1abc"


def main() -> None:
    """Print a JSON object as the last line."""
    ends = (
        (0, 30, ExitReason("failed", Exit.FAILED, 30, "ValueError: no such layer")),
        (20, 40, ExitReason("finished", Exit.DONE, 40)),
    )
    for begin, end, left in ends:
        curve = TrackerRun(Trackio(PROJECT, embed=False))
        curve.open(JOB, begin)
        for step in range(begin + 1, end + 1):
            curve.write(step, {"loss": step / 10})
        curve.close(left)
    store = import_optional("trackio.sqlite_storage", "trackio").SQLiteStorage
    alerts = [[row["title"], row["text"], row["level"]] for row in store.get_alerts(PROJECT, JOB)]
    steps = [row["step"] for row in store.get_logs(PROJECT, JOB)]
    print(json.dumps({"steps": steps, "alerts": alerts}))


if __name__ == "__main__":
    main()

"""Log two attempts of a job to trackio and print the recorded steps.

The second attempt starts at step 20. The program runs in the environment of trackio.
"""

from __future__ import annotations

import json

from holdfast_worker.optional_imports import import_optional
from holdfast_worker.telemetry.trackers import TrackerRun, Trackio

PROJECT, JOB = "lessons", "j1abc"


def main() -> None:
    """Print a JSON list as the last line."""
    for begin, end in ((0, 30), (20, 40)):
        curve = TrackerRun(Trackio(PROJECT, embed=False))
        curve.open(JOB, begin)
        for step in range(begin + 1, end + 1):
            curve.write(step, {"loss": step / 10})
        curve.close()
    store = import_optional("trackio.sqlite_storage", "trackio").SQLiteStorage
    print(json.dumps([row["step"] for row in store.get_logs(PROJECT, JOB)]))


if __name__ == "__main__":
    main()

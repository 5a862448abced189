"""Parses tasks in the environment of the real SkyPilot and reports the result.

Runs without a network. Input and output have one JSON value per line. Input: a list of tasks as YAML. Output:
a list of `{"error": ...}` or of the contents of the parsed task.
"""

from __future__ import annotations

import atexit
import csv
import json
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["HOME"] = tempfile.mkdtemp(prefix="holdfast-sky-")
atexit.register(shutil.rmtree, os.environ["HOME"], ignore_errors=True)
os.environ["SKYPILOT_DISABLE_USAGE_COLLECTION"] = "1"
os.environ["SKYPILOT_DISABLE_LOCAL_API_SERVER"] = "1"
os.environ["SKYPILOT_MINIMIZE_LOGGING"] = "1"

# Names of accelerators, so that SkyPilot need not download a list. It keeps a list without a digest file.
CATALOG = Path(os.environ["HOME"], ".sky/catalogs/v8/common/accelerators.csv")
ACCELERATORS = ("A100", "A100-80GB", "H100", "H200", "L4", "T4", "V100")

ANSWERS = sys.stdout
sys.stdout = sys.stderr  # Output of SkyPilot must not mix with the protocol.


def read(text: str) -> dict[str, Any]:
    """Parse a task as `sky jobs launch` does and check it as its server does."""
    import yaml
    from sky import task as task_lib
    from sky.jobs import recovery_strategy  # noqa: F401 - registers the strategies
    from sky.utils import registry

    raw = yaml.safe_load(text)
    task = task_lib.Task.from_yaml_config(raw)
    task.validate_name()
    task.validate_run()
    resources = list(task.resources)
    for one in resources:
        strategy = one.job_recovery or {}
        if strategy.keys() - {"strategy", "max_restarts_on_errors", "recover_on_exit_codes"}:
            raise ValueError(f"the server refuses {strategy}")
        registry.JOBS_RECOVERY_STRATEGY_REGISTRY.from_str(strategy.get("strategy"))
        if one.job_recovery != resources[0].job_recovery:
            raise ValueError("job_recovery differs between candidates")
        if one.autostop_config != resources[0].autostop_config:
            raise ValueError("autostop differs between candidates")
    return {
        "name": task.name,
        "num_nodes": task.num_nodes,
        "workdir": task.workdir,
        "setup": task.setup,
        "run": task.run,
        "envs": task.envs,
        "secrets": sorted(task.secrets),
        "file_mounts": task.file_mounts,
        "ordered": isinstance(task.resources, list),
        "resources": [one.to_yaml_config() for one in resources],
    }


def main() -> None:
    """Answer requests until the input ends."""
    CATALOG.parent.mkdir(parents=True)
    with CATALOG.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["AcceleratorName", "Clouds", "Regions"])
        table.writerows([name, "AWS", ""] for name in ACCELERATORS)
    import sky.exceptions

    wrong = (ValueError, TypeError, KeyError, AssertionError, sky.exceptions.StorageError)
    for line in sys.stdin:
        answers: list[dict[str, Any]] = []
        for text in json.loads(line):
            try:
                answers.append(read(text))
            except wrong as error:
                answers.append({"error": f"{type(error).__name__}: {error}"})
        print(json.dumps(answers), file=ANSWERS, flush=True)


if __name__ == "__main__":
    main()

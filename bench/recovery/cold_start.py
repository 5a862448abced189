"""CPU time of the start of a node, with forked ranks and without. See README.md; run it with `make bench-recovery`."""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

GOAL = 0.6
"""Share of the CPU time without forks that a start may take."""
SCRIPTS = {
    "torch.distributed": """
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
""",
    "Run": """
import torch
import torch.distributed as dist
from holdfast_worker import Run

run = Run.start()
dist.all_reduce(torch.ones(1))
""",
    "Run with a step": """
import torch
from holdfast_worker import Run

run = Run.start()
model = run.wrap(torch.nn.Linear(4, 1))
optimizer = torch.optim.AdamW(model.parameters())
run.track(model=model, optimizer=optimizer)
for x in run.steps(torch.utils.data.DataLoader(torch.ones(8, 4)), total=1):
    model(x).mean().backward()
    optimizer.step()
""",
}


def main() -> None:
    """Start, measure and print; fails where the goal is missed."""
    words = argparse.ArgumentParser(prog="python -m recovery.cold_start", description=__doc__)
    words.add_argument("--times", type=int, default=5, help="how often each script is started")
    words.add_argument("--ranks", type=int, default=2)
    words.add_argument("--out", type=Path, help="file for the figures as JSON")
    asked = words.parse_args()
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{os.cpu_count()} cores, load {load}; {asked.ranks} ranks, medians of {asked.times}")
    print(
        f"{'script':<20}{'new CPU-s':>11}{'forked CPU-s':>14}{'share':>8}{'new s':>9}{'forked s':>10}"
    )
    figures = {name: _measured(text, asked.ranks, asked.times) for name, text in SCRIPTS.items()}
    if asked.out:
        asked.out.write_text(json.dumps(figures, indent=1))
    for name, runs in figures.items():
        (new, new_s), (forked, forked_s) = (
            [statistics.median(values) for values in zip(*runs[kind], strict=True)]
            for kind in ("new", "forked")
        )
        shown = f"{name:<20}{new:>11.2f}{forked:>14.2f}{forked / new:>8.2f}"
        print(f"{shown}{new_s:>9.2f}{forked_s:>10.2f}")
        if forked > GOAL * new:
            sys.exit(f"{name}: forked ranks should take at most {GOAL} of the CPU time")


def _measured(text: str, ranks: int, times: int) -> dict[str, list[tuple[float, float]]]:
    """CPU seconds and seconds of each start, in turns as the machine may get busier."""
    runs: dict[str, list[tuple[float, float]]] = {"new": [], "forked": []}
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "script.py"
        script.write_text(text)
        for number in range(times):
            for kind, warm in (("new", "0"), ("forked", "1")):
                home = Path(folder) / f"{kind}-{number}"
                runs[kind].append(_started(script, ranks, home, warm))
    return runs


def _started(script: Path, ranks: int, home: Path, warm: str) -> tuple[float, float]:
    home.mkdir()
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "SKYPILOT_"))}
    env = {
        **clean,
        "GLOO_SOCKET_IFNAME": "lo",
        "HOLDFAST_ATTEMPT": "1",
        "HOLDFAST_JOB": "bench",
        "HOLDFAST_RUN_DIR": str(home / "run"),
        "HOLDFAST_STORE": f"file://{home}/store",
        "HOLDFAST_WARM": warm,
    }
    words = ["-m", "holdfast_worker", "run", "--nproc-per-node", str(ranks), str(script)]
    before, began_s = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(
        [sys.executable, *words], env=env, capture_output=True, text=True, check=False
    )
    took_s = time.monotonic() - began_s
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("new interpreters" in done.stderr) == (warm == "0"), done.stderr
    return used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime, took_s


if __name__ == "__main__":
    main()

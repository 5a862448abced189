"""Time from the kill of one of two ranks on a standing node to the next new step. See README.md."""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

TIMEOUT_S = 120.0
SETTLE_S = 2.0
"""Training time before the kill."""
SAVE_EVERY = 10
COMMON = """
import json, os, time
import torch

def log(step):
    if os.environ["RANK"] == "0":
        with open(os.environ["STEPS"], "a") as file:
            print(os.getpid(), step, time.time(), file=file)

open(os.environ["PIDS"] + os.environ["RANK"], "w").write(str(os.getpid()))
torch.set_num_threads(1)
layers = [torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1)]
data = torch.ones(4096, 64)
"""
OURS = f"""{COMMON}
from holdfast_worker import Run

run = Run.start()
model = run.wrap(torch.nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters())
run.track(model=model, optimizer=optimizer)
for x in run.steps(torch.utils.data.DataLoader(data, 8), total=10**6):
    model(x).mean().backward()
    optimizer.step()
    time.sleep(0.02)
    log(run.step + 1)
"""
PLAIN = f"""{COMMON}
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Sequential(*layers))
optimizer = torch.optim.AdamW(model.parameters())
file, step = os.environ["SAVED"], 0
if os.path.exists(file):
    saved = torch.load(file)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    step = saved["step"]
while True:
    optimizer.zero_grad()
    model(data[:8]).mean().backward()
    optimizer.step()
    time.sleep(0.02)
    step += 1
    log(step)
    if step % {SAVE_EVERY} == 0 and os.environ["RANK"] == "0":
        state = {{"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}}
        torch.save(state, file + ".draft")
        os.replace(file + ".draft", file)
"""
"""As in torchrun's documentation: rank 0 saves, and all ranks load what was saved."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """What the kill of a rank cost."""

    first_step_s: float
    """Seconds from the kill to the end of the first step of the restarted ranks."""
    new_step_s: float
    """Seconds from the kill to the end of the first step that had not been made before."""
    repeated_steps: int


Command = Callable[[Path, Mapping[str, str]], list[str]]


def _wrapper(script: Path, _env: Mapping[str, str]) -> list[str]:
    words = ["-m", "holdfast_worker", "run", "--nproc-per-node", "2", str(script)]
    return [sys.executable, *words]


def _restarted_wrapper(script: Path, env: Mapping[str, str]) -> list[str]:
    """A launcher that starts the wrapper again at once, as a new attempt."""
    program = 'for n in 1 2; do HOLDFAST_ATTEMPT=$n HOLDFAST_RUN_DIR=$RUNS/$n "$@" && break; done'
    return ["bash", "-c", program, "bash", *_wrapper(script, env)]


def _torchrun(script: Path, _env: Mapping[str, str]) -> list[str]:
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    return [sys.executable, "-m", "torch.distributed.run", *options, str(script)]


WAYS: dict[str, tuple[str, Command, Mapping[str, str]]] = {
    "Holdfast, ranks start again on the node": (OURS, _wrapper, {}),
    "Holdfast, new interpreters": (OURS, _wrapper, {"HOLDFAST_WARM": "0"}),
    "Holdfast, new attempt on the node": (OURS, _restarted_wrapper, {"HOLDFAST_MAX_RESTARTS": "0"}),
    # Without the variable, restarted ranks of gloo find the addresses of the old ones, and never meet.
    "torchrun --max-restarts=1": (PLAIN, _torchrun, {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
}


def main() -> None:
    """Kill, measure and print."""
    parser = argparse.ArgumentParser(prog="python -m recovery.rank_failure", description=__doc__)
    parser.add_argument("--times", type=int, default=5, help="kills of each kind")
    parser.add_argument("--out", type=Path, help="file for the figures as JSON")
    arguments = parser.parse_args()
    load = ", ".join(f"{each:.1f}" for each in os.getloadavg())
    print(f"{os.cpu_count()} cores, load {load}; medians of {arguments.times}")
    found: dict[str, list[Recovery]] = {name: [] for name in WAYS}
    for number in range(arguments.times):  # In turns, as the machine may get busier.
        for name, way in WAYS.items():
            print(f"\r{number + 1} of {arguments.times}: {name:<45}", end="", file=sys.stderr)
            found[name].append(_measure(*way))
    print(f"\r{'':<60}\r", end="", file=sys.stderr)
    if arguments.out:
        figures = {name: [vars_of(each) for each in all_] for name, all_ in found.items()}
        arguments.out.write_text(json.dumps(figures, indent=1))
    print(f"{'':<42}{'first step':>12}{'new step':>12}{'repeated':>10}{'ratio':>8}")
    reference = statistics.median(each.new_step_s for each in next(iter(found.values())))
    for name, recoveries in found.items():
        first, new, repeated = (
            statistics.median(values) for values in zip(*map(vars_of, recoveries), strict=True)
        )
        row = f"{name:<42}{first:>10.2f} s{new:>10.2f} s{repeated:>10.0f}"
        print(f"{row}{new / reference:>8.1f}")


def vars_of(recovery: Recovery) -> tuple[float, float, int]:
    """The figures of a recovery in the order of the columns."""
    return recovery.first_step_s, recovery.new_step_s, recovery.repeated_steps


def _measure(text: str, command: Command, extra: Mapping[str, str]) -> Recovery:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        script = home / "script.py"
        script.write_text(text)
        env = _environment(home, extra)
        with subprocess.Popen(
            command(script, env),
            env=env,
            start_new_session=True,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            try:
                return _kill_and_wait(home)
            finally:
                os.killpg(process.pid, signal.SIGTERM)
                time.sleep(0.5)
                os.killpg(process.pid, signal.SIGKILL)


def _environment(home: Path, extra: Mapping[str, str]) -> dict[str, str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HOLDFAST_", "SKYPILOT_"))}
    return {
        **clean,
        "GLOO_SOCKET_IFNAME": "lo",
        "OMP_NUM_THREADS": "1",
        "HOLDFAST_ATTEMPT": "1",
        "HOLDFAST_JOB": "bench",
        "HOLDFAST_RUN_DIR": str(home / "run"),
        "HOLDFAST_STORE": f"file://{home}/store",
        "HOLDFAST_EVERY": f"{SAVE_EVERY} steps",
        "PIDS": str(home / "pid-"),
        "RUNS": str(home / "runs"),
        "SAVED": str(home / "saved.pt"),
        "STEPS": str(home / "steps"),
        **extra,
    }


def _kill_and_wait(home: Path) -> Recovery:
    """Kill rank 1 during training, and wait until training has got further than before."""
    _wait(lambda: len(_steps(home)) > 2 * SAVE_EVERY)
    time.sleep(SETTLE_S)
    os.kill(int((home / "pid-1").read_text()), signal.SIGKILL)
    killed_s = time.time()
    first = _steps(home)[0].pid

    def furthest() -> int:
        return max(each.step for each in _steps(home) if each.pid == first)

    _wait(lambda: any(s.step > furthest() for s in _steps(home) if s.pid != first))
    again = [each for each in _steps(home) if each.pid != first]
    new = next(each for each in again if each.step > furthest())
    repeated = sum(each.step <= furthest() for each in again)
    return Recovery(again[0].at_s - killed_s, new.at_s - killed_s, repeated)


@dataclass(frozen=True, slots=True)
class Step:
    """A completed step of rank 0."""

    pid: int
    step: int
    at_s: float
    """End of the step by `time.time`."""


def _steps(home: Path) -> Sequence[Step]:
    """The logged steps; the last line may be incomplete."""
    file = home / "steps"
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [Step(int(pid), int(step), float(at_s)) for pid, step, at_s in map(str.split, lines)]


def _wait(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + TIMEOUT_S
    while not condition():
        if time.monotonic() > until_s:
            sys.exit("the ranks did not train in time")
        time.sleep(0.01)


if __name__ == "__main__":
    main()

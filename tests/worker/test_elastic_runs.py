"""Nodes join and leave under torchrun: the others continue, with every sample once per pass."""

from __future__ import annotations

import itertools
import os
import socket
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from holdfast.domain.jobfile.parser import Overrides, parse_job_file
from holdfast.rendering import TorchrunRequest, render, torchrun_commands
from support.live_service import free_port

from worker.scripts.elastic import SAMPLES, STEP
from worker.support.run_driver import STARTED, TIMEOUT_S, wait_until

ELASTIC_SCRIPT = str(Path(__file__).parent / "scripts/elastic.py")
TOTAL = 600
QUICK = "--rdzv-conf=last_call_timeout=3,keep_alive_interval=1,keep_alive_max_attempt=5"
"""Timeouts for nodes on one machine; torch's defaults are for networks, and up to a minute."""
SCRIPT = """
import os
identity = "-".join(os.environ[name] for name in ("GROUP_RANK", "LOCAL_RANK", "RANK", "WORLD_SIZE"))
os.write(1, f"{identity}\\n".encode())  # In one write, or lines of ranks would mix.
"""


@dataclass
class ElasticRun:
    """An elastic run of several nodes on this machine, and the recorded samples of its ranks."""

    path: Path
    port: int
    commands: list[str]
    is_elastic: bool
    """Whether nodes may leave and return."""
    terminals: dict[int, subprocess.Popen[str]] = field(default_factory=dict)

    def start_node(self, node: int) -> None:
        """Start a node."""
        command = self.commands[node]
        if self.is_elastic:
            command = command.replace("--rdzv-backend", f"{QUICK} --rdzv-backend")
        environment, torchrun = command.rsplit("torchrun ", 1)
        self.terminals[node] = subprocess.Popen(
            ["bash", "-ec", f"{environment}exec torchrun {torchrun}"],
            env={
                "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
                "HOME": str(self.path),
                "OMP_NUM_THREADS": "1",
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        STARTED.append(self.terminals[node])

    def kill(self, node: int) -> None:
        """Kill a node without notice to its ranks."""
        self.terminals[node].kill()
        self.terminals[node].communicate()

    def is_open(self) -> bool:
        """Whether the rendezvous is open."""
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def attempts(self) -> dict[tuple[int, int], dict[int, dict[int, list[int]]]]:
        """Samples of each attempt by step and rank; the key is its first step and world size."""
        found: dict[tuple[int, int], dict[int, dict[int, list[int]]]] = {}
        for file in self.path.glob("*.seen"):
            begin, world, rank, _ = map(int, file.stem.split("-"))
            attempt = found.setdefault((begin, world), defaultdict(dict))
            for line in file.read_text().splitlines():
                step, *samples = map(int, line.split())
                attempt[step][rank] = samples
        return found

    def saved(self) -> int:
        """The newest durable step; 0 before the first."""
        commits = self.path.glob("store/tide/commits/[0-9]*.json")
        return max((int(file.name.split("-")[0]) for file in commits), default=0)

    def is_training(self, world: int, after: int) -> bool:
        """Whether `world` ranks started at `after` or later and saved a checkpoint since."""
        saved = self.saved()
        return any(
            size == world and after <= begin < saved and len(steps) > 10
            for (begin, size), steps in self.attempts().items()
        )


def elastic_run(folder: Path, script: str, ranks: int, least: int | None = None) -> ElasticRun:
    """Three nodes with `ranks` ranks each."""
    file = (
        f"name: tide\nresources: {{infra: local}}\nrun: holdfast-worker run {script}\n"
        f"holdfast: {{checkpoint: {{store: 'file://{folder}/store', every: 10 steps}}}}\n"
    )
    spec, port = parse_job_file(file, Overrides()).spec, free_port()
    asked = TorchrunRequest(port=port, nodes=3, ranks=[ranks], least_nodes=least)
    commands = [node.command for node in torchrun_commands(spec, render(spec).task, asked)]
    return ElasticRun(folder, port, commands, is_elastic=least is not None)


def test_three_nodes_of_two_ranks_are_six_placed_ranks(
    tmp_path: Path,
) -> None:
    script = tmp_path / "tell.py"
    script.write_text(SCRIPT)
    run = elastic_run(tmp_path, str(script), ranks=2)

    for node in range(3):
        run.start_node(node)
    found = [run.terminals[node].communicate(timeout=TIMEOUT_S)[0] for node in range(3)]

    places = sorted(line.split("-") for line in "".join(found).split() if line.count("-") == 3)
    # torchrun numbers nodes as they join; node 0 has the first ranks.
    assert places == [[str(n), str(r), str(2 * n + r), "6"] for n in range(3) for r in range(2)]


@pytest.mark.full
def test_lost_and_returning_node_skips_and_repeats_no_sample(
    tmp_path: Path,
) -> None:
    run = elastic_run(tmp_path, f"{ELASTIC_SCRIPT} {TOTAL} {tmp_path}", ranks=1, least=2)
    run.start_node(0)  # The rendezvous host, which must not be lost.
    wait_until(run.is_open)
    for node in (1, 2):
        run.start_node(node)

    wait_until(lambda: run.is_training(3, after=0))
    run.kill(2)
    wait_until(lambda: run.is_training(2, after=1))
    run.start_node(2)
    wait_until(lambda: run.is_training(3, after=1))
    (tmp_path / "hurry").touch()
    for terminal in run.terminals.values():
        terminal.communicate(timeout=TIMEOUT_S)

    assert [terminal.returncode for terminal in run.terminals.values()] == [0, 0, 0]
    seen = surviving(run)
    assert len(seen) == TOTAL * STEP
    for tide in range(len(seen) // SAMPLES):
        one = seen[tide * SAMPLES : (tide + 1) * SAMPLES]
        assert sorted(one) == list(range(SAMPLES)), f"pass {tide}"


def surviving(run: ElasticRun) -> list[int]:
    """Samples behind the final weights, in order.

    Steps of an attempt after the step from which the next one resumed are lost and repeated.
    """
    attempts = sorted(run.attempts().items())
    ends = [begin for (begin, _), _ in attempts[1:]] + [TOTAL]
    seen: list[int] = []
    for ((begin, world), steps), end in zip(attempts, ends, strict=True):
        for step in range(begin + 1, end + 1):
            assert sorted(steps[step]) == list(range(world)), f"step {step} of {world} ranks"
            seen += itertools.chain(*(steps[step][rank] for rank in range(world)))
    return seen

"""The real SkyPilot as a parser and optimizer of tasks, in a separate environment without a network."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

HOME = Path(os.environ.get("HOLDFAST_SKYCLOUD") or "/var/tmp/holdfast-skycloud")
PYTHON = HOME / "venv/bin/python"


class NotHere(Exception):
    """Raised with the reason why SkyPilot cannot run on this machine."""


def demand_skypilot() -> None:
    """Return if SkyPilot can run on this machine.

    Raises:
        NotHere: it is not installed, or cannot be kept from the network.
    """
    if not PYTHON.exists():
        raise NotHere(f"SkyPilot is not installed at {HOME}; `make skypilot` installs it there")
    if os.geteuid() != 0:
        raise NotHere("SkyPilot runs without a network, for which root is needed")


class _Process:
    """A program in SkyPilot's environment that answers questions, one JSON value in each line."""

    def __init__(self, program: str, **environment: str) -> None:
        demand_skypilot()
        # A network namespace without a route: SkyPilot cannot reach other machines.
        script = str(Path(__file__).with_name(program))
        inside = 'ip link set lo up && exec "$0" "$@"'
        self._process = subprocess.Popen(
            ["unshare", "-n", "sh", "-c", inside, str(PYTHON), script],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, question: Any) -> Any:
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "SkyPilot has died"
        return json.loads(answer)

    def close(self) -> None:
        """Close the input of the process, which then ends."""
        self._process.communicate()


class SkyPilot(_Process):
    """A process in which SkyPilot parses tasks."""

    def __init__(self) -> None:
        super().__init__("task_reader.py")

    def read(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Return what SkyPilot parses from each task: its parts, or `error`."""
        found: list[dict[str, Any]] = self.ask(list(texts))
        return found


class Optimizer(_Process):
    """A process in which SkyPilot's optimizer places tasks."""

    def __init__(self, home: Path) -> None:
        """`home` contains price lists (catalogs.py) and receives SkyPilot's state."""
        super().__init__("optimizer.py", HOME=str(home))

    def place(self, *texts: str, nodes: Sequence[Mapping[str, Any]] = ()) -> list[dict[str, Any]]:
        """Return the place of each task and the configuration of a node there, or `error`.

        `nodes`: those of the Kubernetes cluster.
        """
        found: list[dict[str, Any]] = self.ask({"tasks": texts, "nodes": list(nodes)})
        return found

    def clouds_without(self, feature: str) -> set[str]:
        """Return the clouds that SkyPilot says lack a feature."""
        return {*self.ask({"unsupported": feature})}

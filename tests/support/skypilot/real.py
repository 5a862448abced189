"""The real SkyPilot as a task parser, in a separate environment without a network."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
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


class SkyPilot:
    """A process in which SkyPilot parses tasks."""

    def __init__(self) -> None:
        demand_skypilot()
        # A network namespace without a route: SkyPilot cannot reach other machines.
        command = ["unshare", "-n", str(PYTHON), str(Path(__file__).with_name("task_reader.py"))]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def read(self, texts: Sequence[str]) -> list[dict[str, Any]]:
        """Return what SkyPilot parses from each task: its parts, or `error`."""
        assert self._process.stdin
        assert self._process.stdout
        self._process.stdin.write(json.dumps(list(texts)) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        assert answer, "SkyPilot has died"
        found: list[dict[str, Any]] = json.loads(answer)
        return found

    def close(self) -> None:
        """Close the input of the process, which then ends."""
        self._process.communicate()

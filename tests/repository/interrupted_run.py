"""Tests that wait for an interrupt, with child processes. `test_interruption.py` runs them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from support.live_service import Service
from support.postgres import Cluster

DAEMON = """
import os, time
if not os.fork():
    os.setsid()
    if not os.fork():
        time.sleep(600)
"""


def test_with_a_daemon() -> None:
    subprocess.run([sys.executable, "-c", DAEMON], env={}, check=True)
    _wait("")


def test_with_servers(cluster: Cluster, tmp_path: Path) -> None:
    Service(tmp_path).start()
    _wait(cluster.new_database())


def _wait(text: str) -> None:
    Path(os.environ["READY"]).write_text(f"{text}\n")
    signal.pause()

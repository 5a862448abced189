"""Pythons and processes: ours runs in the checkout's environment, the peers in one of their own on top of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PEERS = ROOT / "build" / "bench-checkpoint-venv"
LONGEST_S = 900.0
"""For one process to be done; more than the slowest of the peers takes at the largest size."""


def make_peers() -> None:
    """See that the peers are installed, at the versions that are pinned."""
    wanted = (HERE / "requirements.txt").read_text(encoding="utf-8")
    made_of = PEERS / "made-of.txt"
    if made_of.exists() and made_of.read_text(encoding="utf-8") == wanted:
        return
    print(f"installing the peers into {PEERS.relative_to(ROOT)}", flush=True)
    venv.create(PEERS, clear=True, with_pip=True)
    # All that the checkout has, torch above all, comes after what is installed here.
    (site,) = PEERS.glob("lib/python*/site-packages")
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (site / "_checkout.pth").write_text("\n".join(ours) + "\n", encoding="utf-8")
    wanted_file = f"{HERE / 'requirements.txt'}"
    pip = [f"{PEERS / 'bin' / 'pip'}", "install", "--quiet", "--no-deps", "-r", wanted_file]
    subprocess.run(pip, check=True)
    made_of.write_text(wanted, encoding="utf-8")


def run(module: str, asked: dict[str, Any], port: int, *, is_peer: bool) -> Any:
    """What a module of this package says when it is asked in a process of its own."""
    return gathered([start(module, asked, port, is_peer=is_peer)])[0]


def start(
    module: str, asked: dict[str, Any], port: int, *, is_peer: bool, **extra: str
) -> subprocess.Popen[str]:
    """The process."""
    python = PEERS / "bin" / "python" if is_peer else sys.executable
    command = [f"{python}", "-m", f"checkpoint.{module}", json.dumps(asked)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([f"{ROOT / 'bench'}", f"{ROOT / 'tests'}"]),
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        **extra,
    }
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def gathered(processes: list[subprocess.Popen[str]]) -> list[Any]:
    """What each of them says at its end."""
    try:
        said = [process.communicate(timeout=LONGEST_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process in processes:
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, process.args)
    return [json.loads(text.splitlines()[-1]) for text in said]

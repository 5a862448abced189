"""Interpreters and processes; the peers have an environment on top of the checkout's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

from fake_s3 import FakeS3
from support.cloud_servers import azure_variables, google_variables

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
PEERS = ROOT / "build" / "bench-checkpoint-venv"
LONGEST_S = 900.0
"""Timeout of one process; more than the slowest peer needs at the largest size."""


def make_peers() -> None:
    """Install the pinned packages of the peers if necessary."""
    wanted = (HERE / "requirements.txt").read_text(encoding="utf-8")
    made_of = PEERS / "made-of.txt"
    if made_of.exists() and made_of.read_text(encoding="utf-8") == wanted:
        return
    print(f"installing the peers into {PEERS.relative_to(ROOT)}", flush=True)
    venv.create(PEERS, clear=True, with_pip=True)
    # All packages of the checkout, such as torch, come after those installed here.
    (site,) = PEERS.glob("lib/python*/site-packages")
    checkout_site = [path for path in sys.path if path.endswith("site-packages")]
    (site / "_checkout.pth").write_text("\n".join(checkout_site) + "\n", encoding="utf-8")
    wanted_file = f"{HERE / 'requirements.txt'}"
    pip = [f"{PEERS / 'bin' / 'pip'}", "install", "--quiet", "--no-deps", "-r", wanted_file]
    subprocess.run(pip, check=True)
    made_of.write_text(wanted, encoding="utf-8")


def run(module: str, arguments: dict[str, Any], port: int, *, is_peer: bool) -> Any:
    """Run a module of this package in a separate process; return its result."""
    return gathered([start(module, arguments, port, is_peer=is_peer)])[0]


def start(
    module: str, arguments: dict[str, Any], port: int, *, is_peer: bool, **extra: str
) -> subprocess.Popen[str]:
    """Start a module of this package in a separate process."""
    python = PEERS / "bin" / "python" if is_peer else sys.executable
    command = [f"{python}", "-m", f"checkpoint.{module}", json.dumps(arguments)]
    server = FakeS3(port)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(
            [f"{ROOT / 'bench'}", f"{ROOT / 'tests'}", os.environ.get("PYTHONPATH", "")]
        ),
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "any",
        "AWS_SECRET_ACCESS_KEY": "any",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
        **google_variables(server.google),
        **azure_variables(server.azure),
        **extra,
    }
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def gathered(processes: list[subprocess.Popen[str]]) -> list[Any]:
    """Wait for processes and return their results."""
    try:
        output = [process.communicate(timeout=LONGEST_S)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    for process in processes:
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, process.args)
    return [json.loads(text.splitlines()[-1]) for text in output]

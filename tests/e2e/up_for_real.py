"""Runs `holdfast up` with the real SkyPilot for `test_up.py`; prints the results as JSON.

It runs in namespaces without a route out.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import psutil
from holdfast.skypilot_server import ServerDir
from holdfast.skypilot_server.process import controllers

sys.path.insert(0, str(Path(__file__).parents[1]))
from support.live_service import WithSkyPilot, free_port
from support.skypilot.fake_interpreter import configuration
from support.skypilot.real import PYTHON as SKYPILOT

RECOVERED, PROBE = "hfl_job-1_1_0", "hfl_probe-0_1_0"
TOKENS = ("", RECOVERED, PROBE)
"""Launch tokens of an unrelated job, a recovered job, and a launch that must be counted."""


def remains() -> list[str]:
    """Processes of SkyPilot's server that still run; jobs controllers do not count."""
    named = [" ".join(p.info["cmdline"] or []) for p in psutil.process_iter(["cmdline"])]
    return [name for name in named if "sky.server" in name or "SkyPilot:" in name]


def passes(port: int, token: str) -> bool:
    """Whether SkyPilot's validation accepts a task with this token."""
    dag = json.dumps({"name": "job", "run": "true", "envs": {"HOLDFAST_ADMISSION": token}})
    options = {
        "cluster_name": None,
        "idle_minutes_to_autostop": None,
        "down": False,
        "dryrun": False,
    }
    answer = httpx2.post(
        f"http://127.0.0.1:{port}/validate",
        json={"dag": dag, "request_options": options, "env_vars": {}},
        timeout=60,
    )
    return answer.status_code == 200


def main(folder: Path) -> None:
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    service = WithSkyPilot(folder, SKYPILOT)
    # Two jobs controllers instead of a dozen.
    service.environment["SKYPILOT_POD_MEMORY_GB_LIMIT"] = "8"
    service.start()
    service.wait(lambda: service.sky()["reachable"], "SkyPilot answers")
    health = httpx2.get(f"http://127.0.0.1:{service.sky_port}/api/health", timeout=60).json()
    seen: dict[str, Any] = {**service.sky(), "telemetry": health["telemetry_enabled"]}
    seen["policy"] = configuration(service.sky_home)["admin_policy"]
    first = service.sky_pid
    service.end(signal.SIGTERM)
    service.start()
    seen["reused"] = service.sky_pid == first
    service.end(signal.SIGTERM)
    seen["passes_while_down"] = {token: passes(service.sky_port, token) for token in TOKENS}
    service.port = free_port()
    service.environment["HOLDFAST_URL"] = f"http://127.0.0.1:{service.port}"
    service.start()
    seen["anew_for_another_address"] = service.sky_pid != first
    service.wait(lambda: service.sky()["reachable"], "SkyPilot asks at the new address")
    seen["asked_there"] = service.sky()["guarantee"]
    place = ServerDir(service.sky_home)
    service.wait(lambda: controllers(place), "SkyPilot has jobs controllers")
    seen["said_at_the_end"] = service.cli("up", "--stop").stderr
    seen["left"] = remains()
    service.end(signal.SIGTERM)
    print(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""The demo runs its main job from submission to result, as the README describes."""

from __future__ import annotations

import json
import math
import stat
import subprocess
import threading
from pathlib import Path

import psutil
import pytest
from holdfast.demo import services
from holdfast.errors import Unavailable
from support.live_service import HOLDFAST, Service

MOST_BYTES = 250 * 1000 * 1000


@pytest.mark.timeout(600)
def test_demo_result_is_identical_to_the_uninterrupted_run(idle: Service) -> None:
    demo = subprocess.Popen(
        [HOLDFAST, "demo", "--json"],
        env=idle.environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    memory = _Memory(demo.pid)

    try:
        result, progress = demo.communicate(timeout=560)
    finally:
        memory.stop()

    assert demo.returncode == 0, progress
    assert stat.S_IMODE(idle.home.stat().st_mode) == 0o700
    outcome = json.loads(result)
    assert set(outcome) == {
        *("job_id", "state", "steps", "preemptions", "resumes", "lost_steps", "paid_micros"),
        *("on_demand_micros", "weights_sha256", "uninterrupted_sha256", "identical"),
    }
    assert (outcome["state"], outcome["preemptions"], outcome["resumes"]) == ("succeeded", 3, 2)
    assert outcome["identical"] is True
    assert outcome["weights_sha256"] == outcome["uninterrupted_sha256"]
    assert outcome["paid_micros"] > 0
    assert 0 < memory.peak_bytes < MOST_BYTES, "of the service"


def test_demo_names_the_log_of_a_service_that_ends_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(services, "_rclone", lambda: "/bin/false")
    monkeypatch.setattr(services, "START_S", math.inf)

    with pytest.raises(Unavailable, match=r"the S3 server does not respond; see .*s3\.log"):
        services.set_up(tmp_path / "demo").__enter__()


class _Memory:
    """The peak memory of the demo's service."""

    def __init__(self, demo_pid: int) -> None:
        self.peak_bytes = 0
        self._demo = psutil.Process(demo_pid)
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stopped.wait(0.5):
            try:
                for child in self._demo.children():
                    if "serve" in child.cmdline() and "holdfast" in " ".join(child.cmdline()):
                        self.peak_bytes = max(self.peak_bytes, child.memory_info().rss)
            except psutil.Error:
                continue

"""Trackers of runs that a wrapper starts: how the attempt ends, and when the job is expected to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from holdfast_worker.optional_imports import import_optional
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import JobStop
from holdfast_worker.run_dir import TRACKER_FILE
from holdfast_worker.telemetry.trackers import EXIT_TAG
from support.live_service import free_port
from worker.support.report_server import ReportServer
from worker.support.run_driver import TIMEOUT_S, RunDriver
from worker.telemetry.test_trackers import require

ENDING = """
import os
import signal
import sys
from pathlib import Path

import torch
from holdfast_worker import Run


class Files:
    errors = ()

    def open(self, job, step):
        pass

    def write(self, step, values):
        pass

    def end(self, outcome, left):
        self.words = f"{outcome} {left.step} {left.detail}"

    def close(self):
        Path(sys.argv[1]).write_text(self.words)


run = Run.start()
model = run.wrap(torch.nn.Linear(2, 1))
run.track(model=model)
run.log_to(Files())
for number, x in enumerate(run.steps([torch.ones(1, 2)] * 5, total=5)):
    model(x).sum().backward()
    if number == 2 and sys.argv[2] == "fails":
        raise ValueError("no such layer")
    if number == 2 and sys.argv[2] == "leaves":
        os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(
    ("behavior", "code", "words"),
    [
        ("ends", Exit.DONE, "finished 5 "),
        ("fails", Exit.FAILED, "failed 2 ValueError: no such layer"),
        ("leaves", Exit.PREEMPTED, "preempted 3 "),
    ],
)
def test_tracker_of_a_wrapped_run_sees_its_end(
    tmp_path: Path, behavior: str, code: Exit, words: str
) -> None:
    driver = RunDriver(tmp_path)
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(ENDING)

    found, _, _ = driver.run_wrapper(str(script), str(out), behavior)

    assert (found, out.read_text()) == (code, words)


@pytest.mark.parametrize("stop", [None, *JobStop])
def test_tracker_of_a_wrapped_run_sees_the_end_of_its_job(
    tmp_path: Path, stop: JobStop | None
) -> None:
    service, port = ReportServer(stop=stop), free_port()
    driver = RunDriver(tmp_path, extra={"HOLDFAST_URL": f"http://127.0.0.1:{port}"})
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(ENDING)

    with service.opened(port):
        code, _, _ = driver.run_wrapper(str(script), str(out), "leaves")

    assert (code, out.read_text()) == (Exit.PREEMPTED, f"{stop or 'preempted'} 3 ")


ESTIMATED = """
import itertools
import json
import sys
import time
from pathlib import Path

import torch
from holdfast_worker import Run


class Files:
    errors = ()
    known = None

    def open(self, job, step):
        pass

    def write(self, step, values):
        found = {n: s for n, s in values.items() if n.startswith("holdfast/remaining_seconds_")}
        self.known = self.known or found

    def close(self):
        Path(sys.argv[1]).write_text(json.dumps({name: round(s / 1000) for name, s in self.known.items()}))


run = Run.start()
model = run.wrap(torch.nn.Linear(2, 1))
run.track(model=model)
tracker = Files()
run.log_to(tracker)
begun_s = time.monotonic()
for x in run.steps(itertools.repeat(torch.ones(1, 2))):
    model(x).sum().backward()
    time.sleep(0.05)
    if tracker.known or time.monotonic() - begun_s > 60:
        break
run.finish()
"""


def test_tracker_shows_the_expected_end(tmp_path: Path) -> None:
    remaining = {"p10_s": 11_000.0, "p50_s": 22_000.0, "p90_s": 33_000.0}
    service, port = ReportServer(remaining=remaining), free_port()
    driver = RunDriver(tmp_path, extra={"HOLDFAST_URL": f"http://127.0.0.1:{port}"})
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(ESTIMATED)

    with service.opened(port):
        driver.run_wrapper(str(script), str(out))

    assert json.loads(out.read_text()) == {
        "holdfast/remaining_seconds_p10": 11,
        "holdfast/remaining_seconds_p50": 22,
        "holdfast/remaining_seconds_p90": 33,
    }


KILLED = """
import os
import sys

import torch
from holdfast_worker import Run
from holdfast_worker.telemetry.trackers import MLflow

run = Run.start()
model = run.wrap(torch.nn.Linear(2, 1))
run.track(model=model)
run.log_to(MLflow(sys.argv[1], "lessons"))
for number, x in enumerate(run.steps([torch.ones(1, 2)] * 5, total=5)):
    model(x).sum().backward()
    run.log(loss=1.0)
    if number == 2:
        os.kill(os.getpid(), 9)
"""


PATIENT_WRAPPER = f"""
from holdfast_worker.__main__ import main
from holdfast_worker.node import open_trackers

open_trackers.END_S = {TIMEOUT_S}
main()
"""
"""A wrapper that waits for MLflow on a busy machine."""


@pytest.mark.filterwarnings("ignore")  # Deprecation warnings of its database.
def test_wrapper_ends_the_run_of_a_killed_rank(tmp_path: Path) -> None:
    require("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = import_optional("mlflow", "mlflow").MlflowClient(uri)
    experiment = client.create_experiment("lessons")
    driver = RunDriver(tmp_path)
    script = tmp_path / "train.py"
    script.write_text(KILLED)

    wrapper = driver.start_python(PATIENT_WRAPPER, "run", str(script), uri)
    wrapper.communicate(timeout=TIMEOUT_S)
    code = wrapper.returncode

    [run] = client.search_runs([experiment])
    assert (code, run.info.status) == (128 + 9, "FAILED")
    assert run.data.tags[EXIT_TAG].startswith("failed at step ")
    assert not (driver.run_dir / TRACKER_FILE).exists()

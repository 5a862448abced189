"""Logged values reach a tracker as one series over all attempts, with each step once."""

from __future__ import annotations

import importlib.util
import json
import struct
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from holdfast_worker.config import Config
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.node.open_trackers import end_open_tracker
from holdfast_worker.optional_imports import import_optional
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import JobStop, ReportKind
from holdfast_worker.run import Run
from holdfast_worker.run_dir import TRACKER_FILE, ExitReason, RunDir
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.telemetry.trackers import (
    EXIT_TAG,
    AttemptOutcome,
    MLflow,
    TensorBoard,
    Tracker,
    TrackerRun,
    WandB,
)
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter
from support.requirements import skip_or_fail
from worker.support.run_driver import RunDriver

JOB = "j1abc"
ROOT = Path(__file__).parents[3]
TRACKIO = ROOT / "build/trackio/bin/python"
"""Python of a separate environment, as trackio needs newer versions of pinned packages."""


FINISHED = ExitReason("finished", Exit.DONE, 40)
PREEMPTED = ExitReason("preempted", Exit.PREEMPTED, 20)
FAILED = ExitReason("failed", Exit.FAILED, 30, "ValueError: no such layer", 2)
REPLACED = ExitReason("failed", Exit.FENCED, 30, "attempt 2 has taken over")


def attempt(
    tracker: Tracker,
    begin: int,
    end: int,
    left: ExitReason = FINISHED,
    run_dir: RunDir | None = None,
) -> None:
    """Log the steps after `begin` up to `end`, with a tenth of the step as loss."""
    series = TrackerRun(tracker, run_dir)
    series.open(JOB, begin)
    for step in range(begin + 1, end + 1):
        series.write(step, {"loss": step / 10})
    series.close(left)


def stopped(folder: Path, stop: JobStop | None) -> RunDir:
    """A run directory in which the service says what becomes of the job, if it stops."""
    folder.mkdir(exist_ok=True)
    run_dir = RunDir(folder)
    if stop:
        run_dir.record_stop(stop)
    return run_dir


def require(package: str) -> None:
    """Skip the test if a package is missing, or fail it if all tests are required."""
    if importlib.util.find_spec(package) is None:
        skip_or_fail(f"{package} is not installed: pip install {package}")


class FailingTracker:
    """A tracker that raises after its first point."""

    errors: tuple[type[Exception], ...] = (OSError,)

    def __init__(self) -> None:
        self.steps: list[int] = []

    def open(self, job: str | None, step: int) -> None:
        pass

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if self.steps:
            raise OSError("the disk is full")
        self.steps.append(step)

    def end(self, outcome: AttemptOutcome, left: ExitReason) -> None:
        raise AssertionError("a tracker that has failed is not used again")

    def close(self) -> None:
        raise AssertionError("a tracker that has failed is not used again")


def test_failed_tracker_is_disabled_and_training_continues(
    capsys: pytest.CaptureFixture[str],
) -> None:
    tracker = FailingTracker()

    attempt(tracker, 0, 5)

    assert tracker.steps == [1]
    assert capsys.readouterr().err.count("the tracker failed and is disabled") == 1


def test_missing_package_is_named_with_its_install_command() -> None:
    with pytest.raises(ImportError, match=r"nowhere is not installed .*: pip install its-package"):
        import_optional("nowhere", "its-package")


def test_missing_tracker_package_ends_the_run_with_advice(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class Absent(FailingTracker):
        def open(self, job: str | None, step: int) -> None:
            import_optional("nowhere", "its-package")

    run = Run(Config.read({}), ProcessGroup.single(), Reporter(None), None, HeartbeatWriter())
    run.log_to(Absent())

    with pytest.raises(SystemExit):
        next(run.steps([1]))

    assert "pip install its-package" in capsys.readouterr().err


def test_logged_values_reach_the_tracker(tmp_path: Path) -> None:
    run = Run(Config.read({}), ProcessGroup.single(), Reporter(None), None, HeartbeatWriter())
    run.log_to(TensorBoard(tmp_path))

    for x in run.steps([1.0, 2.0], total=2):
        run.log(loss=x)

    assert read(tmp_path)[-1] == (2, 2.0)


def test_tensorboard_series_is_rewound_with_the_run(tmp_path: Path) -> None:
    attempt(TensorBoard(tmp_path), 0, 30)
    attempt(TensorBoard(tmp_path), 20, 40)

    assert read(tmp_path / JOB) == [(step, pytest.approx(step / 10)) for step in range(1, 41)]


def test_weights_and_biases_series_has_each_step_once(tmp_path: Path) -> None:
    require("wandb")
    ends = {
        "finished": (FINISHED, None),
        "failed": (FAILED, None),
        "preempted": (PREEMPTED, None),
        "replaced": (REPLACED, None),
        "cancelled": (PREEMPTED, JobStop.CANCELLED),
        "paused": (PREEMPTED, JobStop.PAUSED),
        "limit": (PREEMPTED, JobStop.FAILED),
    }
    for name, (left, stop) in ends.items():
        run_dir = stopped(tmp_path / name, stop)
        attempt(WandB("lessons", mode="offline", dir=str(tmp_path / name)), 0, 3, left, run_dir)
    import_optional("wandb", "wandb").teardown()  # It writes the rest of its files.

    found = {}
    for name in ends:
        [file] = (tmp_path / name).glob(f"wandb/offline-run-*-{JOB}/*.wandb")
        records = list(wandb_records(file))
        kinds = [record.WhichOneof("record_type") for record in records]
        codes = [record.exit.exit_code for record in records if record.HasField("exit")]
        found[name] = (kinds.count("history"), kinds.count("preempting"), codes)

    assert found == {
        "finished": (3, 0, [0]),
        "failed": (3, 0, [1]),
        "preempted": (3, 1, [75]),
        "replaced": (3, 1, [76]),
        "cancelled": (3, 0, [255]),
        "paused": (3, 1, [75]),
        "limit": (3, 0, [1]),
    }


def wandb_records(file: Path) -> Iterator[Any]:
    """The records of a file of wandb: blocks of 32 KiB with records of a checksum, size and kind."""
    proto = import_optional("wandb.proto.wandb_internal_pb2", "wandb")
    content, at, whole = file.read_bytes(), 7, b""
    while at + 7 <= len(content):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        size, kind = struct.unpack_from("<HB", content, at + 4)
        whole += content[at + 7 : at + 7 + size]
        at += 7 + size
        if kind in {1, 4}:  # The whole record, or its last part.
            yield proto.Record.FromString(whole)
            whole = b""


@pytest.mark.filterwarnings("ignore")  # Deprecation warnings of its database.
def test_mlflow_series_has_each_step_once(tmp_path: Path) -> None:
    require("mlflow")
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    client = import_optional("mlflow", "mlflow").MlflowClient(uri)
    experiment = client.create_experiment("lessons")
    seen: list[Any] = []

    def status() -> tuple[str, str]:
        [run] = client.search_runs([experiment])
        return run.info.status, run.data.tags.get(EXIT_TAG, "")

    for number, (begin, end, left, stop) in enumerate(
        (
            (0, 20, PREEMPTED, None),
            (20, 20, PREEMPTED, JobStop.PAUSED),
            (20, 20, PREEMPTED, JobStop.CANCELLED),
            (20, 30, FAILED, None),
            (20, 30, REPLACED, None),
            (20, 40, FINISHED, JobStop.CANCELLED),
        )
    ):
        series = TrackerRun(MLflow(uri, "lessons"), stopped(tmp_path / str(number), stop))
        series.open(JOB, begin)
        seen.append(status()[0])
        for step in range(begin + 1, end + 1):
            series.write(step, {"loss": step / 10})
        series.close(left)
        seen.append(status())

    failed = "failed at step 30: ValueError: no such layer"
    assert seen == [
        "RUNNING",
        ("SCHEDULED", "preempted at step 20"),
        "RUNNING",
        ("SCHEDULED", "paused at step 20"),
        "RUNNING",
        ("KILLED", "cancelled at step 20"),
        "RUNNING",
        ("FAILED", failed),
        "RUNNING",
        ("RUNNING", failed),
        "RUNNING",
        ("FINISHED", "finished at step 40"),
    ]
    [run] = client.search_runs([experiment])
    history = client.get_metric_history(run.info.run_id, "loss")
    assert sorted(point.step for point in history) == list(range(1, 41))


def test_trackio_series_has_each_step_once(tmp_path: Path) -> None:
    if not TRACKIO.exists():
        skip_or_fail("trackio is not installed: make trackio")
    program = Path(__file__).parents[1] / "scripts/trackio_curve.py"
    environment = {"HOME": tmp_path, "TRACKIO_DIR": tmp_path, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ROOT / "worker"}  # fmt: skip

    done = subprocess.run(
        [TRACKIO, program], check=False, env=environment, capture_output=True, text=True
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "steps": list(range(1, 41)),
        "alerts": [
            ["Attempt finished at step 40", None, "info"],
            ["Attempt failed at step 30", "ValueError: no such layer", "error"],
        ],
    }


def read(folder: Path) -> list[tuple[int, float]]:
    """The losses that TensorBoard shows, by step."""
    events = import_optional(
        "tensorboard.backend.event_processing.event_accumulator", "tensorboard"
    )
    shown = events.EventAccumulator(str(folder)).Reload()
    return [(point.step, point.value) for point in shown.Scalars("loss")]


ONE_WRITER = """
import sys
from pathlib import Path

import torch
from holdfast_worker import Run


class Files:
    errors = ()

    def open(self, job, step):
        (Path(sys.argv[1]) / f"opened-by-{run.rank}").touch()

    def write(self, step, values):
        (Path(sys.argv[1]) / f"written-by-{run.rank}").touch()

    def close(self):  # As in scripts of the first version, without the outcome.
        (Path(sys.argv[1]) / f"closed-by-{run.rank}").touch()


run = Run.start()
model = run.wrap(torch.nn.Linear(2, 1))
run.track(model=model)
run.log_to(Files())
for x in run.steps([torch.ones(1, 2)] * 3, total=3):
    model(x).sum().backward()
    run.log(loss=1.0)
"""


def test_one_rank_of_four_reports_and_writes(tmp_path: Path) -> None:
    driver = RunDriver(tmp_path)
    script, out = tmp_path / "train.py", tmp_path / "out"
    script.write_text(ONE_WRITER)
    out.mkdir()

    codes = driver.run_ranks(4, str(script), str(out))

    kinds = [report.kind for report in driver.reports()]
    assert codes == [0, 0, 0, 0]
    assert {file.name for file in out.iterdir()} == {"opened-by-0", "written-by-0", "closed-by-0"}
    assert kinds.count(ReportKind.TRAINING_STARTED) == kinds.count(ReportKind.WORKER_LEFT) == 1


def test_wrapper_says_why_a_run_could_not_be_ended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = RunDir(tmp_path)
    run_dir.record_tracker(
        json.dumps({"tracker": "MLflow", "arguments": {"uri": "ftp://x", "experiment": "e"}, "job": JOB, "step": 2})
    )  # fmt: skip

    end_open_tracker(run_dir, FAILED)

    assert "the end of the attempt is not shown in MLflow: " in capsys.readouterr().err


def test_record_of_an_open_run_is_private(tmp_path: Path) -> None:
    """The address of a tracker may have a password."""
    RunDir(tmp_path).record_tracker("{}")

    assert (tmp_path / TRACKER_FILE).stat().st_mode & 0o777 == 0o600

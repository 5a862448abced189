"""A run with the loop of a framework: when it requests a save or an end."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from holdfast_worker.config import Config
from holdfast_worker.distributed.process_group import ProcessGroup
from holdfast_worker.integrations.framework_run import FrameworkRun
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.telemetry.reporter import Reporter
from holdfast_worker.watchdog.heartbeat import HeartbeatWriter


@pytest.fixture(autouse=True)
def _hear_errors_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)


def begin(store: Path, root: Path) -> FrameworkRun:
    """An attempt of the job with one rank."""
    config = Config.read({"HOLDFAST_STORE": f"file://{store}", "HOLDFAST_EVERY": "3 steps"})
    run = FrameworkRun(config, ProcessGroup.single(), Reporter(None), None, HeartbeatWriter())
    run._initialize()
    run.track_directory(root)
    return run


def train(run: FrameworkRun, folder: Path, until: int) -> list[int]:
    """Train and return the steps at which the run requested a save."""
    requested = []
    while run.step < until:
        if run.end_step(run.step + 1):
            requested.append(run.step)
            folder.mkdir()
            (folder / "state").write_text(f"after {run.step}")
            run.on_saved(folder, keep=False)
    return requested


def test_framework_saves_when_due_and_at_the_end(tmp_path: Path) -> None:
    run = begin(tmp_path / "store", tmp_path)
    run.start_steps(0, 8, "")

    requested = train(run, tmp_path / "made", until=8)
    run.finish()

    again = begin(tmp_path / "store", tmp_path / "elsewhere")
    assert requested[-1] == 8
    assert {3, 4, 5} & set(requested)  # An upload may be in progress when the next save is due.
    assert not (tmp_path / "made").exists()
    assert again.step == 8
    assert again.newest
    assert (again.newest / "state").read_text() == "after 8"


def test_training_starting_off_the_checkpoint_step_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begin(tmp_path / "store", tmp_path)
    run.start_steps(0, 3, "")
    train(run, tmp_path / "made", until=3)
    run.finish()
    again = begin(tmp_path / "store", tmp_path)

    with pytest.raises(SystemExit) as left:
        again.start_steps(0, 3, "say where")

    assert left.value.code == Exit.USAGE
    assert "is of step 3, but training starts at step 0: say where" in capsys.readouterr().err


def test_stop_between_saves_ends_without_another_checkpoint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = begin(tmp_path / "store", tmp_path)
    run.start_steps(0, 100, "")
    train(run, tmp_path / "made", until=2)

    run.finish()

    assert "training stopped at step 2, which no checkpoint contains" in capsys.readouterr().err


def test_framework_may_start_from_its_own_checkpoint(tmp_path: Path) -> None:
    run = begin(tmp_path / "store", tmp_path)

    run.start_steps(500, 600, "")

    assert run.step == 500
    assert run.newest is None

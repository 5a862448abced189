"""Frameworks on several nodes: after the loss of a rank, all ranks start again on the same nodes."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from holdfast_worker.protocol.reports import ReportKind
from worker.support.nodes_driver import Nodes
from worker.support.run_driver import end_all

SCRIPTS = Path(__file__).parents[1] / "scripts"
STEPS = 20
KILLED_AT = 12


@pytest.fixture(autouse=True)
def processes() -> Iterator[None]:
    """End all processes after each test."""
    yield
    end_all()


@pytest.mark.full
@pytest.mark.parametrize("framework", ["huggingface", "lightning"])
def test_killed_rank_of_a_trainer_restarts_all_at_once(tmp_path: Path, framework: str) -> None:
    """A trainer owns its loop, so that no rank waits for a new one."""
    folder = [str(tmp_path)] * (framework == "huggingface")
    words = [str(SCRIPTS / f"{framework}_trainer.py"), *folder, str(STEPS)]
    fall = ["--fall", f"1:{KILLED_AT}:{signal.SIGKILL:d}"]
    extra = {"LESSON_SIGNALLED": str(tmp_path / "signalled"), "HOLDFAST_MEMORY": "1 steps"}
    nodes = Nodes(tmp_path, 2, script=words, **extra)

    log = nodes.run(*fall)
    kept, plain = nodes.driver.result.split()

    assert kept == plain, "the weights are those of a trainer without Holdfast and without a kill"
    assert "while others wait" not in log
    assert nodes.counts(ReportKind.RANKS_REPLACED, ReportKind.RANKS_RESTARTED) == [0, 1]
    reports = nodes.driver.reports()
    kinds = [report.kind for report in reports]
    before = reports[: kinds.index(ReportKind.RANKS_RESTARTED)]
    saved = [r.body["step"] for r in before if r.kind is ReportKind.CHECKPOINT_COMMITTED]
    again = nodes.driver.reports(ReportKind.TRAINING_STARTED)[-1].body
    assert saved == [5, 10]
    assert again["step"] == 10
    assert "held_at" in again, "its checkpoints are copied into memory as well"

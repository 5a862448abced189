"""The table of the recovery benchmark with what a test of a real launcher has written."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from support.loss_breakdown import LossBreakdown, append_breakdown, read_breakdowns

ROOT = Path(__file__).parents[2]
LOST_AT = datetime(2026, 1, 1, tzinfo=UTC)


def event(kind: str, after_s: float) -> dict[str, str]:
    return {"kind": kind, "at": (LOST_AT + timedelta(seconds=after_s)).isoformat()}


def breakdown(*events: dict[str, str]) -> LossBreakdown:
    return LossBreakdown.of_events(LOST_AT, events, nodes=3, repeated_steps=0)


def print_table(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the benchmark without a kill of its own."""
    command = [sys.executable, "-m", "recovery.lost_ranks", "--times", "0", "--only", "floor"]
    return subprocess.run(
        [*command, *words],
        env={"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'bench'}:{ROOT / 'service'}"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_phases_end_with_the_events_after_the_loss() -> None:
    found = breakdown(
        event("NodeLost", -60.0),
        event("RanksReplaced", -5.0),
        event("NodeLost", 20.0),
        event("NodeReplaced", 110.0),
        event("RanksReplaced", 125.5),
    )

    assert found.continued_s == 125.5
    assert found.phases == {"detect": 20.0, "nodes": 90.0, "processes": 15.5}


def test_event_that_is_reported_late_ends_no_phase() -> None:
    found = breakdown(
        event("NodeLost", 20.0), event("NodeReplaced", 130.0), event("RanksReplaced", 125.5)
    )

    assert found.phases == {"detect": 20.0, "processes": 105.5}


def test_loss_after_which_no_rank_continued_is_an_error() -> None:
    with pytest.raises(ValueError, match="training did not continue"):
        breakdown(event("NodeLost", 20.0))


def test_each_test_run_adds_to_the_file(tmp_path: Path) -> None:
    file = tmp_path / "new" / "losses.json"
    found = breakdown(event("RanksReplaced", 3.0))

    append_breakdown(found, str(file))
    append_breakdown(found, str(file))
    append_breakdown(found, "")

    assert read_breakdowns(file) == [found, found]


def test_table_and_plot_have_the_losses_on_skypilot(tmp_path: Path) -> None:
    file = tmp_path / "losses.json"
    append_breakdown(breakdown(event("NodeLost", 20.0), event("RanksReplaced", 120.0)), str(file))

    result = print_table("--skypilot", str(file), "--out", str(tmp_path), "--price", "10")

    assert result.returncode == 0, result.stderr
    assert "SkyPilot, another node group" in result.stdout
    # Three nodes for 120 s at 10 dollars an hour.
    assert "1.0000" in result.stdout
    (loss,) = json.loads((tmp_path / "figures.json").read_text())["skypilot"]
    assert loss["phases"] == {"detect": 20.0, "processes": 100.0}
    assert "SkyPilot, another node group" in (tmp_path / "figures.svg").read_text()


@pytest.mark.parametrize("text", ["", "[]", "{}", '[{"nodes": 3}]'])
def test_file_without_losses_is_rejected_with_a_sentence(tmp_path: Path, text: str) -> None:
    file = tmp_path / "losses.json"
    file.write_text(text)

    result = print_table("--skypilot", str(file))

    assert result.returncode == 1
    assert result.stderr.startswith(str(file))
    assert "HOLDFAST_TEST_BREAKDOWN" in result.stderr

"""What a look at a job takes for true, with programs in Slurm's place that say what it says seldom."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast.adapters.slurm import local, phrases
from holdfast.adapters.slurm.books import Books, read
from holdfast.adapters.slurm.rows import Row
from holdfast.errors import LauncherUnreachable


class Desk:
    """A launch of one Slurm job, and the programs that are asked about it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.facts = folder / "facts"
        self.facts.mkdir()
        (self.facts / "submitted.1").write_text("job=7\n")

    def install(self, name: str, text: str) -> None:
        """From now on this is a program of Slurm's."""
        program = self.folder / name
        program.write_text(f"#!/bin/sh\n{text}\n")
        program.chmod(0o755)

    def look(self) -> Books:
        """What one look has found."""
        return read(local(self.folder).bash(phrases.LOOK, str(self.folder)).out.decode())


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    return Desk(tmp_path)


def test_of_several_attempts_in_the_accounts_the_last_one_counts(desk: Desk) -> None:
    desk.install("scontrol", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    desk.install("sacct", "printf 'NODE_FAIL\\nREQUEUED\\nCANCELLED by 0\\n'")

    assert desk.look().row == Row(state="CANCELLED", restarts=None)


@pytest.mark.parametrize(
    ("after", "row"),
    [
        ("JobState=FAILED Restarts=0", Row(state="FAILED")),
        ("JobState=RUNNING Restarts=1", Row(state="RUNNING", restarts=1)),
    ],
)
def test_books_and_slurms_word_are_of_one_moment(desk: Desk, after: str, row: Row) -> None:
    """On a slow machine a job ends, or begins again, between the two: its last words would be missed."""
    asked, left = desk.folder / "asked", desk.facts / "left.1"
    desk.install(
        "scontrol",
        f"if [ -e {asked} ]; then echo JobId=7 {after} X=Y; exit; fi\n"
        f"echo JobId=7 JobState=RUNNING Restarts=0 X=Y; touch {asked}; echo code=3 > {left}",
    )

    seen = desk.look()

    assert (seen.row, seen.facts["left.1"]) == (row, {"code": "3"})


def test_a_job_that_changes_under_every_look_is_looked_at_again(desk: Desk) -> None:
    asked = desk.folder / "asked"
    desk.install(
        "scontrol",
        f"echo >> {asked}; echo JobId=7 JobState=RUNNING Restarts=$(wc -l < {asked}) X=Y",
    )

    with pytest.raises(LauncherUnreachable, match="changes under every look"):
        desk.look()

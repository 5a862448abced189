"""The inbox: spools are read once, in order, and never past what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast.adapters.inbox import SpoolInbox
from holdfast.errors import LauncherUnreachable
from holdfast_worker.wire import Report, ReportKind


class Spools:
    """The spools of one home directory, as workers write them."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def write(self, key: str, attempt: int, *numbers: int, end: str = "\n") -> Path:
        """Append reports to the spool of an attempt; the last line ends with `end`."""
        path = self.home / "launches" / key / "spool" / f"attempt-{attempt}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = "\n".join(report(attempt, n).line() for n in numbers)
        with path.open("a") as spool:
            spool.write(lines + end)
        return path


def report(attempt: int, n: int) -> Report:
    return Report(attempt, n, "2026-03-01T12:00:00+00:00", ReportKind.PROGRESS, {"step": n})


@pytest.fixture
def spools(tmp_path: Path) -> Spools:
    return Spools(tmp_path)


def taken(inbox: SpoolInbox, seen: dict[int, int], job: str = "job") -> list[tuple[int, int]]:
    """Attempt and number of what the inbox gives, noted in `seen`."""
    reports = list(inbox.take(job, seen))
    seen.update({each.attempt: each.n for each in reports})
    return [(each.attempt, each.n) for each in reports]


def test_reports_come_once_and_in_order_over_launches(spools: Spools) -> None:
    spools.write("job-1", 1, 1, 2)
    spools.write("job-2", 10, 1)
    spools.write("job-2", 2, 1, 2)
    spools.write("job-x-1", 1, 1)
    inbox, seen = SpoolInbox(spools.home), dict[int, int]()

    first = taken(inbox, seen)
    spools.write("job-1", 1, 3)

    assert first == [(1, 1), (1, 2), (2, 1), (2, 2), (10, 1)]
    assert taken(inbox, seen) == [(1, 3)]
    assert taken(inbox, seen) == []


def test_reports_of_launches_after_the_tenth_are_taken(spools: Spools) -> None:
    """Each pause and resume begins another launch."""
    for launch in range(1, 24):
        if launch not in range(6, 14):  # Some were given up before they began.
            spools.write(f"job-{launch}", launch, 1)

    numbers = taken(SpoolInbox(spools.home), {})

    assert numbers == [(launch, 1) for launch in (*range(1, 6), *range(14, 24))]


def test_what_came_another_way_is_passed_over(spools: Spools) -> None:
    spools.write("job-1", 1, 1, 2, 3)

    assert taken(SpoolInbox(spools.home), {1: 2}) == [(1, 3)]


def test_what_was_given_but_not_kept_is_given_again(spools: Spools) -> None:
    spools.write("job-1", 1, 1, 2, 3)
    inbox = SpoolInbox(spools.home)
    list(inbox.take("job", {}))

    assert taken(inbox, {1: 1}) == [(1, 2), (1, 3)]


def test_a_gap_is_waited_for(spools: Spools) -> None:
    spools.write("job-1", 1, 3)

    assert taken(SpoolInbox(spools.home), {1: 1}) == []
    assert taken(SpoolInbox(spools.home), {1: 2}) == [(1, 3)]


def test_a_torn_line_is_waited_for(spools: Spools) -> None:
    path = spools.write("job-1", 1, 1, 2, end="")
    inbox, seen = SpoolInbox(spools.home), dict[int, int]()

    before = taken(inbox, seen)
    with path.open("a") as spool:
        spool.write("\n")

    assert before == [(1, 1)]
    assert taken(inbox, seen) == [(1, 2)]


def test_rubbish_stops_a_spool_and_not_its_neighbours(spools: Spools) -> None:
    path = spools.write("job-1", 1, 1)
    with path.open("ab") as spool:
        spool.write(b"\xff\xfe not a report\n")
    spools.write("job-1", 1, 2)
    spools.write("job-1", 2, 1)

    assert taken(SpoolInbox(spools.home), {}) == [(1, 1), (2, 1)]


def test_a_job_without_spools_has_no_reports(spools: Spools) -> None:
    assert taken(SpoolInbox(spools.home), {}) == []


def test_a_spool_that_cannot_be_read_says_so(spools: Spools) -> None:
    path = spools.write("job-1", 1, 1)
    path.unlink()
    path.mkdir()

    with pytest.raises(LauncherUnreachable, match="cannot be read"):
        taken(SpoolInbox(spools.home), {})

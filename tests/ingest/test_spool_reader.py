"""The spool reader: reads spools once, in order, and never past a gap."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from holdfast.errors import LauncherUnreachable
from holdfast.host.untrusted_files import opened_file
from holdfast.ingest import spool_reader
from holdfast.ingest.spool_reader import SpoolReader
from holdfast_worker.protocol.reports import Report, ReportKind
from holdfast_worker.protocol.spool_segments import Segment


class Spools:
    """The spools of one home directory, as workers write them."""

    def __init__(self, home: Path) -> None:
        self.home = home

    def write(self, key: str, attempt: int, *numbers: int, end: str = "\n", first: int = 1) -> Path:
        """Append reports to a segment of an attempt; the last line ends with `end`."""
        path = self.folder(key) / Segment(attempt, first).name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = "\n".join(report(attempt, n).line() for n in numbers)
        with path.open("a") as spool:
            spool.write(lines + end)
        return path

    def folder(self, key: str = "job-1") -> Path:
        return self.home / "launches" / key / "spool"

    def files(self) -> list[str]:
        return sorted(path.name for path in self.folder().iterdir())


def report(attempt: int, n: int) -> Report:
    return Report(attempt, n, "2026-03-01T12:00:00+00:00", ReportKind.PROGRESS, {"step": n})


@pytest.fixture
def spools(tmp_path: Path) -> Spools:
    return Spools(tmp_path)


def read_reports(
    there: SpoolReader, seen: dict[int, int], job: str = "job"
) -> list[tuple[int, int]]:
    """Attempt and number of each report that the reader returns, also added to `seen`."""
    reports = list(there.read_new(job, seen))
    seen.update({each.attempt: each.n for each in reports})
    return [(each.attempt, each.n) for each in reports]


def test_reports_are_read_once_and_in_order(spools: Spools) -> None:
    spools.write("job-1", 1, 1, 2)
    spools.write("job-2", 10, 1)
    spools.write("job-2", 2, 1, 2)
    spools.write("job-x-1", 1, 1)
    there, seen = SpoolReader(spools.home), dict[int, int]()

    first = read_reports(there, seen)
    spools.write("job-1", 1, 3)

    assert first == [(1, 1), (1, 2), (2, 1), (2, 2), (10, 1)]
    assert read_reports(there, seen) == [(1, 3)]
    assert read_reports(there, seen) == []


def test_reports_of_launches_after_the_tenth_are_read(spools: Spools) -> None:
    """Each pause and resume starts another launch."""
    for launch in range(1, 24):
        if launch not in range(6, 14):  # Some were cancelled before they started.
            spools.write(f"job-{launch}", launch, 1)

    numbers = read_reports(SpoolReader(spools.home), {})

    assert numbers == [(launch, 1) for launch in (*range(1, 6), *range(14, 24))]


def test_reports_already_received_are_skipped(spools: Spools) -> None:
    spools.write("job-1", 1, 1, 2, 3)

    assert read_reports(SpoolReader(spools.home), {1: 2}) == [(1, 3)]


def test_unstored_reports_are_read_again(spools: Spools) -> None:
    spools.write("job-1", 1, 1, 2, 3)
    there = SpoolReader(spools.home)
    list(there.read_new("job", {}))

    assert read_reports(there, {1: 1}) == [(1, 2), (1, 3)]


def test_reports_after_a_gap_are_deferred(spools: Spools) -> None:
    spools.write("job-1", 1, 3)

    assert read_reports(SpoolReader(spools.home), {1: 1}) == []
    assert read_reports(SpoolReader(spools.home), {1: 2}) == [(1, 3)]


def test_torn_line_is_read_once_complete(spools: Spools) -> None:
    path = spools.write("job-1", 1, 1, 2, end="")
    there, seen = SpoolReader(spools.home), dict[int, int]()

    before = read_reports(there, seen)
    with path.open("a") as spool:
        spool.write("\n")

    assert before == [(1, 1)]
    assert read_reports(there, seen) == [(1, 2)]


def test_malformed_line_stops_only_its_own_spool(spools: Spools) -> None:
    path = spools.write("job-1", 1, 1)
    with path.open("ab") as spool:
        spool.write(b"\xff\xfe not a report\n")
    spools.write("job-1", 1, 2)
    spools.write("job-1", 2, 1)

    assert read_reports(SpoolReader(spools.home), {}) == [(1, 1), (2, 1)]


def test_a_job_without_spools_has_no_reports(spools: Spools) -> None:
    assert read_reports(SpoolReader(spools.home), {}) == []


def test_unreadable_spool_raises_launcher_unreachable(
    spools: Spools, monkeypatch: pytest.MonkeyPatch
) -> None:
    spools.write("job-1", 1, 1)

    def stale(*_: object) -> None:
        raise OSError(errno.ESTALE, "stale file handle")

    monkeypatch.setattr(spool_reader, "opened_file", stale)

    with pytest.raises(LauncherUnreachable, match="cannot be read"):
        read_reports(SpoolReader(spools.home), {})


def test_segments_are_read_as_one_spool(spools: Spools) -> None:
    spools.write("job-1", 1, 1, 2)
    there, seen = SpoolReader(spools.home), dict[int, int]()
    before = read_reports(there, seen)
    spools.write("job-1", 1, 3)
    spools.write("job-1", 1, 4, 5, first=4)
    spools.write("job-1", 1, 6, first=6, end="")

    assert before == [(1, 1), (1, 2)]
    assert read_reports(there, seen) == [(1, 3), (1, 4), (1, 5)]
    assert read_reports(SpoolReader(spools.home), {1: 4}) == [(1, 5)]
    assert read_reports(there, seen) == []


def test_torn_line_does_not_block_later_segments(spools: Spools) -> None:
    with spools.write("job-1", 1, 1, 2).open("a") as spool:
        spool.write('{"attempt":1,"n":3')
    spools.write("job-1", 1, 3, 4, first=3)

    assert read_reports(SpoolReader(spools.home), {}) == [(1, n) for n in (1, 2, 3, 4)]


def test_oldest_report_follows_a_known_gap(spools: Spools) -> None:
    """The service was restored from a backup.

    The segments in between were acknowledged and removed.
    """
    spools.write("job-1", 1, 90, 91, first=90)
    spools.write("job-1", 1, 92, first=92)
    there, seen = SpoolReader(spools.home), {1: 5}

    assert read_reports(there, seen) == [(1, 90), (1, 91), (1, 92)]
    assert read_reports(there, seen) == []
    assert read_reports(SpoolReader(spools.home), {1: 90}) == [(1, 91), (1, 92)]


def test_gap_between_segments_is_skipped_by_the_next_read(spools: Spools) -> None:
    """A power failure may keep the removal of a newer file and lose that of an older one."""
    spools.write("job-1", 1, 1, 2)
    spools.write("job-1", 1, 9, first=9)
    there, seen = SpoolReader(spools.home), dict[int, int]()

    assert [read_reports(there, seen) for _ in range(3)] == [[(1, 1), (1, 2)], [(1, 9)], []]


def test_partial_listing_reports_no_gap(spools: Spools, monkeypatch: pytest.MonkeyPatch) -> None:
    for first in range(90, 99):
        spools.write("job-1", 1, first, first=first)
    monkeypatch.setattr(spool_reader, "MOST_FILES", 8)

    assert read_reports(SpoolReader(spools.home), {}) == []


def test_segments_are_removed_once_stored(spools: Spools, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader alone acknowledges segments if the workers cannot reach the service."""
    monkeypatch.setattr(spool_reader, "MAX_RETAINED_BYTES", 150)
    there, seen = SpoolReader(spools.home), dict[int, int]()
    for first in (1, 3, 5, 7):
        spools.write("job-1", 1, first, first + 1, first=first)
    spools.write("job-1", 2, 1, 2)

    read_reports(there, seen)
    before = spools.files()
    spools.write("job-1", 2, 3, first=3)
    read_reports(there, seen)

    assert len(before) == 5, "no report was stored when they were returned"
    assert spools.files() == [
        "attempt-1.000000000007.jsonl",
        "attempt-2.000000000003.jsonl",
        "attempt-2.jsonl",
    ]
    assert seen == {1: 8, 2: 3}


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A directory outside of the launch, with files in the format of a spool."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "attempt-1.jsonl").write_text(report(1, 1).line() + "\n")
    return outside


def link(spools: Spools, secret: Path) -> None:
    (spools.folder() / "attempt-1.jsonl").symlink_to(secret / "attempt-1.jsonl")


def link_folder(spools: Spools, secret: Path) -> None:
    spools.folder().rename(spools.folder().with_name("away"))
    spools.folder().symlink_to(secret)


def link_launch(spools: Spools, secret: Path) -> None:
    launch = spools.folder().parent
    launch.rename(launch.with_name("away"))
    (secret / "spool").symlink_to(secret)
    launch.symlink_to(secret)


def make_fifo(spools: Spools, secret: Path) -> None:
    os.mkfifo(spools.folder() / "attempt-1.jsonl")


def make_folder(spools: Spools, secret: Path) -> None:
    (spools.folder() / "attempt-1.jsonl").mkdir()


def make_socket(spools: Spools, secret: Path) -> None:
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(spools.folder()):
        server.bind("attempt-1.jsonl")


def write_huge_line(spools: Spools, secret: Path) -> None:
    with (spools.folder() / "attempt-1.jsonl").open("wb") as spool:
        spool.truncate(1 << 36)


def close_folder(spools: Spools, secret: Path) -> None:
    if not os.geteuid():
        pytest.skip("root reads everything")
    spools.folder().chmod(0)


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "attack",
    [link, link_folder, link_launch, make_fifo, make_folder, make_socket, write_huge_line, close_folder],
)  # fmt: skip
def test_hostile_spool_is_skipped_and_blocks_nothing(
    spools: Spools,
    secret: Path,
    caplog: pytest.LogCaptureFixture,
    attack: Callable[[Spools, Path], None],
) -> None:
    """A job that could stop the reading of its spool would run beyond its limits."""
    spools.folder().mkdir(parents=True)
    spools.write("job-2", 2, 1)
    attack(spools, secret)
    there = SpoolReader(spools.home)
    open_before = len(list(Path("/proc/self/fd").iterdir()))

    reads = [read_reports(there, {}) for _ in range(3)]

    assert reads == [[(2, 1)]] * 3
    assert len(list(Path("/proc/self/fd").iterdir())) == open_before
    assert len([text for text in caplog.messages if "is skipped" in text]) == 1
    assert (secret / "attempt-1.jsonl").exists()
    if attack is close_folder:
        spools.folder().chmod(0o700)


def test_ten_thousand_files_are_read_in_parts(
    spools: Spools, monkeypatch: pytest.MonkeyPatch
) -> None:
    spools.write("job-2", 1, 1)
    spools.folder().mkdir(parents=True)
    for n in range(2, spool_reader.MOST_FILES + 100):
        (spools.folder() / Segment(n, 1).name).touch()
    opened = list[object]()

    def count(*at: Any) -> Any:
        opened.append(at)
        return opened_file(*at)

    monkeypatch.setattr(spool_reader, "opened_file", count)
    there = SpoolReader(spools.home)

    reads = [read_reports(there, {}), read_reports(there, {})]

    assert reads == [[(1, 1)]] * 2
    assert len(opened) <= 2 * spool_reader.MOST_OPENED


def test_long_spool_is_read_in_parts(spools: Spools, monkeypatch: pytest.MonkeyPatch) -> None:
    spools.write("job-1", 1, *range(1, 20))
    spools.write("job-1", 1, *range(20, 30), first=20)
    monkeypatch.setattr(spool_reader, "MOST_BYTES", 800)
    there, seen = SpoolReader(spools.home), dict[int, int]()

    reads = [read_reports(there, seen) for _ in range(6)]

    assert [each for read in reads for each in read] == [(1, n) for n in range(1, 30)]
    assert max(map(len, reads)) < 12
    assert reads[-1] == []


def test_removing_segments_does_not_follow_symlinks(
    spools: Spools, secret: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spool_reader, "MAX_RETAINED_BYTES", 0)
    spools.folder().mkdir(parents=True)
    link(spools, secret)
    spools.write("job-1", 1, 2, first=2)

    read_reports(SpoolReader(spools.home), {1: 1})

    assert spools.files() == ["attempt-1.000000000002.jsonl"]
    assert (secret / "attempt-1.jsonl").read_text()

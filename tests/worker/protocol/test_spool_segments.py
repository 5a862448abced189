"""Segments of a spool: acknowledged ones are removed, the newest is kept, readers continue."""

from __future__ import annotations

import errno
import itertools
import time
from pathlib import Path
from typing import Any

import pytest
from holdfast_worker.config import Config
from holdfast_worker.node.exit_report import ExitReport
from holdfast_worker.protocol import spool_segments
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.protocol.spool_segments import (
    Segment,
    SpoolPosition,
    by_attempt,
    removable,
    segments_after,
)
from holdfast_worker.run_dir import RunDir
from holdfast_worker.telemetry import delivery, spool
from holdfast_worker.telemetry.delivery import ReportSender
from holdfast_worker.telemetry.service_client import ServiceClient
from holdfast_worker.telemetry.spool import Spool, read_spool, spool_file, spooled_attempts, trim
from holdfast_worker.telemetry.store_relay import StoreRelay
from support.fakes import FixedClock
from support.memory_store import MemoryObjects, TimedStore
from worker.support.report_server import ReportServer
from worker.support.run_driver import free_port, wait_until

PROGRESS = ReportKind.PROGRESS
PER_SEGMENT = 5
"""Approximate number of reports in a segment of these tests."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of a few reports; the newest three or four are kept."""
    monkeypatch.setattr(spool, "SEGMENT_BYTES", PER_SEGMENT * 100)
    monkeypatch.setattr(spool, "MAX_RETAINED_BYTES", 3 * PER_SEGMENT * 100)


def fill(directory: Path, attempt: int, count: int) -> Spool:
    made = Spool(directory, attempt)
    for step in range(count):
        made.append(PROGRESS, {"step": step, "values": {}})
    return made


def numbers(
    directory: Path, attempt: int = 1, after: SpoolPosition = spool_segments.START
) -> list[int]:
    return [report.n for report, _ in read_spool(spool_file(directory, attempt), after)]


def files(directory: Path) -> list[Segment]:
    found = by_attempt(file.name for file in directory.iterdir())
    return [each for some in found.values() for each in some]


def new_sender(port: int, directory: Path, attempt: int = 1, **more: float) -> ReportSender:
    client = ServiceClient(f"http://127.0.0.1:{port}/", "job-1", "secret")
    return ReportSender(client, directory, attempt, **more)


def test_segment_names_sort_and_survive_a_round_trip() -> None:
    some = [Segment(2, 1), Segment(2, 5209), Segment(10, 1), Segment(0, 7)]

    names = [each.name for each in some]

    assert names[:2] == ["attempt-2.jsonl", "attempt-2.000000005209.jsonl"]
    assert [Segment.of_name(name) for name in names] == some
    assert by_attempt(reversed(names)) == {0: some[3:], 2: some[:2], 10: [some[2]]}


@pytest.mark.parametrize(
    "name",
    [
        "attempt-1.000000000001.jsonl",
        "attempt-1.5.jsonl",
        "attempt-01.jsonl",
        "attempt-\u0661.jsonl",
        "attempt-1.jsonl\n",
        "attempt-9999999999.jsonl",
        "attempt-1.jsonl.draft",
        "../attempt-1.jsonl",
    ],
)
def test_other_names_are_no_segments(name: str) -> None:
    assert Segment.of_name(name) is None


def test_reports_of_all_segments_are_read_in_order(tmp_path: Path) -> None:
    fill(tmp_path, 1, 23)
    fill(tmp_path, 1, 20)

    places = [place for _, place in read_spool(spool_file(tmp_path, 1))]

    assert len(files(tmp_path)) > 5
    assert numbers(tmp_path) == [place.n for place in places] == list(range(1, 44))
    for place in places:
        assert numbers(tmp_path, after=place) == list(range(place.n + 1, 44))
        assert numbers(tmp_path, after=SpoolPosition(place.n)) == list(range(place.n + 1, 44))


def test_reports_longer_than_a_segment_have_one_each(tmp_path: Path) -> None:
    made = fill(tmp_path, 1, 1)
    for step in range(3):
        made.append(PROGRESS, {"step": step, "values": {f"{n:09d}": 0.5 for n in range(100)}})
    made.append(PROGRESS, {"step": 3, "values": {}})

    assert [each.first for each in files(tmp_path)] == [1, 2, 3, 4, 5]
    assert numbers(tmp_path) == [1, 2, 3, 4, 5]


def test_acknowledged_segments_are_removed_except_the_newest(tmp_path: Path) -> None:
    fill(tmp_path, 1, 100)
    firsts = [each.first for each in files(tmp_path)]

    trim(tmp_path, {})
    trim(tmp_path, {1: firsts[1] - 2, 2: 100})
    untouched = [each.first for each in files(tmp_path)]
    trim(tmp_path, {1: firsts[2] - 1})
    some = [each.first for each in files(tmp_path)]
    trim(tmp_path, {1: 100})
    last = files(tmp_path)

    assert untouched == firsts
    assert some == firsts[2:]
    assert last == [Segment(1, first) for first in firsts[-len(last) :]]
    kept = [(tmp_path / each.name).stat().st_size for each in last]
    assert sum(kept) >= spool.MAX_RETAINED_BYTES > sum(kept[2:])
    assert numbers(tmp_path) == list(range(last[0].first, 101))


def test_bound_holds_for_all_attempts_of_a_folder(tmp_path: Path) -> None:
    """A job that was preempted a thousand times has a thousand spools in one folder."""
    for attempt in range(1, 9):
        fill(tmp_path, attempt, 40)

    trim(tmp_path, dict.fromkeys(range(1, 8), 40))

    newest = by_attempt(file.name for file in tmp_path.iterdir())
    assert [len(newest[attempt]) for attempt in range(1, 8)] == [1] * 7
    assert numbers(tmp_path, 8) == list(range(1, 41))
    assert spooled_attempts(tmp_path) == list(range(1, 9))


def test_removal_keeps_a_suffix_whatever_the_sizes() -> None:
    sizes = {Segment(1, 1): 500_000_000, Segment(1, 2): 0, Segment(1, 3): 9, Segment(1, 4): 8}

    assert list(removable(sizes, {1: 3}, 8)) == [Segment(1, 1), Segment(1, 2), Segment(1, 3)]
    assert list(removable(sizes, {1: 2}, 8)) == [Segment(1, 1), Segment(1, 2)]
    assert list(removable(sizes, {1: 3}, 9)) == [Segment(1, 1), Segment(1, 2)]
    assert segments_after(list(sizes), 2) == [Segment(1, 3), Segment(1, 4)]


def test_numbers_continue_after_removal_of_older_segments(tmp_path: Path) -> None:
    fill(tmp_path, 1, 40)
    for each in files(tmp_path)[:-1]:
        (tmp_path / each.name).unlink()
    [newest] = files(tmp_path)

    fill(tmp_path, 1, 2)

    assert numbers(tmp_path) == list(range(newest.first, 43))


def test_kill_right_after_a_rotation_loses_no_number(tmp_path: Path) -> None:
    fill(tmp_path, 1, 4)
    (tmp_path / Segment(1, 5).name).touch()

    between = numbers(tmp_path)
    fill(tmp_path, 1, 1)

    assert between == [1, 2, 3, 4]
    assert numbers(tmp_path) == [1, 2, 3, 4, 5]
    assert (tmp_path / Segment(1, 5).name).stat().st_size


def test_gap_between_segments_ends_one_read_and_begins_the_next(tmp_path: Path) -> None:
    """Reports of one batch are consecutive, and a missing one does not block later ones."""
    fill(tmp_path, 1, 20)
    some = files(tmp_path)
    (tmp_path / some[1].name).unlink()

    before = numbers(tmp_path)
    after = numbers(
        tmp_path, after=SpoolPosition(before[-1], 1, (tmp_path / some[0].name).stat().st_size)
    )

    assert before == list(range(1, some[1].first))
    assert after == list(range(some[2].first, 21))


def test_segment_removed_while_it_is_read_ends_the_reading(tmp_path: Path) -> None:
    fill(tmp_path, 1, 40)
    reading = read_spool(spool_file(tmp_path, 1))
    first, _ = next(reading)

    trim(tmp_path, {1: 40})
    rest = [report.n for report, _ in reading]

    assert [first.n, *rest] == list(range(1, len(rest) + 2))
    assert len(rest) < PER_SEGMENT + 1


def test_transient_file_system_error_skips_no_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, 1, 20)
    open_, oldest = Path.open, spool_file(tmp_path, 1)

    def stale(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path == oldest:
            raise OSError(errno.ESTALE, "stale file handle")
        return open_(path, *args, **kwargs)

    with monkeypatch.context() as patched:
        patched.setattr(Path, "open", stale)
        meanwhile = numbers(tmp_path)

    assert meanwhile == []
    assert numbers(tmp_path) == list(range(1, 21))


def test_delivery_continues_after_an_error_of_the_file_system(
    opened: ReportServer,
    port: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fill(tmp_path, 1, 20)
    open_, failures = Path.open, iter(["open", "open"])
    monkeypatch.setattr(delivery, "MAX_BACKOFF_S", 0.05)

    def unreadable(path: Path, *args: Any, **kwargs: Any) -> Any:
        if path.parent == tmp_path and next(failures, None):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return open_(path, *args, **kwargs)

    monkeypatch.setattr(Path, "open", unreadable)
    sender = new_sender(port, tmp_path)
    sender.start()
    opened.wait_for(1, 20)
    sender.close()

    assert opened.received == {1: list(range(1, 21))}
    assert capsys.readouterr().err.count("the spool cannot be read; trying again") == 1


def test_single_file_spool_of_an_older_version_is_migrated(tmp_path: Path) -> None:
    whole = tmp_path / "whole"
    fill(whole, 1, 60)
    lines = [report.line() for report, _ in read_spool(spool_file(whole, 1))]
    old = tmp_path / "spool"
    old.mkdir()
    (old / "attempt-1.jsonl").write_text("\n".join([*lines, '{"attempt":1,"n":61']))

    fill(old, 1, 30)
    joined = numbers(old)
    trim(old, {1: 90})

    assert joined == list(range(1, 91))
    assert files(old)[0].first > 60
    assert numbers(old)[-1] == 90


def test_torn_line_that_could_not_be_cut_is_cut_before_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = fill(tmp_path, 1, 2)
    with spool_file(tmp_path, 1).open("ab") as lines:
        lines.write(b'{"attempt":1,')
    monkeypatch.setattr(made, "_has_partial_line", True)

    made.append(PROGRESS, {"step": 2, "values": {}})

    assert numbers(tmp_path) == [1, 2, 3]


def test_sender_removes_reports_that_the_service_has(
    opened: ReportServer, port: int, tmp_path: Path
) -> None:
    made = fill(tmp_path, 1, 400)
    sender = new_sender(port, tmp_path)

    sender.start()
    opened.wait_for(1, 400)
    for step in range(100):
        made.append(PROGRESS, {"step": step, "values": {}})
    opened.wait_for(1, 500)
    made.append(PROGRESS, {"step": 0, "values": {}})
    sender.close()

    kept = sum((tmp_path / each.name).stat().st_size for each in files(tmp_path))
    assert opened.received == {1: list(range(1, 502))}
    assert opened.oldest == []
    assert kept < spool.MAX_RETAINED_BYTES + 200 * 100


def test_sender_removes_nothing_before_a_response(port: int, tmp_path: Path) -> None:
    fill(tmp_path, 1, 400)
    before = files(tmp_path)
    sender = new_sender(port, tmp_path)

    sender.start()
    sender.close(within_s=0.2)

    assert files(tmp_path) == before


def test_restored_service_continues_from_the_oldest_report(
    opened: ReportServer, port: int, tmp_path: Path
) -> None:
    fill(tmp_path, 1, 60)
    trim(tmp_path, {1: 60})
    [oldest, *_] = numbers(tmp_path)
    opened.received[1] = [1, 2, 3]
    sender = new_sender(port, tmp_path)

    sender.start()
    sender.close()

    assert opened.received == {1: [1, 2, 3, *range(oldest, 61)]}
    assert opened.oldest == [oldest]


def test_service_of_an_earlier_version_is_polled_rarely(
    service: ReportServer, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ignores the field and requests the same report again."""
    fill(tmp_path, 1, 60)
    trim(tmp_path, {1: 60})
    service.knows_oldest = False
    sender = new_sender(port, tmp_path, keepalive_s=0.5)

    with service.opened(port):
        began_s = time.monotonic()
        sender.start()
        wait_until(lambda: len(service.oldest) >= 3)
        waited_s = time.monotonic() - began_s
        sender.close(within_s=5)
        ran_s = time.monotonic() - began_s

    assert waited_s >= 2 * 0.5, "there is a pause between two deliveries"
    assert len(service.oldest) <= 2 + ran_s / 0.5, "also if the machine is slow, and one at the end"
    assert service.received == {1: []}
    output = capsys.readouterr().err
    assert output.count("expects report 1 of attempt 1") == 1
    assert "upgrade the service" in output


def test_gap_of_an_older_attempt_does_not_block_others(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    fill(tmp_path, 1, 60)
    fill(tmp_path, 2, 60)
    trim(tmp_path, {1: 60})
    service.knows_oldest = False
    sender = new_sender(port, tmp_path, attempt=2)

    with service.opened(port):
        sender.start()
        service.wait_for(2, 60)
        sender.close()

    assert service.received == {1: [], 2: list(range(1, 61))}
    assert len(service.oldest) == 1


def test_relayed_reports_are_removed_after_their_import(tmp_path: Path) -> None:
    """For a worker without the service, the deletion of an archive is the only acknowledgement."""
    made, relay_objects = fill(tmp_path, 1, 60), MemoryObjects(FixedClock())
    client = ServiceClient(f"http://127.0.0.1:{free_port()}", "job-1", "secret")
    postbox = StoreRelay(lambda: TimedStore(relay_objects), tmp_path, 1, quiet_s=0.1, pause_s=0.1)
    sender = ReportSender(client, tmp_path, 1, relay=postbox)
    before = files(tmp_path)
    sender.start()
    wait_until(lambda: len(relay_objects.keys()) == 1)
    made.append(PROGRESS, {"step": 60, "values": {}})
    wait_until(lambda: len(relay_objects.keys()) == 2)
    while_it_waits = files(tmp_path)

    [oldest, _] = relay_objects.keys()
    del relay_objects.objects[oldest]
    steps = itertools.count(61)

    def is_removed() -> bool:
        """Whether the imported reports are removed, which the relay does before it writes further ones; it may still write the second archive."""
        made.append(PROGRESS, {"step": next(steps), "values": {}})
        return files(tmp_path)[0].first > 1

    wait_until(is_removed)
    sender.close(within_s=5)

    assert while_it_waits[: len(before)] == before
    assert numbers(tmp_path)[-1] == next(steps)


def test_missing_exit_report_is_added_after_segment_removal(tmp_path: Path) -> None:
    made = Spool(tmp_path / "spool", 1)
    made.append(ReportKind.WORKER_LEFT, {"step": 1})
    env = {"HOLDFAST_ATTEMPT": "1", "HOLDFAST_EPOCH": "1", "HOLDFAST_JOB": "job-1"}
    config = Config.read({**env, "HOLDFAST_SPOOL": str(tmp_path / "spool")})
    exit_report = ExitReport(config, RunDir(tmp_path))
    for step in range(60):
        made.append(PROGRESS, {"step": step, "values": {}})
    trim(tmp_path / "spool", {1: 61})

    exit_report.write(Exit.FAILED)
    exit_report.write(Exit.FAILED)

    reported = [report for report, _ in read_spool(spool_file(tmp_path / "spool", 1))]
    assert [(r.n, r.body["step"]) for r in reported if r.kind is ReportKind.WORKER_LEFT] == [
        (62, 59)
    ]

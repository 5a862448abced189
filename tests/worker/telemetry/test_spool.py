"""Reports wait in the spool and reach the service in order and once, despite failures."""

from __future__ import annotations

from pathlib import Path

import pytest
from holdfast_worker.protocol.reports import Json, ReportKind
from holdfast_worker.protocol.spool_segments import SpoolPosition
from holdfast_worker.telemetry.delivery import ReportSender
from holdfast_worker.telemetry.service_client import ServiceClient
from holdfast_worker.telemetry.spool import Spool, read_spool, spool_file
from worker.support.report_server import ReportServer

PROGRESS = ReportKind.PROGRESS


def fill(directory: Path, attempt: int, count: int) -> Spool:
    spool = Spool(directory, attempt)
    for step in range(count):
        spool.append(PROGRESS, {"step": step, "values": {}})
    return spool


def new_sender(port: int, directory: Path, attempt: int = 1) -> ReportSender:
    return ReportSender(
        ServiceClient(f"http://127.0.0.1:{port}/", "job-1", "secret"), directory, attempt
    )


def test_reports_are_numbered_without_gaps_over_restarts(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2)
    fill(tmp_path, 1, 2)

    reports = [report for report, _ in read_spool(spool_file(tmp_path, 1))]

    assert [r.n for r in reports] == [1, 2, 3, 4]
    assert all(r.at.endswith("Z") for r in reports)


def test_line_torn_by_a_crash_is_removed_and_its_number_reused(tmp_path: Path) -> None:
    fill(tmp_path, 1, 2)
    file = spool_file(tmp_path, 1)
    with file.open("ab") as lines:
        lines.write(b'{"attempt":1,"n":3,"at":"20')

    seen_before = [report.n for report, _ in read_spool(file)]
    fill(tmp_path, 1, 1)

    assert seen_before == [1, 2]
    assert [report.n for report, _ in read_spool(file)] == [1, 2, 3]


def test_spool_is_read_from_the_end_of_the_last_line(tmp_path: Path) -> None:
    fill(tmp_path, 1, 3)
    file = spool_file(tmp_path, 1)

    places = [place for _, place in read_spool(file)]

    assert [report.n for report, _ in read_spool(file, places[1])] == [3]
    assert places[-1] == SpoolPosition(3, 1, file.stat().st_size)


def test_reports_are_delivered_as_they_are_written(
    opened: ReportServer, port: int, tmp_path: Path
) -> None:
    spool = fill(tmp_path, 1, 1)
    sender = new_sender(port, tmp_path)

    sender.start()
    opened.wait_for(1, 1)
    spool.append(PROGRESS, {"step": 2, "values": {}})
    opened.wait_for(1, 2)
    spool.append(PROGRESS, {"step": 3, "values": {}})
    sender.close(within_s=120)

    assert opened.received == {1: [1, 2, 3]}
    assert opened.tokens == {"Bearer secret"}
    assert opened.paths == {"/v1/jobs/job-1/reports"}


def test_reports_that_the_service_has_are_not_resent(
    opened: ReportServer, port: int, tmp_path: Path
) -> None:
    opened.received[1] = [1, 2]
    fill(tmp_path, 1, 450)
    sender = new_sender(port, tmp_path)

    sender.start()
    sender.close(within_s=120)

    assert opened.received == {1: list(range(1, 451))}
    assert opened.largest == 200


def test_delivery_size_is_within_the_limit_of_the_service(
    opened: ReportServer, port: int, tmp_path: Path
) -> None:
    """A service outage of minutes at 100 metrics/s would create a batch that is always refused."""
    spool = Spool(tmp_path, 1)
    values: dict[str, Json] = {f"layer-{n}/gradient-norm": n / 7 for n in range(200)}
    for step in range(300):
        spool.append(PROGRESS, {"step": step, "values": values})
    sender = new_sender(port, tmp_path)

    sender.start()
    sender.close(within_s=120)

    assert opened.received == {1: list(range(1, 301))}
    assert opened.largest < 200


def test_oversized_report_does_not_block_others(
    opened: ReportServer, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spool = fill(tmp_path, 1, 1)
    spool.append(PROGRESS, {"step": 1, "values": {f"{n:09d}": 0.5 for n in range(100_000)}})
    spool.append(PROGRESS, {"step": 2, "values": {}})
    sender = new_sender(port, tmp_path)

    sender.start()
    sender.close(within_s=120)

    assert opened.received == {1: [1, 2, 3]}
    assert opened.steps == [0, 1, 2]
    assert "holdfast: report 2 (progress) has " in capsys.readouterr().err


def test_older_attempts_are_delivered_first(
    opened: ReportServer, port: int, tmp_path: Path
) -> None:
    for attempt in (10, 2, 9):
        fill(tmp_path, attempt, attempt)
    sender = new_sender(port, tmp_path, attempt=10)

    sender.start()
    sender.close(within_s=120)

    assert list(opened.received) == [2, 9, 10]
    assert [len(each) for each in opened.received.values()] == [2, 9, 10]


def test_returning_service_gets_all_reports(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    fill(tmp_path, 1, 3)
    service.refusals = [503, 500, 429]
    sender = new_sender(port, tmp_path)
    sender.start()

    with service.opened(port):
        service.wait_for(1, 3)
        sender.close(within_s=120)

    assert service.received == {1: [1, 2, 3]}


def test_service_that_lost_its_data_gets_all_reports_again(
    opened: ReportServer, port: int, tmp_path: Path
) -> None:
    spool = fill(tmp_path, 1, 3)
    sender = new_sender(port, tmp_path)
    sender.start()
    opened.wait_for(1, 3)

    opened.received.clear()
    spool.append(PROGRESS, {"step": 9, "values": {}})
    opened.wait_for(1, 4)
    sender.close(within_s=120)

    assert opened.received[1][-3:] == [2, 3, 4]


def test_unreachable_service_does_not_delay_the_exit(port: int, tmp_path: Path) -> None:
    fill(tmp_path, 1, 3)
    sender = new_sender(port, tmp_path)

    sender.start()
    sender.close(within_s=0.2)

    assert len(list(read_spool(spool_file(tmp_path, 1)))) == 3


@pytest.mark.parametrize("code", [401, 403, 404, 422])
def test_rejected_reports_are_logged_and_end_delivery(
    opened: ReportServer, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    fill(tmp_path, 1, 3)
    opened.refusals = [code]
    sender = new_sender(port, tmp_path)

    sender.start()
    sender.close(within_s=120)

    assert capsys.readouterr().err.startswith(
        f"holdfast: the service rejected the reports of attempt 1: {code}"
    )
    assert opened.received == {}


def test_damaged_spool_does_not_block_others(
    opened: ReportServer, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spool_file(tmp_path, 1).write_text("not a report\n")
    fill(tmp_path, 2, 2)
    sender = new_sender(port, tmp_path, attempt=2)

    sender.start()
    sender.close(within_s=120)

    assert opened.received == {1: [], 2: [1, 2]}
    assert "the spool of attempt 1 cannot be read" in capsys.readouterr().err


def test_service_exit_request_is_ignored_if_launcher_notifies(
    opened: ReportServer, port: int, tmp_path: Path
) -> None:
    opened.leave_within_s = 120.0
    fill(tmp_path, 1, 3)
    sender = new_sender(port, tmp_path)

    sender.start()
    sender.close(within_s=120)

    assert opened.received == {1: [1, 2, 3]}
    assert sender.leave_by is None

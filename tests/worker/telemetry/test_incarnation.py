"""An unnumbered attempt registers, and its reports stay in order through failures."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from holdfast_worker.clock import now
from holdfast_worker.config import Config
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.telemetry.delivery import ReportSender
from holdfast_worker.telemetry.incarnation import Incarnation, ReportOffset
from holdfast_worker.telemetry.service_client import ServiceClient, ServiceUnreachable
from holdfast_worker.telemetry.spool import Spool
from worker.support.report_server import NO_ANSWER, ReportServer
from worker.support.run_driver import free_port, wait_until


@pytest.fixture
def service() -> ReportServer:
    return ReportServer()


@pytest.fixture
def port(service: ReportServer) -> Iterator[int]:
    port = free_port()
    with service.opened(port):
        yield port


def create_incarnation(home: Path, placement: str = "1") -> Incarnation:
    env = {"HOME": str(home), "HOLDFAST_JOB": "job-1", "SKYPILOT_INTERNAL_JOB_ID": placement}
    return Incarnation.create(Config.read(env))


def spool(incarnation: Incarnation, count: int) -> Spool:
    reports = Spool(incarnation.spool, 0)
    for step in range(count):
        reports.append(ReportKind.PROGRESS, {"step": step, "values": {}})
    return reports


def new_sender(port: int, incarnation: Incarnation) -> ReportSender:
    client = ServiceClient(f"http://127.0.0.1:{port}", "job-1", "secret", incarnation.name)
    return ReportSender(client, incarnation.spool, 0, incarnation)


def deliver(port: int, incarnation: Incarnation) -> ReportSender:
    """Deliver the spool of an incarnation by its own sender."""
    sender = new_sender(port, incarnation)
    sender.start()
    sender.close()
    return sender


def test_repeated_runs_of_a_placement_share_an_incarnation(tmp_path: Path) -> None:
    first, again = create_incarnation(tmp_path), create_incarnation(tmp_path)
    elsewhere, later = create_incarnation(tmp_path / "new-vm"), create_incarnation(tmp_path, "2")

    assert first == again
    assert len({first.name, elsewhere.name, later.name}) == 3
    assert int(first.name, 16) >= 0
    assert first.path == tmp_path / ".holdfast" / "job-1" / "1"


def test_reports_use_the_attempt_number_from_the_service(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    service.attempts = {"of an earlier placement": 1, "of another": 2}
    incarnation = create_incarnation(tmp_path)
    spool(incarnation, 3)

    deliver(port, incarnation)

    assert service.registrations == [{"incarnation": incarnation.name}]
    assert service.received == {3: [1, 2, 3]}
    assert service.paths == {"/v1/jobs/job-1/muster", "/v1/jobs/job-1/reports"}
    assert service.tokens == {"Bearer secret"}


@pytest.mark.parametrize(
    ("refusals", "registration_count"),
    [([503, 503, 500], 1), ([NO_ANSWER], 2), ([200, 200, NO_ANSWER], 1)],
)
def test_failed_requests_are_retried_and_accepted_once(
    service: ReportServer, port: int, tmp_path: Path, refusals: list[int], registration_count: int
) -> None:
    service.refusals = [*refusals]
    incarnation = create_incarnation(tmp_path)
    spool(incarnation, 3)

    deliver(port, incarnation)

    assert service.refusals == []
    assert [m["incarnation"] for m in service.registrations] == [
        incarnation.name
    ] * registration_count
    assert service.received == {1: [1, 2, 3]}


def test_reports_of_a_second_command_follow_the_first(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    incarnation = create_incarnation(tmp_path)
    spool(incarnation, 3)
    deliver(port, incarnation)

    again = create_incarnation(tmp_path)
    spool(again, 2)
    deliver(port, again)

    assert service.received == {1: [1, 2, 3, 4, 5]}
    assert service.steps == [0, 1, 2, 0, 1]


def test_successor_in_an_attempt_is_numbered_after_the_other(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    """Also its second command is, although the service has some of its reports by then."""
    incarnation = create_incarnation(tmp_path)
    service.attempts, service.received = {incarnation.name: 1}, {1: [1, 2]}
    spool(incarnation, 3)

    deliver(port, incarnation)
    spool(incarnation, 1)
    deliver(port, incarnation)

    assert service.received == {1: [1, 2, 3, 4, 5, 6]}
    assert service.steps == [0, 1, 2, 0]
    assert incarnation.load_offset() == ReportOffset(attempt=1, before=2)


def test_service_that_lost_all_reports_gets_ours_again(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    incarnation = create_incarnation(tmp_path)
    service.attempts, service.received = {incarnation.name: 1}, {1: [1, 2]}
    spool(incarnation, 3)
    deliver(port, incarnation)

    service.received.clear()
    spool(incarnation, 1)
    deliver(port, incarnation)

    assert service.received == {1: [1, 2, 3, 4]}
    assert service.steps == [0, 1, 2, 0, 1, 2, 0]


def test_replaced_worker_is_notified_on_muster(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    incarnation = create_incarnation(tmp_path)
    spool(incarnation, 1)
    service.replaced = {incarnation.name}

    sender = deliver(port, incarnation)

    assert sender.superseded_by == "another worker has mustered since"
    assert service.received == {}


def test_replaced_worker_is_notified_on_report(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    incarnation = create_incarnation(tmp_path)
    reports = spool(incarnation, 1)
    sender = new_sender(port, incarnation)
    sender.start()
    service.wait_for(1, 1)
    before = sender.superseded_by

    service.replaced = {incarnation.name}
    reports.append(ReportKind.PROGRESS, {"step": 1, "values": {}})

    wait_until(lambda: sender.superseded_by is not None)
    sender.close()
    assert not before
    assert service.received == {1: [1]}


def test_worker_forgotten_by_the_service_musters_again(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    """After the restore of a backup, no worker is killed or stops reporting."""
    incarnation = create_incarnation(tmp_path)
    reports = spool(incarnation, 2)
    sender = new_sender(port, incarnation)
    sender.start()
    service.wait_for(1, 2)

    service.forgotten = {incarnation.name}
    service.received[1] = [1]
    reports.append(ReportKind.PROGRESS, {"step": 2, "values": {}})

    service.wait_for(1, 3)
    sender.close()
    assert sender.superseded_by is None
    assert [m["incarnation"] for m in service.registrations] == [incarnation.name] * 2
    assert service.steps == [0, 1, 1, 2]


@pytest.mark.parametrize("code", [401, 403, 404, 422])
def test_request_refused_by_a_proxy_is_retried(
    service: ReportServer, port: int, tmp_path: Path, code: int
) -> None:
    """A default backend returns 404; a worker that accepts this would miss every later cancel."""
    service.refusals, service.is_behind_a_proxy = [code, 200, 200, code], True
    incarnation = create_incarnation(tmp_path)
    spool(incarnation, 3)

    deliver(port, incarnation)

    assert service.refusals == []
    assert service.received == {1: [1, 2, 3]}


def test_other_conflict_does_not_end_the_worker(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    service.refusals = [409]
    incarnation = create_incarnation(tmp_path)
    spool(incarnation, 3)

    sender = deliver(port, incarnation)

    assert service.received == {1: [1, 2, 3]}
    assert sender.superseded_by is None


@pytest.mark.parametrize("code", [401, 403, 404, 422])
def test_rejected_muster_is_logged_and_ends_delivery(
    service: ReportServer, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    service.refusals = [code]
    incarnation = create_incarnation(tmp_path)
    spool(incarnation, 1)

    deliver(port, incarnation)

    assert capsys.readouterr().err.startswith(
        f"holdfast: the service rejected the registration; reports are not delivered: {code}"
    )
    assert service.received == {}


def test_service_exit_request_arrives_without_reports(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    incarnation = create_incarnation(tmp_path)
    client = ServiceClient(f"http://127.0.0.1:{port}", "job-1", "secret", incarnation.name)
    sender = ReportSender(client, incarnation.spool, 0, incarnation, keepalive_s=0.1)
    sender.start()
    wait_until(lambda: 1 in service.received)
    before, asked_at = sender.leave_by, now()

    service.leave_within_s = 120.0

    wait_until(lambda: sender.leave_by is not None)
    sender.close()
    assert before is None
    assert sender.leave_by
    assert asked_at + timedelta(seconds=120) <= sender.leave_by <= now() + timedelta(seconds=120)
    assert service.received == {1: []}


def test_request_to_end_nodes_is_taken_once(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    service.drills = [{"requested_at": "2026-03-01T00:00:00Z", "nodes": [2, 3], "within_s": 30.0}]
    incarnation = create_incarnation(tmp_path)
    spool(incarnation, 2)
    before_s = time.monotonic()

    sender = deliver(port, incarnation)

    nodes, end_s = sender.drills.get_nowait()
    assert nodes == [2, 3]
    assert before_s + 30 <= end_s <= time.monotonic() + 30
    assert sender.drills.empty()
    assert sender.leave_by is None


def test_malformed_request_to_end_nodes_is_an_error(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    client = ServiceClient(f"http://127.0.0.1:{port}", "job-1", "secret")
    service.drills = [{"requested_at": "2026-03-01T00:00:00Z", "nodes": None, "within_s": 30.0}]

    with pytest.raises(ServiceUnreachable, match="malformed response"):
        client.deliver(1, [])


def test_reports_of_other_workers_do_not_acknowledge_own_ones(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    incarnation = create_incarnation(tmp_path)
    service.attempts, service.received = {incarnation.name: 1}, {1: [1, 2]}
    spool(incarnation, 3)

    sender = deliver(port, incarnation)

    assert service.received == {1: [1, 2, 3, 4, 5]}
    assert sender._delivery.acknowledged == {0: 3}

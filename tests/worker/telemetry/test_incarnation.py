"""An unnumbered attempt registers, and its reports stay in order through all failures."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from holdfast_worker.clock import now
from holdfast_worker.config import Config
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.telemetry.delivery import ReportSender
from holdfast_worker.telemetry.incarnation import Incarnation, ReportOffset
from holdfast_worker.telemetry.service_client import ServiceClient
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


def spool(who: Incarnation, count: int) -> Spool:
    reports = Spool(who.spool, 0)
    for step in range(count):
        reports.append(ReportKind.PROGRESS, {"step": step, "values": {}})
    return reports


def courier(port: int, who: Incarnation) -> ReportSender:
    doorstep = ServiceClient(f"http://127.0.0.1:{port}", "job-1", "secret", who.name)
    return ReportSender(doorstep, who.spool, 0, who)


def deliver(port: int, who: Incarnation) -> ReportSender:
    """What is spooled, by a courier of its own."""
    bringer = courier(port, who)
    bringer.start()
    bringer.close()
    return bringer


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
    service.roll = {"of an earlier placement": 1, "of another": 2}
    who = create_incarnation(tmp_path)
    spool(who, 3)

    deliver(port, who)

    assert service.musters == [{"incarnation": who.name}]
    assert service.told == {3: [1, 2, 3]}
    assert service.paths == {"/v1/jobs/job-1/muster", "/v1/jobs/job-1/reports"}
    assert service.tokens == {"Bearer secret"}


@pytest.mark.parametrize(
    ("refusals", "musters"), [([503, 503, 500], 1), ([NO_ANSWER], 2), ([200, 200, NO_ANSWER], 1)]
)
def test_failed_requests_are_retried_and_accepted_once(
    service: ReportServer, port: int, tmp_path: Path, refusals: list[int], musters: int
) -> None:
    service.refusals = [*refusals]
    who = create_incarnation(tmp_path)
    spool(who, 3)

    deliver(port, who)

    assert service.refusals == []
    assert [m["incarnation"] for m in service.musters] == [who.name] * musters
    assert service.told == {1: [1, 2, 3]}


def test_reports_of_a_second_command_follow_the_first(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    who = create_incarnation(tmp_path)
    spool(who, 3)
    deliver(port, who)

    again = create_incarnation(tmp_path)
    spool(again, 2)
    deliver(port, again)

    assert service.told == {1: [1, 2, 3, 4, 5]}
    assert service.steps == [0, 1, 2, 0, 1]


def test_successor_in_an_attempt_is_numbered_after_the_other(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    """And so is its second command, although the service has some of its own reports by then."""
    who = create_incarnation(tmp_path)
    service.roll, service.told = {who.name: 1}, {1: [1, 2]}
    spool(who, 3)

    deliver(port, who)
    spool(who, 1)
    deliver(port, who)

    assert service.told == {1: [1, 2, 3, 4, 5, 6]}
    assert service.steps == [0, 1, 2, 0]
    assert who.load_offset() == ReportOffset(attempt=1, before=2)


def test_service_that_lost_all_reports_gets_ours_again(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    who = create_incarnation(tmp_path)
    service.roll, service.told = {who.name: 1}, {1: [1, 2]}
    spool(who, 3)
    deliver(port, who)

    service.told.clear()
    spool(who, 1)
    deliver(port, who)

    assert service.told == {1: [1, 2, 3, 4]}
    assert service.steps == [0, 1, 2, 0, 1, 2, 0]


def test_replaced_worker_is_notified_on_muster(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    who = create_incarnation(tmp_path)
    spool(who, 1)
    service.replaced = {who.name}

    bringer = deliver(port, who)

    assert bringer.superseded_by == "another worker has mustered since"
    assert service.told == {}


def test_replaced_worker_is_notified_on_report(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    who = create_incarnation(tmp_path)
    reports = spool(who, 1)
    bringer = courier(port, who)
    bringer.start()
    service.wait_for(1, 1)
    before = bringer.superseded_by

    service.replaced = {who.name}
    reports.append(ReportKind.PROGRESS, {"step": 1, "values": {}})

    wait_until(lambda: bringer.superseded_by is not None)
    bringer.close()
    assert not before
    assert service.told == {1: [1]}


def test_worker_forgotten_by_the_service_musters_again(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    """As after a backup was restored. No worker is killed or stops reporting."""
    who = create_incarnation(tmp_path)
    reports = spool(who, 2)
    bringer = courier(port, who)
    bringer.start()
    service.wait_for(1, 2)

    service.forgotten = {who.name}
    service.told[1] = [1]
    reports.append(ReportKind.PROGRESS, {"step": 2, "values": {}})

    service.wait_for(1, 3)
    bringer.close()
    assert bringer.superseded_by is None
    assert [m["incarnation"] for m in service.musters] == [who.name] * 2
    assert service.steps == [0, 1, 1, 2]


@pytest.mark.parametrize("code", [401, 403, 404, 422])
def test_request_refused_by_a_proxy_is_retried(
    service: ReportServer, port: int, tmp_path: Path, code: int
) -> None:
    """A default backend answers 404. A worker that accepts this would miss every later cancel."""
    service.refusals, service.is_behind_a_proxy = [code, 200, 200, code], True
    who = create_incarnation(tmp_path)
    spool(who, 3)

    deliver(port, who)

    assert service.refusals == []
    assert service.told == {1: [1, 2, 3]}


def test_another_conflict_is_no_reason_to_give_way(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    service.refusals = [409]
    who = create_incarnation(tmp_path)
    spool(who, 3)

    bringer = deliver(port, who)

    assert service.told == {1: [1, 2, 3]}
    assert bringer.superseded_by is None


@pytest.mark.parametrize("code", [401, 403, 404, 422])
def test_rejected_muster_is_logged_and_ends_delivery(
    service: ReportServer, port: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    service.refusals = [code]
    who = create_incarnation(tmp_path)
    spool(who, 1)

    deliver(port, who)

    assert capsys.readouterr().err.startswith(
        f"holdfast: the service rejected the registration; reports are not delivered: {code}"
    )
    assert service.told == {}


def test_service_exit_request_arrives_without_reports(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    who = create_incarnation(tmp_path)
    doorstep = ServiceClient(f"http://127.0.0.1:{port}", "job-1", "secret", who.name)
    bringer = ReportSender(doorstep, who.spool, 0, who, keepalive_s=0.1)
    bringer.start()
    wait_until(lambda: 1 in service.told)
    before, asked_at = bringer.leave_by, now()

    service.leave_within_s = 120.0

    wait_until(lambda: bringer.leave_by is not None)
    bringer.close()
    assert before is None
    assert bringer.leave_by
    assert asked_at + timedelta(seconds=120) <= bringer.leave_by <= now() + timedelta(seconds=120)
    assert service.told == {1: []}


def test_reports_of_others_do_not_acknowledge_own_ones(
    service: ReportServer, port: int, tmp_path: Path
) -> None:
    who = create_incarnation(tmp_path)
    service.roll, service.told = {who.name: 1}, {1: [1, 2]}
    spool(who, 3)

    sender = deliver(port, who)

    assert service.told == {1: [1, 2, 3, 4, 5]}
    assert sender._delivery.acknowledged == {0: 3}

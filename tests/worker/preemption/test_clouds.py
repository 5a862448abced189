"""Termination notices of each cloud are recognized, and other responses are not."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from holdfast_worker.clock import now
from holdfast_worker.node.launch import LINGER_GRACE_S, UNKNOWN_DEADLINE_S, linger_s
from holdfast_worker.preemption import metadata_service
from holdfast_worker.preemption.clouds import (
    Aws,
    Azure,
    Gcp,
    RebalanceRecommendation,
    TerminationNotice,
    _parse_time,
    find_cloud,
)
from holdfast_worker.preemption.metadata_service import MetadataService
from holdfast_worker.preemption.notice_sources import MetadataWatcher
from worker.support.metadata_servers import AzureServer, Ec2, Gce, MetadataServer, serve
from worker.support.run_driver import free_port, wait_until

AT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.fixture(autouse=True)
def _servers_may_be_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata_service, "TIMEOUT_S", 60.0)


@pytest.mark.parametrize("tokens", [True, False], ids=["IMDSv2", "IMDSv1"])
def test_aws_termination_notice_is_read(tokens: bool) -> None:
    server = Ec2(tokens)

    with serve(server) as address:
        aws = Aws(MetadataService(address))
        before = aws.poll()
        server.action_at = AT
        after = aws.poll()

    assert before == []
    assert after == [TerminationNotice(AT)]
    assert server.given == tokens


def test_aws_rebalance_recommendation_is_read() -> None:
    with serve(Ec2(rebalance_at=AT)) as address:
        notices = Aws(MetadataService(address)).poll()

    assert notices == [RebalanceRecommendation(AT)]


def test_expired_token_is_replaced() -> None:
    server = Ec2(action_at=AT)

    with serve(server) as address:
        aws = Aws(MetadataService(address))
        aws.poll()
        server.valid = ""
        again = aws.poll()

    assert again == [TerminationNotice(AT)]
    assert server.given == 2


def test_token_is_requested_once_the_service_requires_one() -> None:
    server = Ec2(tokens=False, action_at=AT)

    with serve(server) as address:
        aws = Aws(MetadataService(address))
        aws.poll()
        server.tokens = True
        again = aws.poll()

    assert again == [TerminationNotice(AT)]


def test_aws_notice_is_read_despite_a_garbled_recommendation() -> None:
    with serve(Ec2(action_at=AT, rebalance_at=AT, is_advice_garbled=True)) as address:
        notices = Aws(MetadataService(address)).poll()

    assert notices == [TerminationNotice(AT)]


def test_gcp_preemption_has_a_deadline_of_30_seconds() -> None:
    server = Gce(maintenance="MIGRATE_ON_HOST_MAINTENANCE")

    with serve(server) as address:
        gcp = Gcp(MetadataService(address))
        before = gcp.poll()
        server.is_preempted = True
        [notice] = gcp.poll()
        again = gcp.poll()

    assert before == []
    assert isinstance(notice, TerminationNotice)
    assert notice.deadline
    assert timedelta(seconds=20) < notice.deadline - now() <= timedelta(seconds=30)
    assert again == [notice]


def test_gcp_maintenance_is_only_a_rebalance_recommendation() -> None:
    """GPU nodes get an hour's warning; assuming 30 s would prevent the save of a large model."""
    with serve(Gce(maintenance="TERMINATE_ON_HOST_MAINTENANCE")) as address:
        [notice] = Gcp(MetadataService(address)).poll()

    assert isinstance(notice, RebalanceRecommendation)


def test_azure_notice_applies_only_to_the_named_nodes() -> None:
    server = AzureServer(name="vm-3")

    with serve(server) as address:
        azure = Azure(MetadataService(address))
        server.schedule("Reboot", "vm-3", AT)
        server.schedule("Preempt", "vm-4", AT)
        before = azure.poll()
        server.schedule("Preempt", "vm-3", AT)
        after = azure.poll()

    assert before == []
    assert after == [TerminationNotice(AT)]


def test_azure_notice_without_a_time_is_immediate() -> None:
    server = AzureServer(name="vm-3")
    server.schedule("Preempt", "vm-3", None)

    with serve(server) as address:
        [notice] = Azure(MetadataService(address)).poll()

    assert isinstance(notice, TerminationNotice)
    assert notice.deadline
    assert notice.deadline <= now()


@pytest.mark.parametrize(
    ("server", "name"),
    [(Ec2(), "aws"), (Ec2(tokens=False), "aws"), (Gce(), "gcp"), (AzureServer(), "azure")],
)
def test_cloud_is_detected_by_its_responses(server: MetadataServer, name: str) -> None:
    with serve(server) as address:
        cloud = find_cloud(MetadataService(address), None)

    assert cloud
    assert cloud.name == name


def test_cloud_named_by_the_launcher_is_not_probed() -> None:
    nowhere = MetadataService("http://127.0.0.1:9")

    named, unknown = find_cloud(nowhere, "gcp"), find_cloud(nowhere, "lambda")

    assert isinstance(named, Gcp)
    assert unknown is None


def test_watcher_stops_if_no_metadata_service_responds(capsys: pytest.CaptureFixture[str]) -> None:
    watcher = MetadataWatcher(MetadataService(f"http://127.0.0.1:{free_port()}"), None)
    others = {*threading.enumerate()}

    watcher.start()

    wait_until(lambda: others >= {*threading.enumerate()})
    assert not watcher.termination
    assert capsys.readouterr().err == ""


def test_metadata_requests_ignore_proxy_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")

    with serve(Ec2()) as address:
        cloud = find_cloud(MetadataService(address), None)

    assert cloud


def test_watcher_separates_recommendations_from_notices() -> None:
    server = Gce()

    with serve(server) as address:
        watcher = MetadataWatcher(MetadataService(address), None)
        watcher.start()
        server.is_preempted = True
        wait_until(lambda: watcher.termination is not None)
    with serve(Ec2(rebalance_at=AT)) as address:
        other = MetadataWatcher(MetadataService(address), "aws")
        other.start()
        wait_until(lambda: other.rebalance_at is not None)
        other.close()

    assert watcher.rebalance_at is None
    assert other.rebalance_at == AT
    assert other.termination is None


def test_malformed_response_does_not_end_the_watcher(capsys: pytest.CaptureFixture[str]) -> None:
    server = AzureServer()
    server.events = ["nonsense"]  # type: ignore[list-item]

    with serve(server) as address:
        watcher = MetadataWatcher(MetadataService(address), "azure")
        watcher.start()
        wait_until(lambda: "metadata service of azure fails" in capsys.readouterr().err)
        server.events = []
        server.schedule("Preempt", "vm-3", AT)
        wait_until(lambda: watcher.termination is not None)

    assert watcher.termination == TerminationNotice(AT)


@pytest.mark.parametrize(
    ("left_s", "hold"),
    [(120, 120 + LINGER_GRACE_S), (-600, LINGER_GRACE_S), (None, UNKNOWN_DEADLINE_S)],
)
def test_node_is_held_until_its_deadline(left_s: float | None, hold: float) -> None:
    deadline = None if left_s is None else AT + timedelta(seconds=left_s)

    assert linger_s(deadline, AT) == hold


def test_deadline_without_a_zone_is_utc_in_any_local_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    try:
        deadline = _parse_time("2030-01-02T03:04:05")
        other = _parse_time("2030-01-02T03:04:05+09:00")
    finally:
        monkeypatch.undo()
        time.tzset()

    assert deadline == AT
    assert other == AT - timedelta(hours=9)

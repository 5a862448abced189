"""Every cloud is understood when it says that it takes a node, and nothing else is taken for that."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta

import pytest
from holdfast_worker.clock import now
from holdfast_worker.node.launch import LINGER_GRACE_S, UNKNOWN_DEADLINE_S, linger_s
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
from worker.support.metadata_servers import Arm, Ec2, Gce, Sky, over
from worker.support.run_driver import free_port, wait_until

AT = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)


@pytest.mark.parametrize("tokens", [True, False], ids=["IMDSv2", "IMDSv1"])
def test_aws_termination_notice_is_read(tokens: bool) -> None:
    sky = Ec2(tokens)

    with over(sky) as address:
        aws = Aws(MetadataService(address))
        before = aws.poll()
        sky.action_at = AT
        after = aws.poll()

    assert before == []
    assert after == [TerminationNotice(AT)]
    assert sky.given == tokens


def test_aws_recommends_to_rebalance_before_it_takes_a_node() -> None:
    with over(Ec2(rebalance_at=AT)) as address:
        omens = Aws(MetadataService(address)).poll()

    assert omens == [RebalanceRecommendation(AT)]


def test_a_token_that_has_expired_is_replaced() -> None:
    sky = Ec2(action_at=AT)

    with over(sky) as address:
        aws = Aws(MetadataService(address))
        aws.poll()
        sky.valid = ""
        again = aws.poll()

    assert again == [TerminationNotice(AT)]
    assert sky.given == 2


def test_a_node_that_comes_to_ask_for_tokens_gets_one() -> None:
    sky = Ec2(tokens=False, action_at=AT)

    with over(sky) as address:
        aws = Aws(MetadataService(address))
        aws.poll()
        sky.tokens = True
        again = aws.poll()

    assert again == [TerminationNotice(AT)]


def test_aws_notice_is_read_despite_a_garbled_recommendation() -> None:
    with over(Ec2(action_at=AT, rebalance_at=AT, is_advice_garbled=True)) as address:
        omens = Aws(MetadataService(address)).poll()

    assert omens == [TerminationNotice(AT)]


def test_gcp_gives_half_a_minute() -> None:
    sky = Gce(maintenance="MIGRATE_ON_HOST_MAINTENANCE")

    with over(sky) as address:
        gcp = Gcp(MetadataService(address))
        before = gcp.poll()
        sky.is_preempted = True
        [omen] = gcp.poll()
        again = gcp.poll()

    assert before == []
    assert isinstance(omen, TerminationNotice)
    assert omen.deadline
    assert timedelta(seconds=20) < omen.deadline - now() <= timedelta(seconds=30)
    assert again == [omen]


def test_gcp_maintenance_is_only_a_rebalance_recommendation() -> None:
    """Nodes with GPUs are told an hour before: with half a minute made up, a big model would not even be saved."""
    with over(Gce(maintenance="TERMINATE_ON_HOST_MAINTENANCE")) as address:
        [omen] = Gcp(MetadataService(address)).poll()

    assert isinstance(omen, RebalanceRecommendation)


def test_azure_names_the_nodes_that_it_takes() -> None:
    sky = Arm(name="vm-3")

    with over(sky) as address:
        azure = Azure(MetadataService(address))
        sky.schedule("Reboot", "vm-3", AT)
        sky.schedule("Preempt", "vm-4", AT)
        before = azure.poll()
        sky.schedule("Preempt", "vm-3", AT)
        after = azure.poll()

    assert before == []
    assert after == [TerminationNotice(AT)]


def test_azure_takes_a_node_without_a_time_at_once() -> None:
    sky = Arm(name="vm-3")
    sky.schedule("Preempt", "vm-3", None)

    with over(sky) as address:
        [omen] = Azure(MetadataService(address)).poll()

    assert isinstance(omen, TerminationNotice)
    assert omen.deadline
    assert omen.deadline <= now()


@pytest.mark.parametrize(
    ("sky", "name"), [(Ec2(), "aws"), (Ec2(tokens=False), "aws"), (Gce(), "gcp"), (Arm(), "azure")]
)
def test_which_cloud_it_is_shows_in_its_answers(sky: Sky, name: str) -> None:
    with over(sky) as address:
        cloud = find_cloud(MetadataService(address), None)

    assert cloud
    assert cloud.name == name


def test_a_cloud_that_the_launcher_names_is_not_looked_for() -> None:
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


def test_a_proxy_of_the_environment_is_passed_by(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, f"http://127.0.0.1:{free_port()}")

    with over(Ec2()) as address:
        cloud = find_cloud(MetadataService(address), None)

    assert cloud


def test_watcher_separates_recommendations_from_notices() -> None:
    sky = Gce()

    with over(sky) as address:
        watcher = MetadataWatcher(MetadataService(address), None)
        watcher.start()
        sky.is_preempted = True
        wait_until(lambda: watcher.termination is not None)
    with over(Ec2(rebalance_at=AT)) as address:
        other = MetadataWatcher(MetadataService(address), "aws")
        other.start()
        wait_until(lambda: other.rebalance_at is not None)
        other.close()

    assert watcher.rebalance_at is None
    assert other.rebalance_at == AT
    assert other.termination is None


def test_an_answer_that_makes_no_sense_ends_no_watch(capsys: pytest.CaptureFixture[str]) -> None:
    sky = Arm()
    sky.events = ["nonsense"]  # type: ignore[list-item]

    with over(sky) as address:
        watcher = MetadataWatcher(MetadataService(address), "azure")
        watcher.start()
        wait_until(lambda: "metadata service of azure fails" in capsys.readouterr().err)
        sky.events = []
        sky.schedule("Preempt", "vm-3", AT)
        wait_until(lambda: watcher.termination is not None)

    assert watcher.termination == TerminationNotice(AT)


@pytest.mark.parametrize(
    ("left_s", "hold"),
    [(120, 120 + LINGER_GRACE_S), (-600, LINGER_GRACE_S), (None, UNKNOWN_DEADLINE_S)],
)
def test_a_node_is_held_until_it_should_be_gone(left_s: float | None, hold: float) -> None:
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

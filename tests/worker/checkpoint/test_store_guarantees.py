"""The store guarantee is probed, described in words, and unaffected by transient errors."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_s3 import FakeS3
from holdfast_worker.checkpoint.fencing import FencingTokens
from holdfast_worker.checkpoint.index import LatestPointer
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.policies import ConsistencyGuarantee
from holdfast_worker.protocol.reports import ReportKind
from holdfast_worker.storage.base import ObjectUnreadable, Store, StoreRefused, StoreUnreachable
from holdfast_worker.storage.directory import DirectoryStore
from holdfast_worker.storage.retry import LONGEST_WAIT_S, UNREADABLE_S, retry_until
from worker.support.s3_servers import open_bucket, rclone
from worker.support.stores import LATER_S, MemoryStore, RankGroup, newest

pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")


def probe_store(store: Store) -> ConsistencyGuarantee:
    """Probe a store and check that no object remains."""
    archive = CheckpointRepository(store)
    guarantee = archive.probe("ab12", LATER_S)
    assert archive.sees_probe("ab12", LATER_S)
    archive.remove_probe("ab12", LATER_S)
    assert store.list("probes/") == []
    return guarantee


def test_directory_keeps_the_first_of_two_writes(tmp_path: Path) -> None:
    assert probe_store(DirectoryStore(tmp_path)) is ConsistencyGuarantee.CONDITIONAL


@pytest.mark.parametrize("bucket", ["s3", "gs", "az"], indirect=True)
@pytest.mark.parametrize(
    ("settings", "guarantee"),
    [
        ({}, ConsistencyGuarantee.CONDITIONAL),
        ({"matching": False}, ConsistencyGuarantee.CONDITIONAL),
        ({"conditional": False}, ConsistencyGuarantee.OVERWRITES),
    ],
)
def test_bucket_guarantee_matches_its_server(
    s3: FakeS3, bucket: Store, settings: dict[str, bool], guarantee: ConsistencyGuarantee
) -> None:
    s3.set(**settings)

    assert probe_store(bucket) is guarantee


def test_server_silently_ignoring_conditions_is_detected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with rclone(tmp_path / "s3") as endpoint:
        assert probe_store(open_bucket(endpoint, monkeypatch)) is ConsistencyGuarantee.OVERWRITES


@pytest.mark.parametrize("bucket", ["s3", "gs", "az"], indirect=True)
def test_lost_response_does_not_change_the_guarantee(s3: FakeS3, bucket: Store) -> None:
    s3.fault("lost", on="PutObject", key="*/probes/*", count=1)
    s3.fault("lost", on="PutObject", key="*/probes/*", count=1, skip=3)

    assert probe_store(bucket) is ConsistencyGuarantee.CONDITIONAL


class RejectingStore(MemoryStore):
    """A store that refuses every replacement."""

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        return False


def test_store_rejecting_replacement_is_refused_by_the_probe() -> None:
    with pytest.raises(StoreRefused, match="rejects a conditional write"):
        CheckpointRepository(RejectingStore()).probe("ab12", LATER_S)


def test_failed_pointer_update_raises_store_unreachable() -> None:
    with pytest.raises(StoreUnreachable, match=r"newest.json could not be replaced"):
        LatestPointer(RejectingStore(), FencingTokens(RejectingStore())).advance(
            CheckpointName(10, 1, "ab"), time.monotonic()
        )


def test_both_guarantees_have_a_description() -> None:
    assert ConsistencyGuarantee.CONDITIONAL.description == (
        "supports conditional writes, so that only one attempt of a job can hold an epoch"
    )
    assert ConsistencyGuarantee.OVERWRITES.description == (
        "has no conditional writes: if two attempts of a job start at the same moment, "
        "only the service knows which one is older"
    )


OPERATIONS: dict[str, tuple[str, Callable[[Store], object]]] = {
    "put": ("PutObject", lambda store: store.put("x", b"new")),
    "put_if_absent": ("PutObject", lambda store: store.put_if_absent("y", b"new")),
    "get": ("GetObject", lambda store: store.get("x")),
    "list": ("ListObjects*", lambda store: store.list("")),
}


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize(
    ("code", "status", "times"),
    [
        ("ExpiredToken", 400, 1),
        ("ExpiredToken", 403, 1),
        ("RequestTimeTooSkewed", 403, 1),
        ("OperationAborted", 409, 1),
        ("WordsOfItsOwn", 429, 1),
        ("SlowDown", 503, 3),  # boto3 tries three times before it raises.
    ],
)
def test_transient_errors_are_retried(
    s3: FakeS3, bucket: Store, operation: str, code: str, status: int, times: int
) -> None:
    bucket.put("x", b"old")
    on, act = OPERATIONS[operation]
    fault = s3.fault("error", on=on, code=code, status=status, count=times)

    retry_until(lambda: act(bucket), time.monotonic() + 60)

    assert s3.triggered(fault) == times


@pytest.mark.parametrize("operation", OPERATIONS)
def test_permanent_errors_are_not_retried(s3: FakeS3, bucket: Store, operation: str) -> None:
    bucket.put("x", b"old")
    on, act = OPERATIONS[operation]
    fault = s3.fault("error", on=on, code="AccessDenied", status=403)

    with pytest.raises(StoreRefused, match="AccessDenied"):
        retry_until(lambda: act(bucket), LATER_S)

    assert s3.triggered(fault) == 1


def test_credentials_expiring_during_a_save_cost_no_checkpoint(
    s3: FakeS3, bucket: Store, tmp_path: Path
) -> None:
    group = RankGroup(bucket, tmp_path)
    s3.fault("error", on="*Object*", code="ExpiredToken", status=400, count=12)

    group.save(10)

    assert group.report_bodies(ReportKind.CHECKPOINT_FAILED) == []
    assert newest(bucket) == (10, [])


def test_retries_of_several_clients_are_spread() -> None:
    """Clients that fail together retry at different times, and no wait is too long."""
    waits: list[float] = []

    for _ in range(30):
        began_s = time.monotonic()
        with pytest.raises(StoreUnreachable):
            retry_until(_silence, began_s + 0.15)
        waits.append(time.monotonic() - began_s)

    assert max(waits) < LONGEST_WAIT_S
    assert len({round(wait_s, 3) for wait_s in waits if wait_s > 0.05}) > 5


def _silence() -> None:
    raise StoreUnreachable("no answer")


class FailingStore:
    """A store with consecutive failures, each until a given second, and its clock."""

    def __init__(self, *failures: tuple[float, Exception]) -> None:
        self.failures = failures
        self.now_s = 0.0

    def clock(self) -> float:
        return self.now_s

    def sleep(self, wait_s: float) -> None:
        self.now_s += wait_s

    def get(self) -> str:
        for until_s, error in self.failures:
            if self.now_s < until_s:
                raise error
        return "found"

    def try_once(self) -> str:
        return retry_until(self.get, 300, self.clock, self.sleep)


GONE = StoreUnreachable("connection refused")
BAD = ObjectUnreadable("Input/output error")


@pytest.mark.parametrize(
    "failures",
    [
        # The server restarts, and its disks come up a little later.
        [(60, GONE), (63, BAD)],
        # The server restarts because of its disk.
        [(3, BAD), (60, GONE)],
        [(3, BAD), (60, GONE), (63, BAD), (120, GONE)],
    ],
)
def test_unreadable_object_is_retried_while_the_store_restarts(
    failures: list[tuple[float, Exception]],
) -> None:
    assert FailingStore(*failures).try_once() == "found"


def test_unreadable_object_is_abandoned_early() -> None:
    at_once, late = FailingStore((1000, BAD)), FailingStore((60, GONE), (1000, BAD))

    for store in (at_once, late):
        with pytest.raises(ObjectUnreadable):
            store.try_once()

    assert at_once.now_s <= UNREADABLE_S
    assert 60 < late.now_s < 60 + LONGEST_WAIT_S + UNREADABLE_S


def test_unreachable_store_is_retried_until_the_deadline() -> None:
    store = FailingStore((1000, GONE))

    with pytest.raises(StoreUnreachable):
        store.try_once()

    assert 300 - LONGEST_WAIT_S < store.now_s <= 300

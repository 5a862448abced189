"""Counted requests of a store: each kind, failed ones, and the bytes that arrived."""

from __future__ import annotations

from pathlib import Path

import pytest
from fake_s3 import FakeS3
from holdfast_worker.protocol.store_usage import StoreUsage
from holdfast_worker.storage.base import ObjectNotFound
from holdfast_worker.storage.directory import DirectoryStore
from holdfast_worker.storage.metering import MeteredStore, StoreMeter
from worker.support.s3_servers import open_bucket


@pytest.fixture(name="meter")
def _meter() -> StoreMeter:
    return StoreMeter()


@pytest.fixture(name="store")
def _store(tmp_path: Path, meter: StoreMeter) -> MeteredStore:
    return MeteredStore(DirectoryStore(tmp_path), meter)


def test_requests_and_bytes_are_counted(store: MeteredStore, meter: StoreMeter) -> None:
    store.put("a", b"12345")
    assert store.put_if_absent("b", b"123")
    assert store.get("a") == b"12345"
    assert b"".join(map(bytes, store.stream("b"))) == b"123"
    assert sorted(store.list("")) == ["a", "b"]
    store.delete("a")

    expected = StoreUsage(puts=2, gets=2, lists=1, deletes=1, uploaded_bytes=8, downloaded_bytes=8)
    assert meter.read() == expected


def test_replacement_reads_before_it_writes(store: MeteredStore, meter: StoreMeter) -> None:
    assert store.swap("a", None, b"1")
    assert store.swap("a", b"1", b"22")
    assert not store.swap("a", b"1", b"333")

    used = meter.read()
    assert (used.puts, used.gets, used.uploaded_bytes) == (2, 2, 3)


def test_failed_request_counts_without_bytes(store: MeteredStore, meter: StoreMeter) -> None:
    with pytest.raises(ObjectNotFound):
        store.get("missing")

    assert meter.read() == StoreUsage(gets=1)


def test_abandoned_read_counts_the_bytes_that_arrived(
    store: MeteredStore, meter: StoreMeter
) -> None:
    store.put("a", bytes(3 << 20))
    chunks = store.stream("a")
    size = len(next(chunks))
    chunks.close()  # type: ignore[attr-defined] - it is a generator

    assert meter.read().downloaded_bytes == size == 1 << 20


def test_long_listing_needs_several_requests(tmp_path: Path) -> None:
    class Long(DirectoryStore):
        def list(self, prefix: str) -> list[str]:
            return [f"{prefix}{number}" for number in range(2001)]

    meter = StoreMeter()
    MeteredStore(Long(tmp_path), meter).list("k")

    assert meter.read() == StoreUsage(lists=3)


def test_counts_are_those_of_the_server(
    s3: FakeS3, monkeypatch: pytest.MonkeyPatch, meter: StoreMeter
) -> None:
    store = MeteredStore(open_bucket(s3.endpoint, monkeypatch), meter)

    before = s3.counts()
    store.put("a", bytes(1000))
    assert store.put_if_absent("b", bytes(10))
    assert not store.put_if_absent("b", bytes(10))
    assert store.swap("b", bytes(10), b"new")
    assert not store.swap("b", b"old", b"newer")
    with pytest.raises(ObjectNotFound):
        store.get("missing")
    assert len(b"".join(map(bytes, store.stream("a")))) == 1000
    store.list("")
    store.delete("a")
    after = s3.counts()

    seen = {
        kind: after.requests.get(name, 0) - before.requests.get(name, 0)
        for kind, name in {
            "puts": "PutObject",
            "gets": "GetObject",
            "lists": "ListObjectsV2",
            "deletes": "DeleteObject",
        }.items()
    }
    counted = meter.read().dump()
    assert {kind: counted[kind] for kind in seen} == seen
    assert counted["downloaded_bytes"] == 1000 + len(bytes(10)) + len(b"old")
    assert store.place == "own"

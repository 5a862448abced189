"""Objects of a bucket are read into given memory, by this or the other client."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import fake_s3
import pytest
from fake_s3 import FakeS3
from holdfast_worker.storage import open_store
from holdfast_worker.storage.base import ObjectNotFound, StoreRefused, StoreUnreachable
from holdfast_worker.storage.direct_reads import READ_BYTES
from holdfast_worker.storage.s3 import S3Store
from worker.support.s3_servers import BUCKET, credentials

DATA = random.Random(5).randbytes(3 * READ_BYTES + 5)
KEY = "parts/1"


@pytest.fixture
def s3() -> Iterator[FakeS3]:
    with fake_s3.in_thread() as s3:
        yield s3


@pytest.fixture
def store(s3: FakeS3, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    for name, value in credentials(s3.endpoint).items():
        monkeypatch.setenv(name, value)
    store = open_store(f"s3://{BUCKET}/x", "job", os.environ)
    assert isinstance(store, S3Store)
    store.put(KEY, DATA)
    s3.reset()
    return store


def read(store: S3Store, *sizes: int) -> tuple[bytes, bytes]:
    """Read the object into buffers of these sizes; return their contents, and what was yielded."""
    memory = [bytearray(size) for size in sizes]
    chunks = [bytes(chunk) for chunk in store.stream(KEY, map_views(memory))]
    assert all(0 < len(chunk) <= READ_BYTES for chunk in chunks)
    return b"".join(memory), b"".join(chunks)


def map_views(memory: list[bytearray]) -> list[memoryview]:
    return [memoryview(each) for each in memory]


def downloads(s3: FakeS3) -> int:
    return s3.counts().requests["GetObject"]


@pytest.mark.parametrize(
    "sizes",
    [
        (len(DATA),),
        (0, 1, READ_BYTES, 0, 2 * READ_BYTES, 4),
        (10,),
        (len(DATA) + 10,),
    ],
    ids=["one", "several", "less than the object", "more than the object"],
)
@pytest.mark.parametrize("is_direct", [True, False])
def test_bytes_are_in_the_given_memory(
    store: S3Store, monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], is_direct: bool
) -> None:
    if not is_direct:
        monkeypatch.setattr(store._direct_reads, "_is_possible", False)

    memory, yielded = read(store, *sizes)

    known = min(len(DATA), sum(sizes))
    assert memory == DATA[:known] + bytes(sum(sizes) - known)
    assert yielded == DATA


def test_connection_is_used_again(s3: FakeS3, store: S3Store) -> None:
    read(store, len(DATA))
    first = store._direct_reads._threads.current
    read(store, len(DATA))

    assert downloads(s3) == 2
    assert first is not None
    assert store._direct_reads._threads.current is first


def test_connection_ends_with_its_thread(store: S3Store) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(read, store, len(DATA)).result()
        kept = pool.submit(lambda: store._direct_reads._threads.current).result()
        assert kept
        socket = kept.connection.sock
        del kept

    assert socket.fileno() == -1


def test_closed_idle_connection_is_replaced(s3: FakeS3, store: S3Store) -> None:
    read(store, len(DATA))
    s3.fault("close", on="GetObject", count=1)

    memory, _ = read(store, len(DATA))

    assert memory == DATA


@pytest.mark.parametrize("is_direct", [True, False])
def test_broken_connection_is_no_damage_of_the_object(
    s3: FakeS3, store: S3Store, monkeypatch: pytest.MonkeyPatch, is_direct: bool
) -> None:
    if not is_direct:
        monkeypatch.setattr(store._direct_reads, "_is_possible", False)
    s3.fault("close", on="GetObject", at=0.5, count=1)

    with pytest.raises(StoreUnreachable):
        read(store, len(DATA))

    assert read(store, len(DATA))[0] == DATA


def test_missing_object_is_reported(store: S3Store) -> None:
    with pytest.raises(ObjectNotFound):
        [*store.stream("parts/2", [memoryview(bytearray(1))])]


def test_refusal_has_the_reason_of_the_server(s3: FakeS3, store: S3Store) -> None:
    s3.fault("error", on="GetObject", code="AccessDenied", status=403)

    with pytest.raises(StoreRefused, match="AccessDenied"):
        read(store, len(DATA))


def test_proxy_is_left_to_the_other_client(store: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")

    assert store._direct_reads.open("x/job/parts/1") is None
    monkeypatch.delenv("http_proxy")
    assert read(store, len(DATA))[0] == DATA


def test_url_is_signed_as_all_regions_accept(store: S3Store) -> None:
    url = store._signed_url("x/job/parts/1")

    assert url
    assert "X-Amz-Algorithm=AWS4-HMAC-SHA256" in url

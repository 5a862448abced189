"""Each fault of the fake S3, as boto3 observes it."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
from botocore.exceptions import ClientError, ConnectionClosedError, ResponseStreamingError

from fake_s3 import FakeS3, Fault, Link
from fake_s3.faults import ArmedFault
from fake_s3.handle import BadCommand
from fake_s3.request import Request

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


B, K = "bucket", "run-1/step-000012"
DATA = bytes(range(256)) * 9000


def put(client: S3Client, key: str = K) -> None:
    client.put_object(Bucket=B, Key=key, Body=DATA)


def read(client: S3Client, key: str = K) -> bytes:
    return client.get_object(Bucket=B, Key=key)["Body"].read()


def listed(client: S3Client) -> list[str]:
    return [row["Key"] for row in client.list_objects_v2(Bucket=B).get("Contents", [])]


def difference(one: bytes, other: bytes) -> int:
    """Number of bits in which two contents differ."""
    assert len(one) == len(other)
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("SlowDown", 503),
        ("InternalError", 500),
        ("ExpiredToken", 403),
        ("ConditionalRequestConflict", 409),
        ("Throttling", 429),
    ],
)
def test_error_fault_leaves_the_store_unchanged(
    s3: FakeS3, client: S3Client, code: str, status: int
) -> None:
    s3.fault("error", code=code, count=1)

    with pytest.raises(ClientError) as error_reply:
        put(client)

    assert error_reply.value.response["Error"]["Code"] == code
    assert error_reply.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    assert s3.keys(B) == []
    put(client)
    assert read(client) == DATA


def test_fault_hits_only_matching_requests(s3: FakeS3, client: S3Client) -> None:
    number = s3.fault("error", on="PutObject", key="*/commit", skip=1, count=2)

    statuses = []
    for key in ("a/commit", "a/data", "a/commit", "a/commit", "a/commit"):
        try:
            put(client, key)
        except ClientError as error:
            statuses.append(error.response["ResponseMetadata"]["HTTPStatusCode"])
        else:
            statuses.append(200)
            read(client, key)

    assert statuses == [200, 200, 503, 503, 200]
    assert s3.triggered(number) == 2


def test_fault_of_a_method_applies_to_all_its_operations(s3: FakeS3, client: S3Client) -> None:
    s3.fault("error", on="GET")
    put(client)

    for ask in (read, listed):
        with pytest.raises(ClientError):
            ask(client)


def test_upload_can_fail_after_status_200(s3: FakeS3, client: S3Client) -> None:
    upload = client.create_multipart_upload(Bucket=B, Key=K)["UploadId"]
    tag = client.upload_part(Bucket=B, Key=K, UploadId=upload, PartNumber=1, Body=b"a")["ETag"]
    parts = {"Parts": [{"PartNumber": 1, "ETag": tag}]}
    s3.fault("error", code="InternalError", status=200, on="CompleteMultipartUpload")

    with pytest.raises(ClientError) as error_reply:
        client.complete_multipart_upload(Bucket=B, Key=K, UploadId=upload, MultipartUpload=parts)  # type: ignore[arg-type]

    assert error_reply.value.response["Error"]["Code"] == "InternalError"


@pytest.mark.parametrize("at", [0.0, 0.5, 1.0])
def test_connection_is_reset_during_an_upload(s3: FakeS3, client: S3Client, at: float) -> None:
    s3.fault("reset", on="PUT", at=at, count=1)

    with pytest.raises(ConnectionClosedError):
        put(client)

    assert s3.keys(B) == []
    [entry] = s3.log()
    assert (entry.status, entry.bytes_in) == (0, int(len(DATA) * at))


def test_truncated_reply_ends_before_its_length(s3: FakeS3, client: S3Client) -> None:
    put(client)
    s3.fault("close", on="GET", at=0.5, count=1)
    reply = client.get_object(Bucket=B, Key=K)

    with pytest.raises(ResponseStreamingError):
        reply["Body"].read()

    assert s3.log()[-1].bytes_out == len(DATA) // 2
    assert read(client) == DATA


def test_lost_reply_fault_stores_the_object(s3: FakeS3, client: S3Client) -> None:
    s3.fault("lost", on="PUT", count=1)

    with pytest.raises(ConnectionClosedError):
        put(client)

    assert s3.read(B, K) == DATA


def test_request_stalls_until_the_fault_is_removed(s3: FakeS3, client: S3Client) -> None:
    number = s3.fault("stall", on="PUT", at=0.5)
    with ThreadPoolExecutor(1) as threads:
        upload = threads.submit(put, client)
        assert s3.triggered(number, times=1) == 1
        before = (s3.counts().in_flight, s3.keys(B))

        s3.calm(number)
        upload.result(10)

    assert before == (1, [])
    assert s3.read(B, K) == DATA


def test_request_stalls_for_a_limited_time(s3: FakeS3, client: S3Client) -> None:
    put(client)
    s3.fault("stall", on="HEAD", wait_s=0.1)
    began_s = time.monotonic()

    client.head_object(Bucket=B, Key=K)

    assert time.monotonic() - began_s >= 0.1


def test_bit_flip_in_a_reply_changes_one_bit(s3: FakeS3, client: S3Client) -> None:
    put(client)
    s3.fault("flip", on="GET", count=1)

    assert difference(read_past_checksums(client), DATA) == 1
    assert read(client) == DATA


def test_bit_flip_in_a_request_is_detected_by_its_checksum(s3: FakeS3, client: S3Client) -> None:
    s3.fault("flip", on="PUT", count=1)

    with pytest.raises(ClientError) as error_reply:
        put(client)  # boto3 adds a CRC32.

    assert error_reply.value.response["Error"]["Code"] == "BadDigest"


def test_bit_flip_at_rest_leaves_etag_unchanged(s3: FakeS3, client: S3Client) -> None:
    s3.fault("rot", on="PUT", count=1)

    put(client)

    result = client.head_object(Bucket=B, Key=K)["ETag"]
    assert difference(s3.read(B, K), DATA) == 1
    client.put_object(Bucket=B, Key="sound", Body=DATA)
    assert client.head_object(Bucket=B, Key="sound")["ETag"] == result


def test_new_keys_are_listed_with_a_delay(s3: FakeS3, client: S3Client) -> None:
    put(client, "old")
    s3.fault("lag", wait_s=3600)

    put(client, "old")
    put(client, "new")

    assert listed(client) == ["old"]
    assert s3.keys(B) == ["new", "old"]
    assert read(client, "new") == DATA


def test_fault_selection_depends_on_seed_not_request_order() -> None:
    def triggered(seed: int, keys: list[str]) -> set[str]:
        armed = ArmedFault(1, Fault("error", chance=0.3))
        return {key for key in keys if armed.is_triggered_by(Request("PUT", B, key), seed)}

    keys = [f"{number}" for number in range(1000)]

    assert triggered(1, keys) == triggered(1, keys[::-1]) != triggered(2, keys)
    assert 250 < len(triggered(1, keys)) < 350


def test_unknown_fault_or_setting_is_refused(s3: FakeS3) -> None:
    with pytest.raises(ValueError, match="there is no fault"):
        s3.fault("typo")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        s3.fault("error", chnace=1)
    with pytest.raises(BadCommand, match="page_kyes"):
        s3.set(page_kyes=3)


# Damage of stored objects


def test_damaged_objects_keep_their_etags(s3: FakeS3, client: S3Client) -> None:
    for key in ("short", "bad", "chosen", "gone"):
        put(client, key)
    before = client.head_object(Bucket=B, Key="short")["ETag"]

    s3.truncate(B, "short", 1000)
    s3.corrupt(B, "bad")
    s3.corrupt(B, "chosen", byte=3)
    s3.delete(B, "gone")

    assert read_past_checksums(client, "short") == DATA[:1000]
    assert difference(s3.read(B, "bad"), DATA) == 1
    assert s3.read(B, "chosen")[:5] == b"\x00\x01\x02\x02\x04"
    assert s3.keys(B) == ["bad", "chosen", "short"]
    assert {client.head_object(Bucket=B, Key=key)["ETag"] for key in s3.keys(B)} == {before}


def test_swap_exchanges_objects_with_their_etags(s3: FakeS3, client: S3Client) -> None:
    s3.write(B, "a", b"1")
    s3.write(B, "b", b"2")

    s3.swap(B, "a", "b")

    assert (read(client, "a"), read(client, "b")) == (b"2", b"1")


# The link


def test_replies_come_after_the_latency(s3: FakeS3, client: S3Client) -> None:
    s3.link(Link(latency_s=0.1))
    began_s = time.monotonic()

    put(client)

    assert time.monotonic() - began_s >= 0.1


@pytest.mark.parametrize("link", [Link(bytes_per_s=10e6), Link(total_bytes_per_s=10e6)])
def test_bodies_take_as_long_as_the_bandwidth_requires(
    s3: FakeS3, client: S3Client, link: Link
) -> None:
    s3.link(link)
    least_s = len(DATA) / 10e6 - 0.05  # Less the allowed burst.

    began_s = time.monotonic()
    put(client)
    put_s = time.monotonic() - began_s
    assert read(client) == DATA
    both_s = time.monotonic() - began_s

    assert put_s >= least_s
    assert both_s >= 2 * least_s


def test_server_clock_can_be_ahead(s3: FakeS3, client: S3Client) -> None:
    put(client, "now")
    s3.set(skew_s=86_400)
    put(client, "then")

    now, then = (client.head_object(Bucket=B, Key=key) for key in ("now", "then"))

    assert 86_390 < (then["LastModified"] - now["LastModified"]).total_seconds() < 86_410
    assert then["ResponseMetadata"]["HTTPHeaders"]["date"] >= "A"


# Counters


def test_all_requests_except_commands_are_counted(s3: FakeS3, client: S3Client) -> None:
    put(client)
    read(client)
    with pytest.raises(ClientError):
        client.head_object(Bucket=B, Key="nowhere")

    counts = s3.counts()

    assert counts.requests == {"PutObject": 1, "GetObject": 1, "HeadObject": 1}
    assert counts.methods == {"PUT": 1, "GET": 1, "HEAD": 1}
    assert counts.statuses == {"200": 2, "404": 1}
    assert (counts.bytes_in, counts.bytes_out) == (len(DATA), len(DATA))
    assert (counts.in_flight, counts.most_in_flight) == (0, 1)
    assert [(entry.key, entry.status) for entry in s3.log()] == [(K, 200), (K, 200), ("nowhere", 404)]  # fmt: skip


def test_most_concurrent_requests_are_counted(s3: FakeS3, client: S3Client) -> None:
    number = s3.fault("stall", on="PUT")
    threads = [threading.Thread(target=put, args=(client, f"{n}")) for n in range(3)]
    for thread in threads:
        thread.start()

    s3.triggered(number, times=3)
    s3.calm()
    for thread in threads:
        thread.join()

    assert s3.counts().most_in_flight == 3


def read_past_checksums(client: S3Client, key: str = K) -> bytes:
    """The received bytes, also if boto3 would refuse them."""
    return client.get_object(Bucket=B, Key=key, Range="bytes=0-")["Body"].read()

"""The fake S3 on the wire: other clients, chunked bodies, processes and memory."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from typing import Any

import pytest

import fake_s3
from fake_s3 import FakeS3, Settings
from fake_s3.memory import SMALL, Blob, Pool
from fake_s3.throughput import ThroughputRun, get, put

B, K = "bucket", "run-1/step-000012"
DATA = bytes(range(256)) * 9000


def send_request(s3: FakeS3, method: str, path: str, body: bytes | Iterator[bytes] = b"", **headers: str) -> tuple[int, bytes]:  # fmt: skip
    """Send a raw request and return status and body."""
    connection = http.client.HTTPConnection("127.0.0.1", s3.port, timeout=10)
    try:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, body, named)
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def chunks(data: bytes, size: int, trailer: str = "") -> bytes:
    """`data` in the aws-chunked encoding."""
    cut = [data[at : at + size] for at in range(0, len(data), size)]
    framed = b"".join(b"%x;chunk-signature=0a\r\n%b\r\n" % (len(piece), piece) for piece in cut)
    return framed + f"0\r\n{trailer}\r\n".encode()


# Chunked bodies


@pytest.mark.parametrize("size", [7, 65_536, 10_000_000])
def test_aws_chunked_body_is_decoded(s3: FakeS3, size: int) -> None:
    data = DATA if size > 1000 else DATA[:1000]
    body = chunks(data, size)

    status, _ = send_request(s3, "PUT", f"/{B}/{K}", body, Content_Encoding="aws-chunked", x_amz_decoded_content_length=f"{len(data)}")  # fmt: skip

    assert status == 200
    assert s3.read(B, K) == data


def test_trailing_checksum_is_verified(s3: FakeS3) -> None:
    headers = {"Content_Encoding": "aws-chunked", "x_amz_decoded_content_length": "9"}
    right, wrong = (chunks(b"123456789", 4, f"x-amz-checksum-crc32:{crc}\r\n") for crc in ("y/Q5Jg==", "AAAAAA=="))  # fmt: skip

    good, _ = send_request(s3, "PUT", f"/{B}/good", right, **headers)
    bad, result = send_request(s3, "PUT", f"/{B}/bad", wrong, **headers)

    assert (good, bad) == (200, 400)
    assert b"BadDigest" in result
    assert s3.keys(B) == ["good"]


def test_aws_chunks_inside_http_chunks_are_decoded(s3: FakeS3) -> None:
    inner = chunks(DATA, 100_000)
    outer = (inner[at : at + 16_384] for at in range(0, len(inner), 16_384))

    status, _ = send_request(s3, "PUT", f"/{B}/{K}", outer, Content_Encoding="aws-chunked", x_amz_decoded_content_length=f"{len(DATA)}")  # fmt: skip

    assert status == 200
    assert s3.read(B, K) == DATA


def test_body_longer_than_announced_is_refused(s3: FakeS3) -> None:
    body = chunks(b"123456789", 4)

    status, result = send_request(s3, "PUT", f"/{B}/{K}", body, Content_Encoding="aws-chunked", x_amz_decoded_content_length="5")  # fmt: skip

    assert status == 400
    assert b"IncompleteBody" in result


def test_body_without_a_length_is_refused(s3: FakeS3) -> None:
    status, result = send_request(s3, "PUT", f"/{B}/{K}", iter([b"abc"]))

    assert status == 411
    assert b"MissingContentLength" in result


def test_expect_continue_client_gets_a_continue(s3: FakeS3) -> None:
    with socket.create_connection(("127.0.0.1", s3.port), timeout=10) as connection:
        connection.sendall(
            b"PUT /b/k HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        )
        leave = connection.recv(100)
        connection.sendall(b"abc")
        answer = connection.recv(1000)

    assert leave == b"HTTP/1.1 100 Continue\r\n\r\n"
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n")


def test_expect_continue_client_gets_error_instead_of_continue(s3: FakeS3) -> None:
    s3.fault("error")
    with socket.create_connection(("127.0.0.1", s3.port), timeout=10) as connection:
        connection.sendall(
            b"PUT /b/k HTTP/1.1\r\nContent-Length: 3\r\nExpect: 100-continue\r\n\r\n"
        )
        answer = connection.recv(1000)

    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"Connection: close" in answer


def test_reset_and_orderly_close_are_distinct(s3: FakeS3) -> None:
    s3.fault("reset", key="reset")
    s3.fault("close", key="close")

    with socket.create_connection(("127.0.0.1", s3.port), timeout=10) as connection:
        connection.sendall(b"GET /b/close HTTP/1.1\r\n\r\n")
        assert connection.recv(100) == b""
    with socket.create_connection(("127.0.0.1", s3.port), timeout=10) as connection:
        connection.sendall(b"GET /b/reset HTTP/1.1\r\n\r\n")
        with pytest.raises(ConnectionResetError):
            connection.recv(100)


# obstore


@pytest.fixture
def obstore() -> Any:
    return pytest.importorskip("obstore", reason="obstore is not installed")


@pytest.fixture
def store(obstore: Any, s3: FakeS3) -> Any:
    return obstore.store.S3Store(
        B,
        endpoint=s3.endpoint,
        region="us-east-1",
        access_key_id="any",
        secret_access_key="any",
        client_options={"allow_http": True},
        retry_config={"max_retries": 0},
    )


def test_obstore_writes_reads_and_lists(obstore: Any, s3: FakeS3, store: Any) -> None:
    s3.set(page_keys=2)
    for key in ("r/a", "r/b/1", "r/b/2", "s"):
        obstore.put(store, key, DATA)

    ranges = obstore.get_ranges(store, "r/a", starts=[0, 1_000_000], lengths=[3, 5])
    obstore.delete(store, ["s"])
    obstore.copy(store, "r/a", "r/c")

    assert obstore.get(store, "r/a").bytes() == DATA
    assert [bytes(piece) for piece in ranges] == [DATA[:3], DATA[1_000_000:1_000_005]]
    assert [meta["path"] for meta in obstore.list(store, "r").collect()] == ["r/a", "r/b/1", "r/b/2", "r/c"]  # fmt: skip
    assert obstore.list_with_delimiter(store, "r")["common_prefixes"] == ["r/b"]
    assert obstore.head(store, "r/a")["size"] == len(DATA)


def test_obstore_writes_in_parts(obstore: Any, s3: FakeS3, store: Any) -> None:
    obstore.put(store, K, DATA * 6, use_multipart=True)

    assert s3.read(B, K) == DATA * 6
    assert s3.counts().requests["UploadPart"] == 3


def test_obstore_conditional_puts_are_supported(obstore: Any, s3: FakeS3, store: Any) -> None:
    first = obstore.put(store, K, b"1", mode="create")

    with pytest.raises(obstore.exceptions.AlreadyExistsError):
        obstore.put(store, K, b"2", mode="create")
    obstore.put(store, K, b"3", mode={"e_tag": first["e_tag"]})
    with pytest.raises(obstore.exceptions.PreconditionError):
        obstore.put(store, K, b"4", mode={"e_tag": first["e_tag"]})

    assert s3.read(B, K) == b"3"


@pytest.mark.parametrize("kind", ["error", "reset", "lost"])
def test_obstore_retries_after_faults(obstore: Any, s3: FakeS3, store: Any, kind: Any) -> None:
    s3.fault(kind, on="PUT", count=1)

    with pytest.raises(obstore.exceptions.GenericError):
        obstore.put(store, K, DATA)

    assert s3.keys(B) == ([K] if kind == "lost" else [])


def test_obstore_detects_a_truncated_reply(obstore: Any, s3: FakeS3, store: Any) -> None:
    s3.write(B, K, DATA)
    s3.fault("close", on="GET", at=0.5)

    with pytest.raises(obstore.exceptions.GenericError):
        obstore.get_range(store, K, start=0, length=len(DATA))


# Processes


def test_server_process_ends_with_its_context() -> None:
    with fake_s3.in_process(Settings(md5=True)) as s3:
        s3.write(B, K, DATA)
        assert send_request(s3, "GET", f"/{B}/{K}") == (200, DATA)
        assert s3.cpu_s() > 0

    with pytest.raises(ConnectionRefusedError):
        s3.keys(B)


def test_bodies_are_discarded_if_configured(s3: FakeS3) -> None:
    s3.set(null=True)

    send_request(s3, "PUT", f"/{B}/{K}", DATA)

    assert send_request(s3, "GET", f"/{B}/{K}") == (200, bytes(len(DATA)))
    assert s3.counts().bytes_in == len(DATA)


def test_benchmark_transfers_the_stated_bytes_and_requests(s3: FakeS3) -> None:
    benchmark = ThroughputRun(size_bytes=8 << 20, part_bytes=1 << 20, connections=3)
    s3.reserve(benchmark.parts, benchmark.part_bytes)

    put(benchmark, s3.port, memoryview(DATA)[: benchmark.part_bytes])
    get(benchmark, s3.port, memoryview(bytearray(benchmark.part_bytes)))

    counts = s3.counts()
    assert (counts.bytes_in, counts.bytes_out) == (8 << 20, 8 << 20)
    assert counts.requests == {"PutObject": 8, "GetObject": 8}
    assert counts.connections == 6


# Memory


def test_memory_is_reused_after_last_reference_is_dropped() -> None:
    pool = Pool()
    blob = Blob((pool.allocate(SMALL),))
    twin = Blob(blob.bodies)

    del blob
    held = pool.idle_bytes
    del twin
    free = pool.idle_bytes
    pool.allocate(SMALL + 1)

    assert (held, free) == (0, 2 << 20)
    assert pool.idle_bytes == 2 << 20

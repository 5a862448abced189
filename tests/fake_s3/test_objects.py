"""The fake S3 without faults, as boto3 observes it."""

from __future__ import annotations

import base64
import hashlib
import io
import threading
from typing import TYPE_CHECKING, Any

import pytest
from botocore.exceptions import ClientError

from fake_s3 import FakeS3
from fake_s3.digests import KNOWN, OWN

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


B, K = "bucket", "run 1/é+/step-000012"
DATA = bytes(range(256)) * 9000  # 2.3 MB: larger than bodies in a bytearray.


def code_of(error: ClientError) -> str:
    return error.response["Error"]["Code"]


def put_all(client: S3Client, *keys: str) -> None:
    for key in keys:
        client.put_object(Bucket=B, Key=key, Body=key.encode())


def read(client: S3Client, key: str = K) -> bytes:
    return client.get_object(Bucket=B, Key=key)["Body"].read()


def test_object_is_returned_with_its_metadata(s3: FakeS3, client: S3Client) -> None:
    put = client.put_object(Bucket=B, Key=K, Body=DATA, ContentType="a/b", Metadata={"epoch": "7"})

    got = client.get_object(Bucket=B, Key=K)
    head = client.head_object(Bucket=B, Key=K)

    assert got["Body"].read() == DATA == s3.read(B, K)
    assert (got["ContentType"], got["Metadata"]) == ("a/b", {"epoch": "7"})
    assert put["ETag"] == got["ETag"] == head["ETag"]
    assert head["ContentLength"] == len(DATA)
    assert head["LastModified"] == got["LastModified"]


def test_etag_depends_on_content(s3: FakeS3, client: S3Client) -> None:
    tags = [client.put_object(Bucket=B, Key=K, Body=body)["ETag"] for body in (b"a", b"a", b"b")]

    assert tags[0] == tags[1] != tags[2]


def test_etag_is_an_md5_if_configured(s3: FakeS3, client: S3Client) -> None:
    s3.set(md5=True)

    tag = client.put_object(Bucket=B, Key=K, Body=DATA)["ETag"]

    assert tag == f'"{hashlib.md5(DATA).hexdigest()}"'


@pytest.mark.parametrize(
    ("child_text", "start", "end"),
    [("bytes=0-0", 0, 1), ("bytes=10-", 10, None), ("bytes=-5", -5, None), ("bytes=5-99999999", 5, None)],
)  # fmt: skip
def test_requested_range_is_returned(s3: FakeS3, client: S3Client, child_text: str, start: int, end: int | None) -> None:  # fmt: skip
    s3.write(B, K, DATA)

    got = client.get_object(Bucket=B, Key=K, Range=child_text)

    first = start % len(DATA)
    last = (len(DATA) if end is None else end) - 1
    assert got["Body"].read() == DATA[start:end]
    assert got["ContentRange"] == f"bytes {first}-{last}/{len(DATA)}"


def test_range_beyond_the_end_is_refused(s3: FakeS3, client: S3Client) -> None:
    s3.write(B, K, b"abc")

    with pytest.raises(ClientError) as error_reply:
        client.get_object(Bucket=B, Key=K, Range="bytes=3-")

    assert code_of(error_reply.value) == "InvalidRange"


def test_missing_object_is_not_found(s3: FakeS3, client: S3Client) -> None:
    with pytest.raises(ClientError) as error_reply:
        read(client)
    with pytest.raises(ClientError) as head_refused:
        client.head_object(Bucket=B, Key=K)

    assert code_of(error_reply.value) == "NoSuchKey"
    assert code_of(head_refused.value) == "404"


def test_unsupported_operation_returns_not_implemented(s3: FakeS3, client: S3Client) -> None:
    with pytest.raises(ClientError) as error_reply:
        client.get_object_tagging(Bucket=B, Key=K)

    assert code_of(error_reply.value) == "NotImplemented"


def test_objects_are_deleted_singly_and_in_batches(s3: FakeS3, client: S3Client) -> None:
    put_all(client, "a", "b", "c", "d")

    client.delete_object(Bucket=B, Key="a")
    gone = client.delete_objects(Bucket=B, Delete={"Objects": [{"Key": "b"}, {"Key": "nowhere"}]})
    quiet = client.delete_objects(Bucket=B, Delete={"Objects": [{"Key": "c"}], "Quiet": True})

    assert s3.keys(B) == ["d"]
    assert [row["Key"] for row in gone["Deleted"]] == ["b", "nowhere"]
    assert "Deleted" not in quiet


def test_copy_is_independent_of_its_source(s3: FakeS3, client: S3Client) -> None:
    client.put_object(Bucket=B, Key=K, Body=DATA, Metadata={"epoch": "7"})

    client.copy_object(Bucket="other", Key="copy", CopySource={"Bucket": B, "Key": K})
    s3.corrupt(B, K)

    assert s3.read("other", "copy") == DATA != s3.read(B, K)
    assert client.head_object(Bucket="other", Key="copy")["Metadata"] == {"epoch": "7"}


def test_buckets_exist_on_first_use(s3: FakeS3, client: S3Client) -> None:
    client.head_bucket(Bucket="never-made")
    client.create_bucket(Bucket="made")
    s3.write(B, K, b"")

    names = [bucket["Name"] for bucket in client.list_buckets()["Buckets"]]
    client.delete_bucket(Bucket="made")

    assert names == [B, "made"]
    assert client.get_bucket_location(Bucket=B)["LocationConstraint"]
    assert [bucket["Name"] for bucket in client.list_buckets()["Buckets"]] == [B]


# Lists


def test_listing_is_paged(s3: FakeS3, client: S3Client) -> None:
    s3.set(page_keys=3)
    keys = sorted(f"p/{number}&" for number in range(8))
    put_all(client, *reversed(keys), "o", "q")

    pages = list(client.get_paginator("list_objects_v2").paginate(Bucket=B, Prefix="p/"))

    assert [len(page["Contents"]) for page in pages] == [3, 3, 2]
    assert [row["Key"] for page in pages for row in page["Contents"]] == keys
    assert pages[0]["Contents"][0]["Size"] == len(keys[0])


def test_listing_with_a_delimiter_names_folders_once(s3: FakeS3, client: S3Client) -> None:
    s3.set(page_keys=1)
    put_all(client, "r/a/1", "r/a/2", "r/b", "r/c/1", "r/c/2", "r/d")

    pages = list(client.get_paginator("list_objects_v2").paginate(Bucket=B, Prefix="r/", Delimiter="/"))  # fmt: skip

    folders = [row["Prefix"] for page in pages for row in page.get("CommonPrefixes", [])]
    assert folders == ["r/a/", "r/c/"]
    assert [row["Key"] for page in pages for row in page.get("Contents", [])] == ["r/b", "r/d"]


def test_listing_begins_after_a_key(s3: FakeS3, client: S3Client) -> None:
    put_all(client, "a", "b", "c")

    page = client.list_objects_v2(Bucket=B, StartAfter="a", MaxKeys=1)

    assert [row["Key"] for row in page["Contents"]] == ["b"]
    assert page["IsTruncated"]


# Conditions


def test_conditional_put_creates_a_key_once(s3: FakeS3, client: S3Client) -> None:
    client.put_object(Bucket=B, Key=K, Body=b"first", IfNoneMatch="*")

    with pytest.raises(ClientError) as error_reply:
        client.put_object(Bucket=B, Key=K, Body=b"second", IfNoneMatch="*")

    assert code_of(error_reply.value) == "PreconditionFailed"
    assert s3.read(B, K) == b"first"


def test_one_of_many_concurrent_puts_creates_a_key(s3: FakeS3, client: S3Client) -> None:
    outcomes = []

    def take(name: str) -> None:
        try:
            client.put_object(Bucket=B, Key=K, Body=name.encode(), IfNoneMatch="*")
        except ClientError as error:
            outcomes.append(code_of(error))
        else:
            outcomes.append(name)

    threads = [threading.Thread(target=take, args=(f"{number}",)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert outcomes.count("PreconditionFailed") == 7
    assert s3.read(B, K).decode() in outcomes


def test_conditional_put_replaces_only_the_matching_etag(s3: FakeS3, client: S3Client) -> None:
    known = client.put_object(Bucket=B, Key=K, Body=b"1")["ETag"]
    client.put_object(Bucket=B, Key=K, Body=b"2", IfMatch=known)

    with pytest.raises(ClientError) as late:
        client.put_object(Bucket=B, Key=K, Body=b"3", IfMatch=known)
    with pytest.raises(ClientError) as lost:
        client.put_object(Bucket=B, Key="nowhere", Body=b"3", IfMatch=known)

    assert (code_of(late.value), code_of(lost.value)) == ("PreconditionFailed", "NoSuchKey")
    assert s3.read(B, K) == b"2"


def test_conditions_are_ignored_if_configured(s3: FakeS3, client: S3Client) -> None:
    s3.set(conditional=False)

    for body in (b"first", b"second"):
        client.put_object(Bucket=B, Key=K, Body=body, IfNoneMatch="*")

    assert s3.read(B, K) == b"second"


def test_support_of_each_condition_is_configurable(s3: FakeS3, client: S3Client) -> None:
    s3.set(matching=False)
    client.put_object(Bucket=B, Key=K, Body=b"1", IfNoneMatch="*")

    client.put_object(Bucket=B, Key=K, Body=b"2", IfMatch='"0"')
    with pytest.raises(ClientError) as second:
        client.put_object(Bucket=B, Key=K, Body=b"3", IfNoneMatch="*")

    assert code_of(second.value) == "PreconditionFailed"
    assert s3.read(B, K) == b"2"


def test_conditional_get_respects_if_match_and_if_none_match(s3: FakeS3, client: S3Client) -> None:
    tag = client.put_object(Bucket=B, Key=K, Body=b"1")["ETag"]

    same = client.get_object(Bucket=B, Key=K, IfMatch=tag)["Body"].read()
    with pytest.raises(ClientError) as other:
        client.get_object(Bucket=B, Key=K, IfMatch='"0"')
    with pytest.raises(ClientError) as known:
        client.get_object(Bucket=B, Key=K, IfNoneMatch=tag)

    assert same == b"1"
    assert (code_of(other.value), code_of(known.value)) == ("PreconditionFailed", "304")


# Checksums


@pytest.mark.parametrize("header", sorted(KNOWN))
def test_wrong_checksum_is_rejected_and_valid_one_is_returned(
    s3: FakeS3, client: S3Client, header: str
) -> None:
    member = f"Checksum{header.rpartition('-')[2].upper()}"
    right = base64.b64encode(KNOWN[header]([memoryview(DATA)])).decode()
    wrong = base64.b64encode(KNOWN[header]([memoryview(b"other")])).decode()

    client.put_object(Bucket=B, Key=K, Body=DATA, **{member: right})  # type: ignore[arg-type]
    with pytest.raises(ClientError) as error_reply:
        client.put_object(Bucket=B, Key="bad", Body=DATA, **{member: wrong})  # type: ignore[arg-type]

    head = client.head_object(Bucket=B, Key=K, ChecksumMode="ENABLED")
    assert code_of(error_reply.value) == "BadDigest"
    assert head.get(member) == right
    assert s3.keys(B) == [K]


def test_wrong_md5_is_refused(s3: FakeS3, client: S3Client) -> None:
    wrong = base64.b64encode(hashlib.md5(b"other").digest()).decode()

    with pytest.raises(ClientError) as error_reply:
        client.put_object(Bucket=B, Key=K, Body=b"this", ContentMD5=wrong)

    assert code_of(error_reply.value) == "BadDigest"


@pytest.mark.skipif(OWN not in KNOWN, reason="awscrt is not installed: S3's own checksum is not computed here")  # fmt: skip
def test_s3_computes_its_own_checksum(s3: FakeS3, client: S3Client) -> None:
    client.put_object(Bucket=B, Key=K, Body=b"123456789")

    head = client.head_object(Bucket=B, Key=K, ChecksumMode="ENABLED")

    assert (
        base64.b64decode(head["ChecksumCRC64NVME"]).hex() == "ae8b14860a799888"
    )  # The check value of its catalog entry.


# Parts


def test_multipart_upload_creates_one_object(s3: FakeS3, client: S3Client) -> None:
    s3.set(smallest_part_bytes=2)
    upload = client.create_multipart_upload(Bucket=B, Key=K, Metadata={"epoch": "7"})["UploadId"]
    whose: dict[str, Any] = {"Bucket": B, "Key": K, "UploadId": upload}
    tags = {n: client.upload_part(**whose, PartNumber=n, Body=DATA[:n])["ETag"] for n in (3, 2, 1)}
    underway = [row["Key"] for row in client.list_multipart_uploads(Bucket=B)["Uploads"]]
    listed = [(row["PartNumber"], row["Size"]) for row in client.list_parts(**whose)["Parts"]]
    parts: Any = [{"PartNumber": n, "ETag": tags[n]} for n in (2, 3)]
    assert s3.keys(B) == []

    client.complete_multipart_upload(**whose, MultipartUpload={"Parts": parts})

    got = client.get_object(Bucket=B, Key=K)
    second = client.get_object(Bucket=B, Key=K, PartNumber=2)
    assert got["Body"].read() == DATA[:2] + DATA[:3]
    assert (got["ETag"][-3:-1], got["Metadata"]) == ("-2", {"epoch": "7"})
    assert client.get_object(Bucket=B, Key=K, Range="bytes=1-2")["Body"].read() == DATA[1:2] + DATA[:1]  # fmt: skip
    assert (second["Body"].read(), second["PartsCount"]) == (DATA[:3], 2)
    assert (underway, listed) == ([K], [(1, 1), (2, 2), (3, 3)])
    assert "Uploads" not in client.list_multipart_uploads(Bucket=B)


def test_invalid_parts_are_refused(s3: FakeS3, client: S3Client) -> None:
    upload = client.create_multipart_upload(Bucket=B, Key=K)["UploadId"]
    whose: dict[str, Any] = {"Bucket": B, "Key": K, "UploadId": upload}
    tag = client.upload_part(**whose, PartNumber=1, Body=b"a")["ETag"]
    client.upload_part(**whose, PartNumber=2, Body=b"a")

    def refusal(*parts: tuple[int, str]) -> str:
        listed: Any = [{"PartNumber": number, "ETag": etag} for number, etag in parts]
        with pytest.raises(ClientError) as error_reply:
            client.complete_multipart_upload(**whose, MultipartUpload={"Parts": listed})
        return code_of(error_reply.value)

    assert refusal((1, tag), (2, tag)) == "EntityTooSmall"
    assert refusal((2, tag), (1, tag)) == "InvalidPartOrder"
    assert refusal((1, '"0"')) == refusal((7, tag)) == "InvalidPart"
    client.abort_multipart_upload(**whose)
    assert refusal((1, tag)) == "NoSuchUpload"


def test_boto3_uploads_large_files_in_parts(s3: FakeS3, client: S3Client) -> None:
    large = DATA * 5

    client.upload_fileobj(io.BytesIO(large), B, K)
    back = io.BytesIO()
    client.download_fileobj(B, K, back)

    assert back.getvalue() == large
    assert s3.counts().requests["UploadPart"] == 2

"""Where a bucket says that it is: its region at Amazon, and nothing at other servers."""

from __future__ import annotations

from typing import Any

import boto3
import pytest
from botocore.stub import Stubber
from holdfast.background.store_requests import PlacedBucket
from holdfast.errors import CheckpointStoreRefused
from holdfast.storage.s3 import S3CheckpointBucket


def _client(endpoint: str | None = None) -> Any:
    keys = {"aws_access_key_id": "a", "aws_secret_access_key": "b"}
    return boto3.client("s3", region_name="us-east-1", endpoint_url=endpoint, **keys)


def test_bucket_at_amazon_says_its_region() -> None:
    client = _client()
    with Stubber(client) as stub:
        stub.add_response("head_bucket", {"BucketRegion": "eu-west-1"}, {"Bucket": "bucket"})
        bucket = S3CheckpointBucket("bucket", "job-1", client)

        assert isinstance(bucket, PlacedBucket)
        assert bucket.place() == "aws/eu-west-1"


def test_bucket_at_another_server_is_not_asked() -> None:
    client = _client("http://127.0.0.1:9")

    assert S3CheckpointBucket("bucket", "job-1", client).place() == "own"


def test_bucket_that_refuses_has_no_place() -> None:
    client = _client()
    with Stubber(client) as stub:
        stub.add_client_error("head_bucket", "403", http_status_code=403)

        with pytest.raises(CheckpointStoreRefused):
            S3CheckpointBucket("bucket", "job-1", client).place()

"""One fake S3 for all its tests, cleared for each, and a boto3 client without retries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.config import Config

from fake_s3 import FakeS3

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


@pytest.fixture
def s3(one_s3: FakeS3) -> FakeS3:
    """An empty fake S3."""
    one_s3.renew()
    return one_s3


@pytest.fixture(scope="session")
def client(one_s3: FakeS3) -> Iterator[S3Client]:
    """A client of the fake S3 without retries."""
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=one_s3.endpoint,
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
        config=Config(retries={"total_max_attempts": 1}, read_timeout=10),
    )
    yield client
    client.close()

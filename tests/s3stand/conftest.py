"""One stand-in for all its tests, as new for each, and a client of Amazon's that does not try again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import boto3
import pytest
from botocore.config import Config

import s3stand
from s3stand import Stand

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


@pytest.fixture(scope="session")
def one_stand() -> Iterator[Stand]:
    with s3stand.in_thread() as stand:
        yield stand


@pytest.fixture
def stand(one_stand: Stand) -> Stand:
    """A stand-in with nothing in it."""
    one_stand.renew()
    return one_stand


@pytest.fixture(scope="session")
def client(one_stand: Stand) -> Iterator[S3Client]:
    """A client of the stand-in; what fails, fails at once."""
    client = boto3.session.Session().client(
        "s3",
        endpoint_url=one_stand.endpoint,
        region_name="us-east-1",
        aws_access_key_id="any",
        aws_secret_access_key="any",
        config=Config(retries={"total_max_attempts": 1}, read_timeout=10),
    )
    yield client
    client.close()

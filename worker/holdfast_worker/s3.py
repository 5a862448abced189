"""Objects in an S3 bucket, at Amazon or at anything that speaks like it. The only module that knows boto3."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

import boto3
from boto3.s3.transfer import TransferConfig
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
)

from holdfast_worker.stores import Missing, Refused, StoreError, Unreachable

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

MULTIPART_BYTES: Final = 64 * 2**20
"""Objects beyond this are sent in parts. Smaller parts cost requests, larger ones are dear to send again."""

SETTINGS: Final = Config(
    connect_timeout=5,
    read_timeout=60,
    retries={"mode": "standard", "max_attempts": 3},
    # Checksums in trailers are unknown to many servers; every object is verified by its digest when it is read.
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)

ABSENT: Final = frozenset({"NoSuchKey", "404", "NotFound"})
TAKEN: Final = frozenset({"PreconditionFailed", "412"})
UNCONDITIONAL: Final = frozenset({"NotImplemented", "501"})
"""How a server says that it does not know conditional writes."""
PASSING: Final = frozenset(
    {"ConditionalRequestConflict", "RequestTimeout", "SlowDown", "Throttling"}
)
"""Codes below 500 after which another try may succeed."""


class S3Store:
    """Objects under a prefix of a bucket. Credentials, region and endpoint are found as boto3 finds them."""

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._client = _client()

    def put(self, key: str, data: bytes) -> None:
        """See `Store`."""
        parts = TransferConfig(
            multipart_threshold=MULTIPART_BYTES, multipart_chunksize=MULTIPART_BYTES
        )
        try:
            self._client.upload_fileobj(
                io.BytesIO(data), self._bucket, self._full(key), Config=parts
            )
        except (ClientError, BotoCoreError) as error:
            raise _translated(error) from error

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """See `Store`."""
        try:
            self._client.put_object(
                Bucket=self._bucket, Key=self._full(key), Body=data, IfNoneMatch="*"
            )
        except ClientError as error:
            code = _code(error)
            if code in TAKEN:
                return False
            if code not in UNCONDITIONAL:
                raise _translated(error) from error
            self.put(key, data)
        except BotoCoreError as error:
            raise _translated(error) from error
        return True

    def get(self, key: str) -> bytes:
        """See `Store`."""
        try:
            reply = self._client.get_object(Bucket=self._bucket, Key=self._full(key))
            return reply["Body"].read()
        except (ClientError, BotoCoreError) as error:
            if isinstance(error, ClientError) and _code(error) in ABSENT:
                raise Missing(key) from error
            raise _translated(error) from error

    def list(self, prefix: str) -> list[str]:
        """See `Store`."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._full(prefix)
        )
        try:
            full = [item["Key"] for page in pages for item in page.get("Contents", [])]
        except (ClientError, BotoCoreError) as error:
            raise _translated(error) from error
        return [key.removeprefix(self._prefix).removeprefix("/") for key in full]

    def delete(self, key: str) -> None:
        """See `Store`."""
        try:
            self._client.delete_object(Bucket=self._bucket, Key=self._full(key))
        except (ClientError, BotoCoreError) as error:
            if not (isinstance(error, ClientError) and _code(error) in ABSENT):
                raise _translated(error) from error

    def _full(self, key: str) -> str:
        return f"{self._prefix}/{key}"


def _client() -> S3Client:
    """A client that puts the bucket in the path where the endpoint is not Amazon's: others seldom have a name per bucket."""
    session = boto3.session.Session()
    try:
        client = session.client("s3", config=SETTINGS)
        host = urlsplit(client.meta.endpoint_url).hostname or ""
        if host.endswith(("amazonaws.com", "amazonaws.com.cn")):
            return client
        return session.client("s3", config=SETTINGS.merge(Config(s3={"addressing_style": "path"})))
    except (BotoCoreError, ValueError) as error:
        raise Refused(str(error)) from error


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _translated(error: ClientError | BotoCoreError) -> StoreError:
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        is_passing = status >= 500 or _code(error) in PASSING
        return (Unreachable if is_passing else Refused)(str(error))
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return Refused(str(error))
    return Unreachable(str(error))

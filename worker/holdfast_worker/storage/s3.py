"""Objects in an S3 bucket, at Amazon or at anything that speaks like it. The only module that knows boto3 and obstore.

obstore carries the bytes: of all clients it was the fastest and the cheapest in processor time (see docs/decisions).
boto3 finds credentials, region and endpoint as people expect, and makes the small requests that carry a condition.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import boto3
import obstore
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    NoCredentialsError,
    PartialCredentialsError,
)
from obstore.auth.boto3 import Boto3CredentialProvider
from obstore.exceptions import BaseError
from obstore.store import S3Store as Bucket

from holdfast_worker.storage.base import Bytes, Missing, Refused, StoreError, Unreachable

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


STRETCH_BYTES: Final = 256 << 10
"""Received in one go: put together, looked at and copied while it is in a core's own cache. Four times as much costs a tenth more
of the processor, as it is not any more; a quarter is calls for nothing."""

SETTINGS: Final = Config(
    connect_timeout=5,
    read_timeout=60,
    # Our callers are patient. Between its own tries boto3 would draw from the generator that the training draws from.
    retries={"total_max_attempts": 1},
    # Checksums in trailers are unknown to many servers; every object is verified by its digest when it is read.
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)

CONNECT: Final = timedelta(seconds=5)
SILENCE: Final = timedelta(seconds=60)
"""For one request to be answered whole. Longer waits for a connection that is dead, shorter gives up on a slow link."""
CREDENTIALS_LAST: Final = timedelta(minutes=5)
"""How long credentials are used before boto3 is asked again, which renews those that expire."""

CARRIED: Final = (BaseError, FileNotFoundError)
"""What obstore raises; for what is not there, the exception of Python's own files."""
ABSENT: Final = frozenset({"NoSuchKey", "404", "NotFound"})
TAKEN: Final = frozenset({"PreconditionFailed", "412"})
UNCONDITIONAL: Final = frozenset({"NotImplemented", "501"})
"""How a server says that it does not know conditional writes."""
PASSING: Final = frozenset(
    {
        *("ConditionalRequestConflict", "OperationAborted"),
        *("RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests"),
        # Whoever gave the credentials gives new ones, which are asked for again and again.
        *("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestTimeTooSkewed"),
    }
)
"""Codes below 500 after which another try may succeed."""
PASSING_STATUSES: Final = frozenset({408, 409, 429})
"""The same for servers with words of their own: too slow, in conflict with another write, too much at once."""


class S3Store:
    """Objects under a prefix of a bucket. Credentials, region and endpoint are found as boto3 finds them."""

    lanes = 32
    is_far = True

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = prefix
        session = boto3.session.Session()
        self._client = _client(session)
        self._carrier = _carrier(session, self._client, bucket)

    def put(self, key: str, data: Bytes) -> None:
        """See `Store`."""
        try:
            obstore.put(self._carrier, self._full(key), data, use_multipart=False)
        except CARRIED as error:
            raise _carried(error) from error

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

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        """See `Store`."""
        if old is None:
            return self.put_if_absent(key, new)
        full = self._full(key)
        try:
            reply = self._client.get_object(Bucket=self._bucket, Key=full)
            if reply["Body"].read() != old:
                return False
            self._client.put_object(Bucket=self._bucket, Key=full, Body=new, IfMatch=reply["ETag"])
        except ClientError as error:
            code = _code(error)
            if code in TAKEN | ABSENT:
                return False
            if code not in UNCONDITIONAL:
                raise _translated(error) from error
            self.put(key, new)
        except BotoCoreError as error:
            raise _translated(error) from error
        return True

    def get(self, key: str) -> bytes:
        """See `Store`."""
        return b"".join(self.stream(key))

    def stream(self, key: str) -> Iterator[memoryview]:
        """See `Store`."""
        try:
            found = obstore.get(self._carrier, self._full(key))
            for stretch in found.stream(min_chunk_size=STRETCH_BYTES):
                yield memoryview(stretch)
        except CARRIED as error:
            if "<Code>NoSuchBucket<" not in str(error) and isinstance(error, FileNotFoundError):
                raise Missing(key) from error
            raise _carried(error) from error

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


def _client(session: boto3.session.Session) -> S3Client:
    """A client that puts the bucket in the path where the endpoint is not Amazon's: others seldom have a name per bucket."""
    try:
        client = session.client("s3", config=SETTINGS)
        if _is_amazon(client):
            return client
        return session.client("s3", config=SETTINGS.merge(Config(s3={"addressing_style": "path"})))
    except (BotoCoreError, ValueError) as error:
        raise Refused(str(error)) from error


def _carrier(session: boto3.session.Session, client: S3Client, bucket: str) -> Bucket:
    """What carries the bytes, with all that boto3 found."""
    endpoint = client.meta.endpoint_url
    server: dict[str, Any] = (
        # Amazon compares the checksum; other servers may not know the header.
        {"virtual_hosted_style_request": True, "checksum_algorithm": "CRC64NVME"}
        if _is_amazon(client)
        else {"virtual_hosted_style_request": False, "endpoint": endpoint}
    )
    try:
        return Bucket(
            bucket,
            credential_provider=Boto3CredentialProvider(session, ttl=CREDENTIALS_LAST),
            region=client.meta.region_name or "us-east-1",
            # The digest in the signature would cost more than all the rest; TLS and our own digests see to the bytes.
            unsigned_payload=True,
            **server,
            client_options={
                "allow_http": endpoint.startswith("http://"),
                "connect_timeout": CONNECT,
                "timeout": SILENCE,
                "pool_max_idle_per_host": str(S3Store.lanes),
            },
            retry_config={"max_retries": 0},
        )
    except (BotoCoreError, BaseError, ValueError) as error:
        raise Refused(str(error)) from error


def _is_amazon(client: S3Client) -> bool:
    host = urlsplit(client.meta.endpoint_url).hostname or ""
    return host.endswith(("amazonaws.com", "amazonaws.com.cn"))


def _code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _translated(error: ClientError | BotoCoreError) -> StoreError:
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        is_passing = status >= 500 or status in PASSING_STATUSES or _code(error) in PASSING
        return (Unreachable if is_passing else Refused)(str(error))
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return Refused(str(error))
    return Unreachable(str(error))


def _carried(error: Exception) -> StoreError:
    """What obstore says, in our words. All that it tells of a server's answer is in its text."""
    text = str(error)
    first = text.partition("\n")[0]
    code, message, status = (
        re.search(pattern, text)
        for pattern in (r"<Code>(\w+)</Code>", r"<Message>([^<]*)</Message>", r"status: (\d+)")
    )
    words = f"{first}: {code[1]}: {message[1] if message else ''}" if code else first
    number = int(status[1]) if status else 0
    is_final = 400 <= number < 500 and number not in PASSING_STATUSES
    is_final = is_final and not (code and code[1] in PASSING)
    return (Refused if is_final else Unreachable)(words)

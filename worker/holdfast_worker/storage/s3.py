"""Objects in an S3 bucket, at Amazon or a compatible server.

The only module that imports boto3.

obstore writes the data, and reads what `direct_reads` does not: it was the fastest client, with the lowest CPU time (see
docs/decisions). boto3 finds credentials, region and endpoint as users expect, and makes the small conditional requests.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import boto3
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

from holdfast_worker.protocol.object_stores import OWN_SERVER
from holdfast_worker.storage.base import (
    Bytes,
    ObjectNotFound,
    StoreError,
    StoreRefused,
    StoreUnreachable,
)
from holdfast_worker.storage.direct_reads import DirectReads
from holdfast_worker.storage.transfers import (
    MAX_CONCURRENCY,
    OBSTORE_ERRORS,
    put_object,
    stream_object,
)

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client


DEFAULT_REGION: Final = "us-east-1"
"""Region of buckets without a configured one, as for boto3."""

CLIENT_CONFIG: Final = Config(
    connect_timeout=5,
    read_timeout=60,
    # Callers retry. boto3's own retries would draw from the random generator that training uses.
    retries={"total_max_attempts": 1},
    # Many servers do not support checksums in trailers; every object is verified by its digest when read.
    request_checksum_calculation="when_required",
    response_checksum_validation="when_required",
)

SIGNED_CONFIG: Final = CLIENT_CONFIG.merge(Config(signature_version="s3v4"))
"""For URLs with signatures; boto3 would sign some of them as only old buckets accept it."""

CONNECT_TIMEOUT: Final = timedelta(seconds=5)
READ_TIMEOUT: Final = timedelta(seconds=60)
"""Time limit for one complete response. A higher value waits on dead connections; a lower
value fails on a slow link."""
CREDENTIALS_TTL: Final = timedelta(minutes=5)
"""How long credentials are cached before boto3 is asked for them again and renews expiring
ones."""

ABSENT: Final = frozenset({"NoSuchKey", "404", "NotFound"})
ALREADY_EXISTS: Final = frozenset({"PreconditionFailed", "412"})
UNCONDITIONAL: Final = frozenset({"NotImplemented", "501"})
"""Codes of servers that do not support conditional writes."""
TRANSIENT_CODES: Final = frozenset(
    {
        *("ConditionalRequestConflict", "OperationAborted"),
        *("RequestTimeout", "SlowDown", "Throttling", "ThrottlingException", "TooManyRequests"),
        # The provider issues new credentials, which are fetched again at each retry.
        *("ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestTimeTooSkewed"),
    }
)
"""Codes below 500 after which a retry may succeed."""
TRANSIENT_STATUSES: Final = frozenset({408, 409, 429})
"""Statuses below 500 after which a retry may succeed, for servers with other codes: timeout,
conflict, rate limit."""


class S3Store:
    """Objects under a prefix of a bucket. Credentials, region and endpoint come from boto3."""

    max_concurrency = MAX_CONCURRENCY
    is_remote = True

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = prefix
        session = boto3.session.Session()
        self._client = _client(session)
        # A request that is signed for another region fails, so the bucket is in this one.
        region = self._client.meta.region_name or DEFAULT_REGION
        self.place = f"aws/{region}" if _is_amazon(self._client) else OWN_SERVER
        self._bucket_store = _open_bucket(session, self._client, bucket)
        self._signer = _client(session, SIGNED_CONFIG)
        self._direct_reads = DirectReads(self._signed_url)

    def put(self, key: str, data: Bytes) -> None:
        """See `Store`."""
        try:
            put_object(self._bucket_store, self._full_key(key), data)
        except OBSTORE_ERRORS as error:
            raise _obstore_error(error) from error

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """See `Store`."""
        try:
            self._client.put_object(
                Bucket=self._bucket, Key=self._full_key(key), Body=data, IfNoneMatch="*"
            )
        except ClientError as error:
            code = _error_code(error)
            if code in ALREADY_EXISTS:
                return False
            if code not in UNCONDITIONAL:
                raise _to_store_error(error) from error
            self.put(key, data)
        except BotoCoreError as error:
            raise _to_store_error(error) from error
        return True

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        """See `Store`."""
        if old is None:
            return self.put_if_absent(key, new)
        full = self._full_key(key)
        try:
            reply = self._client.get_object(Bucket=self._bucket, Key=full)
            if reply["Body"].read() != old:
                return False
            self._client.put_object(Bucket=self._bucket, Key=full, Body=new, IfMatch=reply["ETag"])
        except ClientError as error:
            code = _error_code(error)
            if code in ALREADY_EXISTS | ABSENT:
                return False
            if code not in UNCONDITIONAL:
                raise _to_store_error(error) from error
            self.put(key, new)
        except BotoCoreError as error:
            raise _to_store_error(error) from error
        return True

    def get(self, key: str) -> bytes:
        """See `Store`."""
        return b"".join(self.stream(key))

    def stream(self, key: str, into: Iterable[memoryview] = ()) -> Iterator[memoryview]:
        """See `Store`."""
        if into and (direct := self._direct_reads.open(self._full_key(key))):
            yield from self._direct_reads.read(direct, into)
            return
        try:
            yield from stream_object(self._bucket_store, self._full_key(key), into)
        except OBSTORE_ERRORS as error:
            if "<Code>NoSuchBucket<" not in str(error) and isinstance(error, FileNotFoundError):
                raise ObjectNotFound(key) from error
            raise _obstore_error(error) from error

    def list(self, prefix: str) -> list[str]:
        """See `Store`."""
        pages = self._client.get_paginator("list_objects_v2").paginate(
            Bucket=self._bucket, Prefix=self._full_key(prefix)
        )
        try:
            full = [item["Key"] for page in pages for item in page.get("Contents", [])]
        except (ClientError, BotoCoreError) as error:
            raise _to_store_error(error) from error
        return [key.removeprefix(self._prefix).removeprefix("/") for key in full]

    def delete(self, key: str) -> None:
        """See `Store`."""
        try:
            self._client.delete_object(Bucket=self._bucket, Key=self._full_key(key))
        except (ClientError, BotoCoreError) as error:
            if not (isinstance(error, ClientError) and _error_code(error) in ABSENT):
                raise _to_store_error(error) from error

    def _signed_url(self, full_key: str) -> str | None:
        """A URL that reads an object; None without credentials."""
        try:
            return self._signer.generate_presigned_url(
                "get_object", Params={"Bucket": self._bucket, "Key": full_key}
            )
        except (BotoCoreError, ClientError):
            return None

    def _full_key(self, key: str) -> str:
        return f"{self._prefix}/{key}"


def _client(session: boto3.session.Session, config: Config = CLIENT_CONFIG) -> S3Client:
    """Create a client.

    Other servers get path-style URLs: they rarely have a host name per bucket.
    """
    try:
        client = session.client("s3", config=config)
        if _is_amazon(client):
            return client
        return session.client("s3", config=config.merge(Config(s3={"addressing_style": "path"})))
    except (BotoCoreError, ValueError) as error:
        raise StoreRefused(str(error)) from error


def _open_bucket(session: boto3.session.Session, client: S3Client, bucket: str) -> Bucket:
    """Open the bucket for data transfers, with the configuration that boto3 found."""
    endpoint = client.meta.endpoint_url
    server: dict[str, Any] = (
        # Amazon verifies the checksum; other servers may not support the header.
        {"virtual_hosted_style_request": True, "checksum_algorithm": "CRC64NVME"}
        if _is_amazon(client)
        else {"virtual_hosted_style_request": False, "endpoint": endpoint}
    )
    try:
        return Bucket(
            bucket,
            credential_provider=Boto3CredentialProvider(session, ttl=CREDENTIALS_TTL),
            region=client.meta.region_name or DEFAULT_REGION,
            # Signing the payload digest would dominate the cost; TLS and the checkpoint digests protect the data.
            unsigned_payload=True,
            **server,
            client_options={
                "allow_http": endpoint.startswith("http://"),
                "connect_timeout": CONNECT_TIMEOUT,
                "timeout": READ_TIMEOUT,
                "pool_max_idle_per_host": str(MAX_CONCURRENCY),
            },
            retry_config={"max_retries": 0},
        )
    except (BotoCoreError, BaseError, ValueError) as error:
        raise StoreRefused(str(error)) from error


def _is_amazon(client: S3Client) -> bool:
    host = urlsplit(client.meta.endpoint_url).hostname or ""
    return host.endswith(("amazonaws.com", "amazonaws.com.cn"))


def _error_code(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def _to_store_error(error: ClientError | BotoCoreError) -> StoreError:
    if isinstance(error, ClientError):
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        is_passing = (
            status >= 500 or status in TRANSIENT_STATUSES or _error_code(error) in TRANSIENT_CODES
        )
        return (StoreUnreachable if is_passing else StoreRefused)(str(error))
    if isinstance(error, NoCredentialsError | PartialCredentialsError):
        return StoreRefused(str(error))
    return StoreUnreachable(str(error))


def _obstore_error(error: Exception) -> StoreError:
    """Convert an obstore error, which describes the server's response only in its text."""
    text = str(error)
    first = text.partition("\n")[0]
    code, message, status = (
        re.search(pattern, text)
        for pattern in (r"<Code>(\w+)</Code>", r"<Message>([^<]*)</Message>", r"status: (\d+)")
    )
    summary = f"{first}: {code[1]}: {message[1] if message else ''}" if code else first
    number = int(status[1]) if status else 0
    is_final = 400 <= number < 500 and number not in TRANSIENT_STATUSES
    is_final = is_final and not (code and code[1] in TRANSIENT_CODES)
    return (StoreRefused if is_final else StoreUnreachable)(summary)

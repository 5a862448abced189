"""Objects in a bucket of Google Cloud Storage or a container of Azure Blob Storage.

obstore makes all requests, with a condition where a write must not replace an object.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, PreconditionError
from obstore.store import AzureStore, GCSStore, ObjectStore

from holdfast_worker.protocol.object_stores import (
    GOOGLE,
    CloudStoreConfig,
    StoreNotConfigured,
    cloud_store,
    failure_of,
    is_missing_bucket,
)
from holdfast_worker.storage.base import (
    Bytes,
    ObjectNotFound,
    StoreError,
    StoreRefused,
    StoreUnreachable,
)
from holdfast_worker.storage.transfers import (
    MAX_CONCURRENCY,
    OBSTORE_ERRORS,
    put_object,
    stream_object,
)

if TYPE_CHECKING:
    from obstore import PutMode


CONFLICTS: Final = frozenset({"", "PreconditionFailed", "BlobAlreadyExists", "ConditionNotMet"})
"""Error codes that mean that the object exists or has changed; with others obstore's exception
says so although it was a policy, for example."""


def open_cloud_store(url: str, job: str, env: Mapping[str, str]) -> CloudStore:
    """Open the part of a bucket or container that belongs to one job.

    Raises:
        StoreRefused: a variable is missing or has an invalid value, or credentials cannot be read.
    """
    try:
        config = cloud_store(url, env, job)
    except StoreNotConfigured as error:
        raise StoreRefused(str(error)) from error
    try:
        return CloudStore(config, _open_bucket(config))
    except (BaseError, ValueError) as error:
        raise StoreRefused(failure_of(error, config).message) from None


class CloudStore:
    """Objects under a prefix of a bucket or container."""

    max_concurrency = MAX_CONCURRENCY
    is_remote = True

    def __init__(self, config: CloudStoreConfig, bucket: ObjectStore) -> None:
        self._config = config
        self._bucket = bucket
        self.place = config.place

    def put(self, key: str, data: Bytes) -> None:
        """See `Store`."""
        try:
            put_object(self._bucket, self._config.key(key), data)
        except OBSTORE_ERRORS as error:
            raise self._store_error(error) from None

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """See `Store`."""
        return self._put_if(key, data, "create")

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        """See `Store`. Google compares the generation, Azure the ETag of what was read."""
        if old is None:
            return self.put_if_absent(key, new)
        try:
            found = obstore.get(self._bucket, self._config.key(key))
            if bytes(found.bytes()) != old:
                return False
        except OBSTORE_ERRORS as error:
            if _is_missing(error):
                return False
            raise self._store_error(error) from None
        version: Any = {name: found.meta[name] for name in ("e_tag", "version") if found.meta[name]}
        return self._put_if(key, new, version)

    def get(self, key: str) -> bytes:
        """See `Store`."""
        return b"".join(self.stream(key))

    def stream(self, key: str, into: Iterable[memoryview] = ()) -> Iterator[memoryview]:
        """See `Store`."""
        try:
            yield from stream_object(self._bucket, self._config.key(key), into)
        except OBSTORE_ERRORS as error:
            if _is_missing(error):
                raise ObjectNotFound(key) from error
            raise self._store_error(error) from None

    def list(self, prefix: str) -> list[str]:
        """See `Store`. obstore lists whole directories."""
        above = self._config.key(prefix.rpartition("/")[0])
        try:
            found = [
                item["path"] for page in obstore.list(self._bucket, above or None) for item in page
            ]
        except OBSTORE_ERRORS as error:
            raise self._store_error(error) from None
        own = self._config.key("")
        keys = (key.removeprefix(own).removeprefix("/") for key in found)
        return [key for key in keys if key.startswith(prefix)]

    def delete(self, key: str) -> None:
        """See `Store`."""
        try:
            obstore.delete(self._bucket, self._config.key(key))
        except OBSTORE_ERRORS as error:
            if not _is_missing(error):
                raise self._store_error(error) from None

    def _put_if(self, key: str, data: bytes, mode: PutMode) -> bool:
        """Write an object under a condition; return whether it held."""
        try:
            obstore.put(self._bucket, self._config.key(key), data, mode=mode, use_multipart=False)
        except (AlreadyExistsError, PreconditionError) as error:
            if failure_of(error, self._config).code not in CONFLICTS:
                raise self._store_error(error) from None
            return False
        except OBSTORE_ERRORS as error:
            if mode != "create" and _is_missing(error):
                return False
            raise self._store_error(error) from None
        return True

    def _store_error(self, error: Exception) -> StoreError:
        """Convert an error; obstore's own text may contain a signature, so it is not its cause."""
        failure = failure_of(error, self._config)
        is_final = failure.is_final or is_missing_bucket(error)
        return (StoreRefused if is_final else StoreUnreachable)(failure.message)


def _open_bucket(config: CloudStoreConfig) -> ObjectStore:
    more: dict[str, Any] = {
        "config": dict(config.options),
        "client_options": {
            **config.client_options,
            "pool_max_idle_per_host": str(MAX_CONCURRENCY),
        },
        "retry_config": {"max_retries": 0},  # Callers retry.
    }
    kind = GCSStore if config.scheme == GOOGLE else AzureStore
    return kind(config.bucket, **more)


def _is_missing(error: Exception) -> bool:
    return isinstance(error, FileNotFoundError) and not is_missing_bucket(error)

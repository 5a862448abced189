"""Checkpoint stores: where objects are kept by key. A directory here, S3 behind its own door."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast_worker.storage.base import Refused, Store
from holdfast_worker.storage.directory import DirectoryStore


def open_store(url: str, job: str) -> Store:
    """The part of a store that belongs to one job.

    Raises:
        Refused: the address is not one of a store.
    """
    parts = urlsplit(url)
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return DirectoryStore(Path(unquote(parts.path)) / job)
    if parts.scheme == "s3" and parts.netloc:
        from holdfast_worker.storage.s3 import S3Store  # noqa: PLC0415 - boto3 only where a bucket is used

        prefix = "/".join(part for part in (*parts.path.split("/"), job) if part)
        return S3Store(parts.netloc, prefix)
    raise Refused("the address must be s3://bucket/prefix or file:///path")


def open_place(url: str) -> Store:
    """The same from one address, `STORE/JOB`.

    Raises:
        Refused: the address is not one of a store.
    """
    store, _, job = url.rstrip("/").rpartition("/")
    return open_store(store, job)

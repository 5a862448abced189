"""The objects of the fake S3, by bucket and key."""

from __future__ import annotations

import bisect
import dataclasses
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from fake_s3.errors import NotModified, Refusal
from fake_s3.memory import Blob

LAST: Final = "\U0010ffff"
"""Sorts after every key with the same prefix."""


@dataclass(frozen=True, kw_only=True)
class StoredObject:
    """An object, with its metadata."""

    key: str
    blob: Blob
    etag: str
    checksums: Mapping[str, str] = field(default_factory=dict)
    """By header."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Content type and the client's own metadata."""
    generation: int = 0
    """Different for every write, as of Google and Azure."""
    modified_s: int = 0
    listed_from_s: float = 0.0
    """Time of the monotonic clock before which listings omit the object."""


@dataclass(frozen=True, kw_only=True)
class Condition:
    """Preconditions of a request; empty for none."""

    if_match: str = ""
    if_none_match: str = ""
    if_generation: str = ""
    """Of Google: the generation that is replaced; 0 for a new object."""

    @classmethod
    def of(cls, headers: Mapping[str, str]) -> Condition:
        """The condition in the headers of a request."""
        return cls(
            if_match=headers.get("if-match", ""),
            if_none_match=headers.get("if-none-match", ""),
            if_generation=headers.get("x-goog-if-generation-match", ""),
        )

    def check_write(self, item: StoredObject | None) -> None:
        """Return if a write is allowed over the existing `item`.

        Raises:
            Refusal: The condition does not hold.
        """
        if self.if_none_match and self.if_none_match != "*":
            raise Refusal("NotImplemented", "If-None-Match of a write knows * alone.")
        if self.if_none_match and item is not None:
            raise Refusal("PreconditionFailed", "The key exists.")
        if self.if_match and item is None:
            raise Refusal("NoSuchKey")
        if self.if_match and item and not _names(self.if_match, item.etag):
            raise Refusal("PreconditionFailed", f"The ETag is {item.etag}.")
        generation = str(item.generation) if item else "0"
        if self.if_generation and self.if_generation != generation:
            raise Refusal("PreconditionFailed", f"The generation is {generation}.")

    def check_read(self, item: StoredObject) -> None:
        """Return if a read of `item` is allowed.

        Raises:
            Refusal: The object is a different one.
            NotModified: The client already has the object.
        """
        if self.if_match and not _names(self.if_match, item.etag):
            raise Refusal("PreconditionFailed", f"The ETag is {item.etag}.")
        if self.if_none_match and _names(self.if_none_match, item.etag):
            raise NotModified


NO_CONDITION: Final = Condition()


def _names(tags: str, etag: str) -> bool:
    return tags == "*" or etag.strip('"') in {tag.strip().strip('"') for tag in tags.split(",")}


@dataclass(frozen=True)
class Page:
    """One page of a listing."""

    items: list[StoredObject]
    prefixes: list[str]
    resume_after: str | None
    """Start of the next page; None for the last page."""


class Bucket:
    """Objects by key, and the sorted keys."""

    def __init__(self) -> None:
        self.items: dict[str, StoredObject] = {}
        self._keys: list[str] = []

    def put(self, item: StoredObject) -> None:
        if item.key not in self.items:
            bisect.insort(self._keys, item.key)
        self.items[item.key] = item

    def remove(self, key: str) -> None:
        if self.items.pop(key, None) is not None:
            del self._keys[bisect.bisect_left(self._keys, key)]

    def page(self, prefix: str, delimiter: str, after: str, limit: int) -> Page:
        now_s = time.monotonic()
        items: list[StoredObject] = []
        prefixes: list[str] = []
        last = after
        at = bisect.bisect_left(self._keys, prefix)
        if after:
            at = max(at, bisect.bisect_right(self._keys, after))
        while at < len(self._keys) and (key := self._keys[at]).startswith(prefix):
            if self.items[key].listed_from_s > now_s:
                at += 1
                continue
            if len(items) + len(prefixes) == limit:
                return Page(items, prefixes, last)
            cut = key.find(delimiter, len(prefix)) if delimiter else -1
            if cut < 0:
                items.append(self.items[key])
                last, at = key, at + 1
            else:
                prefixes.append(key[: cut + len(delimiter)])
                last = prefixes[-1] + LAST
                at = bisect.bisect_right(self._keys, last)
        return Page(items, prefixes, None)


class BucketStore:
    """All buckets. A bucket is created by the first request that names it."""

    def __init__(self) -> None:
        self._buckets: dict[str, Bucket] = {}
        self._lock = threading.Lock()

    def buckets(self) -> list[str]:
        """Names of the buckets."""
        with self._lock:
            return sorted(self._buckets)

    def make(self, bucket: str) -> None:
        """Create a bucket."""
        with self._lock:
            self._buckets.setdefault(bucket, Bucket())

    def drop(self, bucket: str) -> None:
        """Delete a bucket with its objects."""
        with self._lock:
            self._buckets.pop(bucket, None)

    def clear(self) -> None:
        """Delete all buckets."""
        with self._lock:
            self._buckets.clear()

    def put(self, bucket: str, item: StoredObject, condition: Condition = NO_CONDITION) -> None:
        """Store `item` under its key if `condition` holds."""
        with self._lock:
            found = self._buckets.setdefault(bucket, Bucket())
            old = found.items.get(item.key)
            condition.check_write(old)
            if old is not None:  # A delayed listing continues to show listed keys.
                item = dataclasses.replace(item, listed_from_s=old.listed_from_s)
            found.put(item)

    def get(self, bucket: str, key: str) -> StoredObject:
        """Return the object under a key.

        Raises:
            Refusal: The key does not exist.
        """
        with self._lock:
            found = self._buckets.get(bucket)
            item = found.items.get(key) if found else None
        if item is None:
            raise Refusal("NoSuchKey")
        return item

    def has(self, bucket: str, key: str) -> bool:
        """Whether an object exists."""
        with self._lock:
            return bucket in self._buckets and key in self._buckets[bucket].items

    def remove(self, bucket: str, key: str, condition: Condition = NO_CONDITION) -> None:
        """Delete the object under a key."""
        with self._lock:
            if found := self._buckets.get(bucket):
                if condition.if_match:
                    condition.check_write(found.items.get(key))
                found.remove(key)

    def replace(self, bucket: str, item: StoredObject) -> None:
        """Store `item` under its key without conditions or listing delay."""
        with self._lock:
            self._buckets.setdefault(bucket, Bucket()).put(item)

    def keys(self, bucket: str, prefix: str) -> list[str]:
        """All keys with a prefix, including those that listings do not show yet."""
        with self._lock:
            found = self._buckets.get(bucket) or Bucket()
            return sorted(key for key in found.items if key.startswith(prefix))

    def page(self, bucket: str, prefix: str, delimiter: str = "", after: str = "", limit: int = 0) -> Page:  # fmt: skip
        """One page of the objects whose keys begin with `prefix`; `limit` 0 for all of them."""
        with self._lock:
            found = self._buckets.get(bucket) or Bucket()
            return found.page(prefix, delimiter, after, limit or len(found.items) + 1)

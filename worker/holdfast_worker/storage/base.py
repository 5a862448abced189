"""The protocol of checkpoint stores, which keep objects by key, and their errors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol


class StoreError(Exception):
    """A store operation failed."""


class ObjectNotFound(StoreError):
    """The object does not exist."""


class StoreRefused(StoreError):
    """A permanent failure: wrong credentials or permissions, a missing bucket or a full disk."""


class StoreUnreachable(StoreError):
    """A transient failure: the store did not respond or asked for a later retry."""


class ObjectUnreadable(StoreUnreachable):
    """An object exists but cannot be read; other objects may be readable."""


Bytes = bytes | memoryview


class Store(Protocol):
    """Objects by key: relative paths with slashes.

    Methods may raise `StoreRefused` and `StoreUnreachable`.
    """

    max_concurrency: int
    """Concurrent transfers at which the store is fastest."""
    is_remote: bool
    """Whether a rank gets bytes faster from the rank that read them than from the store."""

    def put(self, key: str, data: Bytes) -> None:
        """Write an object atomically; it is durable when this returns."""

    def put_if_absent(self, key: str, data: bytes) -> bool:
        """Write an object unless the key exists; return whether it was written.

        A store without conditional writes overwrites.
        """

    def swap(self, key: str, old: bytes | None, new: bytes) -> bool:
        """Replace an object if it equals `old` (None: is absent); return whether it was replaced.

        A store without conditional writes compares a preceding read.
        """

    def get(self, key: str) -> bytes:
        """Read an object.

        Raises:
            ObjectNotFound: the key does not exist.
        """

    def stream(self, key: str, into: Iterable[memoryview] = ()) -> Iterator[memoryview]:
        """Read an object in chunks of at most a megabyte, each valid until the next one is read.

        The first bytes go into these views, in this order; a chunk is the part of one that was read.

        Raises:
            ObjectNotFound: the key does not exist.
        """

    def list(self, prefix: str) -> list[str]:
        """Return the keys that begin with `prefix`, unordered."""

    def delete(self, key: str) -> None:
        """Delete an object; a missing key is not an error."""


class PlacedStore(Store, Protocol):
    """A store that knows where its objects are."""

    place: str
    """`FILES`, `OWN_SERVER`, a cloud, or a cloud and its region such as aws/us-east-1."""


def cut_views(into: Iterable[memoryview], most: int) -> Iterator[memoryview]:
    """Cut views into pieces of at most `most` bytes; then yield the same scratch memory forever."""
    for view in into:
        for at in range(0, len(view), most):
            yield view[at : at + most]
    rest = memoryview(bytearray(most))
    while True:
        yield rest


def copy_chunks(
    chunks: Iterable[memoryview], into: Iterable[memoryview], most: int
) -> Iterator[memoryview]:
    """Copy chunks that a client library has received, as `Store.stream` returns them."""
    views = cut_views(into, most)
    view = next(views)
    for chunk in chunks:
        while chunk:
            size = min(len(view), len(chunk))
            view[:size] = chunk[:size]
            yield view[:size]
            view, chunk = view[size:] or next(views), chunk[size:]  # noqa: PLW2901 - the rest of it

"""Transfers of objects by obstore, for all object stores.

obstore was the fastest client, with the lowest CPU time (see docs/decisions).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import obstore
from obstore.exceptions import BaseError
from obstore.store import ObjectStore

from holdfast_worker.storage.base import Bytes, copy_chunks

READ_CHUNK_BYTES: Final = 256 << 10
"""Size of a received chunk, which is assembled, verified and copied while it is in a core's
cache. Four times the size exceeds the cache and costs a tenth more CPU; a quarter adds calls."""

MAX_CONCURRENCY: Final = 32
"""Concurrent transfers. A lower value leaves a fast network idle; a higher value gains nothing
and holds more memory."""

OBSTORE_ERRORS: Final = (BaseError, FileNotFoundError)
"""Exceptions of obstore, which raises Python's `FileNotFoundError` for missing objects."""


def put_object(bucket: ObjectStore, full_key: str, data: Bytes) -> None:
    """Write an object in one request, which is atomic and leaves no hidden parts."""
    obstore.put(bucket, full_key, data, use_multipart=False)


def stream_object(
    bucket: ObjectStore, full_key: str, into: Iterable[memoryview]
) -> Iterator[memoryview]:
    """Read an object in chunks, into given views if there are any."""
    chunks = obstore.get(bucket, full_key).stream(min_chunk_size=READ_CHUNK_BYTES)
    received = (memoryview(chunk) for chunk in chunks)
    yield from copy_chunks(received, into, READ_CHUNK_BYTES) if into else received

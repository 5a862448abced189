"""CRC64-NVME of memory, and of memory that was looked at in pieces.

The checksum that S3 computes itself, so that a store that checks can check the same number. It tells a changed object
from the one that was written, at more than ten gigabytes a second; it is no protection against somebody who forges one.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from awscrt.checksums import combine_crc64nvme, crc64nvme

STRIDE: Final = 1 << 20
"""Bytes looked at in one go. Longer holds up other threads of the interpreter, shorter is calls for nothing."""


def crc(data: memoryview, before: int = 0) -> int:
    """The checksum of `data`, or of what had the checksum `before` with `data` behind it."""
    for at in range(0, len(data), STRIDE):
        before = crc64nvme(data[at : at + STRIDE], before)
    return before


def join(parts: Iterable[tuple[int, int]]) -> int:
    """The checksum of the whole, from the (checksum, size in bytes) of parts that lie behind each other."""
    whole = 0
    for part, size in parts:
        whole = combine_crc64nvme(whole, part, size)
    return whole

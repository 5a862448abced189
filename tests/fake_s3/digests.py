"""Digests of bodies: the ETag, and the checksums that clients send."""

from __future__ import annotations

import base64
import hashlib
import importlib
import zlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from fake_s3.errors import Refusal

PREFIX: Final = "x-amz-checksum-"
OWN: Final = f"{PREFIX}crc64nvme"
"""The checksum that S3 computes of every object, also if the client sends none."""

Digest = Callable[[Iterable[memoryview]], bytes]


def _crc(function: Callable[[memoryview, int], int], size_bytes: int) -> Digest:
    def digest(views: Iterable[memoryview]) -> bytes:
        value = 0
        for view in views:
            value = function(view, value)
        return value.to_bytes(size_bytes, "big")

    return digest


def _hash(name: str) -> Digest:
    def digest(views: Iterable[memoryview]) -> bytes:
        state = hashlib.new(name, usedforsecurity=False)
        for view in views:
            state.update(view)
        return state.digest()

    return digest


def _supported() -> dict[str, Digest]:
    known = {
        f"{PREFIX}crc32": _crc(zlib.crc32, 4),
        f"{PREFIX}sha1": _hash("sha1"),
        f"{PREFIX}sha256": _hash("sha256"),
    }
    try:
        crt: Any = importlib.import_module("awscrt.checksums")
    except ImportError:
        return known  # In pure Python a gigabyte would take minutes.
    return known | {OWN: _crc(crt.crc64nvme, 8), f"{PREFIX}crc32c": _crc(crt.crc32c, 4)}


KNOWN: Final = _supported()
"""Checksums that can be computed here, by header. Others are accepted unchecked."""
MD5: Final = _hash("md5")


def etag(views: list[memoryview], kept: Mapping[str, str], *, is_md5: bool) -> str:
    """The quoted ETag of a body with the checksums `kept`: MD5 as in S3, or a CRC.

    A CRC takes a thirtieth of the time.
    """
    if is_md5:
        return f'"{MD5(views).hex()}"'
    if OWN in KNOWN:
        return f'"{base64.b64decode(kept[OWN]).hex()}"'
    return f'"{KNOWN[f"{PREFIX}crc32"](views).hex()}{sum(map(len, views)):08x}"'


def verified(views: list[memoryview], headers: Mapping[str, str]) -> dict[str, str]:
    """Checksums to store with a body, by header: S3's own, and those that the client sent.

    Raises:
        Refusal: A checksum that the client sent does not match the body.
    """
    if sent := headers.get("content-md5"):
        _compare("Content-MD5", sent, base64.b64encode(MD5(views)).decode())
    kept = {OWN: base64.b64encode(KNOWN[OWN](views)).decode()} if OWN in KNOWN else {}
    for name, value in headers.items():
        if not name.startswith(PREFIX) or name in {f"{PREFIX}algorithm", f"{PREFIX}type", f"{PREFIX}mode"}:  # fmt: skip
            continue
        if name in KNOWN:
            computed = kept.get(name) or base64.b64encode(KNOWN[name](views)).decode()
            _compare(name, value, computed)
        kept[name] = value
    return kept


def _compare(name: str, sent: str, computed: str) -> None:
    if sent != computed:
        raise Refusal("BadDigest", f"{name} is {sent} by you, and {computed} by us.")

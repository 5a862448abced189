"""Multipart uploads in progress."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field

from fake_s3.errors import Refusal
from fake_s3.memory import Blob


@dataclass(frozen=True)
class Part:
    """One part of an upload."""

    number: int
    blob: Blob
    etag: str


@dataclass(frozen=True)
class Upload:
    """One upload and its parts so far."""

    upload_id: str
    bucket: str
    key: str
    headers: dict[str, str]
    begun_s: int
    parts: dict[int, Part] = field(default_factory=dict)


class Uploads:
    """All uploads, by id."""

    def __init__(self) -> None:
        self._uploads: dict[str, Upload] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def begin(self, bucket: str, key: str, headers: dict[str, str], now_s: int) -> Upload:
        """Start an upload without parts."""
        upload = Upload(f"upload-{next(self._numbers)}", bucket, key, headers, now_s)
        with self._lock:
            self._uploads[upload.upload_id] = upload
        return upload

    def find(self, upload_id: str, bucket: str, key: str) -> Upload:
        """Return the upload with this id.

        Raises:
            Refusal: The key has no such upload.
        """
        with self._lock:
            upload = self._uploads.get(upload_id)
        if upload is None or (upload.bucket, upload.key) != (bucket, key):
            raise Refusal("NoSuchUpload")
        return upload

    def end(self, upload: Upload) -> None:
        """Remove an upload and its parts."""
        with self._lock:
            if self._uploads.pop(upload.upload_id, None) is None:
                raise Refusal("NoSuchUpload")

    def clear(self) -> None:
        """Remove all uploads."""
        with self._lock:
            self._uploads.clear()

    def all(self, bucket: str, prefix: str) -> list[Upload]:
        """Uploads under a prefix, by key."""
        with self._lock:
            found = [u for u in self._uploads.values() if u.bucket == bucket]
        found.sort(key=lambda upload: (upload.key, upload.begun_s))
        return [upload for upload in found if upload.key.startswith(prefix)]


def select_parts(
    upload: Upload, child_text: list[tuple[int, str]], smallest_bytes: int
) -> list[Part]:
    """The parts that a client lists by number and ETag.

    Raises:
        Refusal: The parts do not form a valid object.
    """
    numbers = [number for number, _ in child_text]
    if not numbers:
        raise Refusal("MalformedXML", "No part is listed.")
    if sorted(set(numbers)) != numbers:
        raise Refusal("InvalidPartOrder")
    parts = []
    for number, etag in child_text:
        part = upload.parts.get(number)
        if part is None or part.etag.strip('"') != etag.strip('"'):
            raise Refusal("InvalidPart", f"Part {number} is not here, or is another.")
        parts.append(part)
    if any(len(part.blob) < smallest_bytes for part in parts[:-1]):
        raise Refusal("EntityTooSmall")
    return parts

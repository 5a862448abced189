"""The report archives that a job's workers left in a store, by sender."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from holdfast_worker.protocol.checkpoint_keys import INBOX
from holdfast_worker.protocol.report_archive import MAX_ARCHIVE_BYTES, ArchiveKey, ReportArchive

from holdfast.ports import CheckpointBucket


@dataclass(frozen=True, slots=True)
class StoredArchive:
    """A report archive in a store."""

    archive_key: ArchiveKey
    at: datetime
    """Time of its upload, by this machine's clock."""
    size_bytes: int

    def read(self, bucket: CheckpointBucket) -> ReportArchive | None:
        """The content of the archive; None if it was deleted.

        Raises:
            ValueError: it is damaged; the message describes how.
            CheckpointStoreUnreachable, CheckpointStoreRefused: the content is unknown.
        """
        if self.size_bytes > MAX_ARCHIVE_BYTES:
            raise ValueError(f"it has {self.size_bytes} bytes, and {MAX_ARCHIVE_BYTES} are allowed")
        data = bucket.read(self.archive_key.path)
        return None if data is None else ReportArchive.parse(self.archive_key, data)


@dataclass(frozen=True, slots=True)
class SenderArchives:
    """The archives of one sender, in the order of its reports."""

    sender: str
    archives: Sequence[StoredArchive]

    @property
    def attempt(self) -> int | None:
        """The attempt that the launcher assigned to the sender; None: the service assigns one."""
        return self.archives[0].archive_key.attempt

    @property
    def since(self) -> datetime:
        """Time of the first upload."""
        return min(archive.at for archive in self.archives)


def list_archives(bucket: CheckpointBucket, now: datetime) -> list[SenderArchives]:
    """The report archives of a job, by sender in the order of the first upload.

    Raises:
        CheckpointStoreUnreachable, CheckpointStoreRefused: they cannot be listed.
    """
    listing = bucket.list_objects(INBOX)
    # The timestamps are by the store's clock.
    ahead = listing.listed_at - now
    by_sender: dict[str, list[StoredArchive]] = {}
    for stored in listing.objects:
        if label := ArchiveKey.of_key(stored.key):
            posted = StoredArchive(label, stored.written_at - ahead, stored.size_bytes)
            by_sender.setdefault(label.sender, []).append(posted)
    found = [
        SenderArchives(sender, sorted(some, key=_report_range))
        for sender, some in by_sender.items()
    ]
    return sorted(found, key=lambda item: (item.attempt or 0, item.since))


def _report_range(posted: StoredArchive) -> tuple[int, int]:
    return posted.archive_key.first, posted.archive_key.last

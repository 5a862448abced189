"""The state of a fake S3, without the network."""

from __future__ import annotations

import calendar
import itertools
import time
from dataclasses import dataclass

from fake_s3.buckets import BucketStore
from fake_s3.counters import Counters
from fake_s3.faults import Faults
from fake_s3.memory import Pool
from fake_s3.pace import SharedLink
from fake_s3.uploads import Uploads


@dataclass
class Settings:
    """Settings of a server; each can be changed while it runs."""

    conditional: bool = True
    """Whether `If-Match` and `If-None-Match` of writes apply; rclone and others ignore them."""
    matching: bool = True
    """Whether `If-Match` of writes applies; S3 added it a year after `If-None-Match`."""
    page_keys: int = 1000
    """Keys per page of a listing."""
    md5: bool = False
    """Whether ETags are MD5 as in S3, at 1 CPU second per gigabyte."""
    null: bool = False
    """Whether bodies are discarded; reads then return zeros of the same length."""
    seed: int = 0
    skew_s: int = 0
    """Offset of the server's clock, in `Date` and in `Last-Modified` of later writes."""
    smallest_part_bytes: int = 5 << 20
    """Minimum size of all parts of an upload except the last one."""


class ServerState:
    """Settings, objects, uploads, faults and counters of one server."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pool = Pool()
        self.objects = BucketStore()
        self.uploads = Uploads()
        self.faults = Faults()
        self.shared_link = SharedLink()
        self.counters = Counters()
        self._serials = itertools.count(1)

    def now_s(self) -> int:
        """The time of the server's clock in whole seconds, as in S3."""
        return calendar.timegm(time.gmtime()) + self.settings.skew_s

    def serial(self) -> int:
        """The next serial number."""
        return next(self._serials)

    def clear(self) -> None:
        """Delete all objects and uploads. Their memory is kept for reuse."""
        self.objects.clear()
        self.uploads.clear()

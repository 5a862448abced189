"""All that one stand-in has and does, but for the network."""

from __future__ import annotations

import calendar
import itertools
import time
from dataclasses import dataclass

from fake_s3.buckets import BucketStore
from fake_s3.counters import Counters
from fake_s3.faults import Faults
from fake_s3.memory import Pool
from fake_s3.pace import Line
from fake_s3.uploads import Uploads


@dataclass
class Settings:
    """How a stand-in is; each may be changed while it runs."""

    conditional: bool = True
    """Whether `If-Match` and `If-None-Match` of writes are obeyed. rclone and some others ignore them silently."""
    matching: bool = True
    """Whether `If-Match` of writes is among the conditions that are obeyed: it came a year later than `If-None-Match`."""
    page_keys: int = 1000
    """How many keys a list shows at once."""
    md5: bool = False
    """Whether ETags are MD5, as at S3, at 1 CPU second for each gigabyte."""
    null: bool = False
    """Whether bodies are counted and thrown away; then zeros of the same length are read."""
    seed: int = 0
    skew_s: int = 0
    """How far the clock of the stand-in is ahead: in `Date`, and in `Last-Modified` of what is written from now on."""
    smallest_part_bytes: int = 5 << 20
    """Of all parts of an upload but the last one."""


class ServerState:
    """One stand-in."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pool = Pool()
        self.shelf = BucketStore()
        self.uploads = Uploads()
        self.faults = Faults()
        self.line = Line()
        self.tally = Counters()
        self._serials = itertools.count(1)

    def now_s(self) -> int:
        """The time by its own clock, in whole seconds as S3 tells it."""
        return calendar.timegm(time.gmtime()) + self.settings.skew_s

    def serial(self) -> int:
        """A number that is given out once."""
        return next(self._serials)

    def clear(self) -> None:
        """Forget all objects and uploads. Their memory is kept for the next ones."""
        self.shelf.clear()
        self.uploads.clear()

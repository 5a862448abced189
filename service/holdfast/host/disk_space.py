"""Room on the disks that the service writes to: without it nothing is recorded, and the service is not ready."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Final

LEAST_BYTES: Final = 16 * 1024 * 1024
"""Room below which a disk counts as full. A lower value may be less than one group of reports with its journal; a higher value
calls a small disk full that is not."""


def trouble(folders: Iterable[Path], least_bytes: int = LEAST_BYTES) -> str | None:
    """Why nothing can be written in one of the folders; None: it can."""
    for folder in folders:
        try:
            found = os.statvfs(folder)
        except OSError as error:
            return f"the folder {folder} cannot be read ({error.strerror}); mount it again"
        if found.f_flag & os.ST_RDONLY:
            return f"the disk of {folder} is mounted read-only; mount it for writing"
        if (room_bytes := found.f_bavail * found.f_frsize) < least_bytes:
            return f"the disk of {folder} is full: {room_bytes} bytes are left; make room"
    return None

"""An echo: what a rank writes to its log appears in the output of its node too."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import BinaryIO


class Echo:
    """The growth of a file, from now on, copied to a stream."""

    def __init__(self, file: Path, stream: BinaryIO) -> None:
        self._file = file
        self._stream = stream
        self._copied = file.stat().st_size if file.exists() else 0

    def copy(self) -> None:
        """Copy what was written since the last time."""
        if not self._file.exists():
            return
        with self._file.open("rb") as log:
            log.seek(self._copied)
            fresh = log.read()
        self._copied += len(fresh)
        # Nobody may be listening any more, or have room to write it down; that is no reason to end a training.
        with suppress(OSError):
            self._stream.write(fresh)
            self._stream.flush()

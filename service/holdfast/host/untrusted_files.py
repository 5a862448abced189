"""Opens files in directories that others can write, without following links on the way."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

_LINKED: Final = frozenset({errno.ELOOP, errno.ENXIO})
"""Error codes of an attempt to open a link or a socket."""


@contextmanager
def opened_folder(top: Path, parts: Sequence[str] = ()) -> Iterator[int]:
    """The descriptor of a directory below `top`, by the names on the way.

    `top` itself may be a link.

    Raises:
        FileNotFoundError: it does not exist.
        NotADirectoryError: something on the way is a file or a link.
    """
    here = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
    try:
        for part in parts:
            inner = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=here)
            os.close(here)
            here = inner
        yield here
    finally:
        os.close(here)


@contextmanager
def opened_file(top: Path, parts: Sequence[str]) -> Iterator[BinaryIO]:
    """A regular file below `top`.

    Raises:
        FileNotFoundError: it does not exist, or is not a regular file.
        NotADirectoryError: something on the way is a file or a link.
    """
    with opened_folder(top, parts[:-1]) as folder:
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
            opened = os.open(parts[-1], flags, dir_fd=folder)
        except OSError as error:
            if error.errno not in _LINKED:
                raise
            raise FileNotFoundError(errno.ENOENT, "not a regular file", parts[-1]) from error
    try:
        # Checked before `fdopen`, which fails for a directory and would leave the descriptor open.
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a regular file", parts[-1])
        with os.fdopen(opened, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(opened)

"""Files below a folder whose content somebody else writes: no link is followed on the way to them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Final

_LINKED: Final = frozenset({errno.ELOOP, errno.ENXIO})
"""How an open fails that meets a link, or a socket."""


@contextmanager
def opened_folder(top: Path, parts: Sequence[str] = ()) -> Iterator[int]:
    """The descriptor of a folder below `top`, by the names on the way. `top` itself may be a link.

    Raises:
        FileNotFoundError: it is not there.
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
        FileNotFoundError: it is not there, or it is not a regular file.
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
        # Before there is a file object: for a directory there is none, and the descriptor would stay open.
        if not stat.S_ISREG(os.fstat(opened).st_mode):
            raise FileNotFoundError(errno.ENOENT, "not a regular file", parts[-1])
        with os.fdopen(opened, "rb", closefd=False) as file:
            yield file
    finally:
        os.close(opened)

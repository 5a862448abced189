"""Locks on a home directory and its database: shared by services, exclusive for a restore."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import make_url

from holdfast.errors import NotPossibleNow, StoreUnavailable
from holdfast.settings import Settings

NAME = "service.lock"
"""Name of the flock file in each directory. The kernel releases the lock whenever its
process ends."""


def folders_of(settings: Settings) -> list[Path]:
    """The directories that a service must write: its home, and that of a SQLite database."""
    file = database_file(settings)
    return [settings.home, *([file.parent] if file else [])]


def database_file(settings: Settings) -> Path | None:
    """The file of a SQLite database; None for another database."""
    url = make_url(settings.sqlalchemy_url)
    return Path(url.database) if url.get_backend_name() == "sqlite" and url.database else None


@contextmanager
def serving_over(settings: Settings) -> Iterator[None]:
    """Mark the directories of a service as in use.

    Raises:
        StoreUnavailable: a restore is running, or a directory cannot be used.
    """
    with ExitStack() as held:
        for folder in _distinct(settings):
            if not held.enter_context(_locked(folder, fcntl.LOCK_SH)).is_ours:
                raise StoreUnavailable(
                    f"a restore of the database in {folder} is running; start the service when it has finished"
                )
        yield


@contextmanager
def restoring_over(settings: Settings) -> Iterator[None]:
    """Keep services off the directories.

    Raises:
        NotPossibleNow: a service is running.
        StoreUnavailable: a directory cannot be used.
    """
    with ExitStack() as held:
        for folder in _distinct(settings):
            if not held.enter_context(_locked(folder, fcntl.LOCK_EX)).is_ours:
                raise NotPossibleNow(
                    f"a service is running with files in {folder}; stop it before you restore its database"
                )
        yield


def _distinct(settings: Settings) -> list[Path]:
    return sorted({folder.absolute() for folder in folders_of(settings)})


@dataclass(frozen=True, slots=True)
class _Lock:
    is_ours: bool


@contextmanager
def _locked(folder: Path, kind: int) -> Iterator[_Lock]:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(folder / NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise StoreUnavailable(
            f"the directory {folder} cannot be used: {error.strerror}; set HOLDFAST_HOME to a writable one"
        ) from error
    with closing(os.fdopen(descriptor)):
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            yield _Lock(is_ours=False)
        else:
            yield _Lock(is_ours=True)

"""The home directory of a service, its own secret, and private files that are written once."""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path

from holdfast.errors import StoreUnavailable

log = logging.getLogger(__name__)


def make_home(home: Path) -> None:
    """Create the directory, and warn if others can read it.

    Raises:
        StoreUnavailable: It cannot be used.
    """
    try:
        home.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise StoreUnavailable(
            f"the directory {home} cannot be created ({error.strerror}); set HOLDFAST_HOME"
        ) from error
    if not os.access(home, os.W_OK):
        raise StoreUnavailable(f"the directory {home} is not writable; set HOLDFAST_HOME")
    if (mode := home.stat().st_mode & 0o777) & 0o077:
        log.warning(
            "permissions %04o of %s are too open: other accounts of this machine may read its files; run chmod 700 %s",
            mode,
            home,
            home,
        )


def own_secret(home: Path) -> bytes:
    """The service's own secret, created at its first start.

    Replicas share it through the home directory.
    """
    file = home / "secret"
    write_once(file, secrets.token_hex(32))
    return file.read_bytes()


def read_or_empty(file: Path) -> str:
    """The text of a file, without surrounding space; empty if it does not exist."""
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return ""


def write_once(file: Path, text: str) -> None:
    """Write a private file unless it exists; atomic, also with concurrent writers."""
    draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as stream:
        stream.write(text)
    try:
        os.link(draft, file)
    except FileExistsError:
        pass
    finally:
        draft.unlink()

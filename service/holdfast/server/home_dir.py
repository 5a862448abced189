"""The home directory of a service, its own secret, and private files that are written once."""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path
from typing import Final

from holdfast.errors import StoreUnavailable
from holdfast.settings import Settings

log = logging.getLogger(__name__)

LEAST_SECRET_BYTES: Final = 32
"""Minimum length of a secret in a file that a user names. A lower value permits one that can be guessed."""


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


def own_secret(settings: Settings) -> bytes:
    """The service's own secret, the same for all replicas; the first start can create it.

    Raises:
        StoreUnavailable: a named file cannot be read or is too short, or replicas without a shared
            home have none.
    """
    file = settings.own_secret_file
    if settings.secret_file is None:
        if not settings.shares_home:
            raise StoreUnavailable(
                "HOLDFAST_SHARES_HOME=false needs HOLDFAST_SECRET_FILE: replicas without a shared home directory would make a "
                "secret each; name a file with at least 32 random characters, such as the output of openssl rand -hex 32"
            )
        write_once(file, secrets.token_hex(32))
    try:
        secret = file.read_bytes()
    except OSError as error:
        raise StoreUnavailable(
            f"HOLDFAST_SECRET_FILE: {file} cannot be read ({error.strerror}); write at least 32 random characters into it"
        ) from error
    if settings.secret_file and len(secret.strip()) < LEAST_SECRET_BYTES:
        raise StoreUnavailable(
            f"HOLDFAST_SECRET_FILE: {file} has {len(secret.strip())} characters, and a secret needs at least {LEAST_SECRET_BYTES}; "
            "write the output of openssl rand -hex 32 into it"
        )
    return secret


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

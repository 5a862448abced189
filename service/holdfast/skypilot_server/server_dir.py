"""The directory of a SkyPilot server: its HOME, and Holdfast's files beside it."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.errors import StoreUnavailable

DEFAULT_PORT: Final = 46590
"""Default port.
With SkyPilot's own 46580, `sky api stop` of any user on the machine would stop this server."""

ProgressCallback = Callable[[str], None]
"""Receives progress messages for the user."""


@dataclass(frozen=True, slots=True)
class ServerDir:
    """The directory of one server."""

    home: Path

    @property
    def config(self) -> Path:
        """File from which SkyPilot reads its configuration."""
        return self.home / ".sky" / "config.yaml"

    @property
    def log(self) -> Path:
        """The server's output, where `sky api logs` looks for it."""
        return self.home / ".sky" / "api_server" / "server.log"

    @property
    def record(self) -> Path:
        """Holdfast's record of the process."""
        return self.home / "holdfast-server.json"

    @property
    def python(self) -> Path:
        """Python of the environment created by `holdfast up --install`."""
        return self.home / "venv" / "bin" / "python"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Hold the lock for starting or stopping the server; other callers wait.

        Raises:
            StoreUnavailable: a path in the directory cannot be created, read or written, here or by the lock's holder.
        """
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.home.chmod(
                0o700
            )  # It links to credentials, and its configuration contains a secret.
            with (self.home / ".holdfast-lock").open("w") as lock:
                fcntl.flock(
                    lock, fcntl.LOCK_EX
                )  # The kernel releases it however this process ends.
                yield
        except OSError as error:
            where = error.filename2 or error.filename or self.home
            raise StoreUnavailable(
                f"cannot use SkyPilot's directory {self.home}: {where}: {error.strerror}; "
                "check its owner, or set HOLDFAST_SKYPILOT_HOME"
            ) from error


def write_atomically(file: Path, text: str, *, mode: int = 0o600) -> None:
    """Write a file atomically, private unless `mode` differs."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    draft.replace(file)

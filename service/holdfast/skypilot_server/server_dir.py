"""The folder of a SkyPilot server: its HOME, and what we keep beside it."""

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
"""Not SkyPilot's own 46580: `sky api stop` of anybody on the machine ends whatever server has that port."""

Tell = Callable[[str], None]
"""Takes a sentence for the person who waits."""


@dataclass(frozen=True, slots=True)
class ServerDir:
    """One server's folder."""

    home: Path

    @property
    def config(self) -> Path:
        """Where SkyPilot reads its configuration."""
        return self.home / ".sky" / "config.yaml"

    @property
    def log(self) -> Path:
        """What the server prints: the place where `sky api logs` looks for it."""
        return self.home / ".sky" / "api_server" / "server.log"

    @property
    def record(self) -> Path:
        """What we remember of the process."""
        return self.home / "holdfast-server.json"

    @property
    def python(self) -> Path:
        """The Python of the environment that `holdfast up --install` makes."""
        return self.home / "venv" / "bin" / "python"

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Nobody else starts or ends the server meanwhile; another one who wants to waits.

        Raises:
            StoreUnavailable: something of the folder cannot be made, read or written, now or by whoever is alone here.
        """
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            self.home.chmod(0o700)  # It leads to keys, and its configuration holds a secret.
            with (self.home / ".holdfast-lock").open("w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)  # Let go by the kernel, however we end.
                yield
        except OSError as error:
            where = error.filename2 or error.filename or self.home
            raise StoreUnavailable(
                f"SkyPilot's folder {self.home} cannot be used: {where}: {error.strerror}; "
                "look whose that is, or set HOLDFAST_SKYPILOT_HOME"
            ) from error


def write_whole(file: Path, text: str, *, mode: int = 0o600) -> None:
    """A file with this text, private unless said otherwise: whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
        stream.write(text)
    draft.replace(file)

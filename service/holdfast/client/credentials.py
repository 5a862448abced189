"""Saved login of the client: service address, token and current project."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.errors import BadRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """A login, stored in a file that only its user may read."""

    url: str | None = None
    """None: the address in the settings."""
    token: str | None = None
    """None: not logged in."""
    project: str | None = None
    """Project of jobs whose file names none; None: the service chooses."""

    @classmethod
    def read(cls, file: Path) -> Credentials:
        """Read the login from a file; empty if the file does not exist.

        Raises:
            BadRequest: the file has other content.
        """
        try:
            return cls(**json.loads(file.read_text()))
        except OSError:
            return cls()
        except (ValueError, TypeError) as error:
            raise BadRequest(
                f"{file} is not a login file; delete it, then run holdfast login"
            ) from error

    def write(self, file: Path) -> None:
        """Write the file atomically.

        Raises:
            BadRequest: the directory cannot be written.
        """
        draft = file.with_name(f".{file.name}.{secrets.token_hex(4)}")
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with os.fdopen(descriptor, "w") as stream:
                json.dump(asdict(self), stream)
            draft.replace(file)
        except OSError as error:
            raise BadRequest(
                f"{file} cannot be written ({error.strerror}); set HOLDFAST_CONFIG_HOME"
            ) from error

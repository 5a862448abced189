"""What the client keeps of its user: where their service is, their token, and the project that they work in."""

from __future__ import annotations

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from holdfast.errors import BadRequest


@dataclass(frozen=True, kw_only=True, slots=True)
class Credentials:
    """A login, as it is kept in a file that its user alone may read."""

    url: str | None = None
    """None: that of the settings."""
    token: str | None = None
    """None: nobody is logged in."""
    project: str | None = None
    """Of jobs whose file names none; None: the service knows."""

    @classmethod
    def read(cls, file: Path) -> Credentials:
        """The login in a file; an empty one where there is none.

        Raises:
            BadRequest: there is something else in it.
        """
        try:
            return cls(**json.loads(file.read_text()))
        except OSError:
            return cls()
        except (ValueError, TypeError) as error:
            raise BadRequest(f"{file} is no login; remove it, then type holdfast login") from error

    def write(self, file: Path) -> None:
        """Keep it; whoever reads the file meanwhile sees the old one or the new one.

        Raises:
            BadRequest: the folder cannot be written.
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

"""The job files that a model may name: those in one directory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.api.schemas.jobs import TaskIn
from holdfast.client.credentials import Credentials
from holdfast.errors import BadRequest
from holdfast.sdk.job_files import read_task, workdir_of
from holdfast.settings import read_settings

MAX_FILE_BYTES: Final = 1024 * 1024
"""Maximum size of a job file.

A lower value refuses files that the service accepts; a higher value reads more of a wrong file into memory.
"""
_ENDINGS: Final = (".yaml", ".yml")


@dataclass(frozen=True, slots=True)
class JobFolder:
    """A directory whose job files may be read, and whose subdirectories may be uploaded."""

    path: Path

    def read(self, file: str, name: str | None = None) -> TaskIn:
        """Read a job file of this directory.

        Raises:
            BadRequest: the file is elsewhere, does not end in .yaml, or is too large.
            BadJobFile: the file is not YAML.
        """
        place = self._inside(file, "file")
        if place.suffix not in _ENDINGS:
            raise BadRequest(f"file: {file} does not end in .yaml or .yml; name a job file")
        if place.is_file() and place.stat().st_size > MAX_FILE_BYTES:
            raise BadRequest(f"file: {file} has more than 1 MiB; a job file is a few lines of YAML")
        task = read_task(place, base=self.path, name=name)
        task.default_project = Credentials.read(read_settings().login_file).project
        return task

    def check_workdir(self, task: TaskIn) -> None:
        """Check that the code that would be uploaded is in this directory.

        Raises:
            BadRequest: it is elsewhere.
        """
        if (workdir := workdir_of(task.task, self.path)) is not None:
            self._inside(str(workdir), "workdir")

    def _inside(self, text: str, field: str) -> Path:
        """Resolve links, so that none of them leads out of the directory."""
        try:
            place = (self.path / text).resolve()
        except (OSError, ValueError, RuntimeError) as error:
            raise BadRequest(f"{field}: {text!r} is not a path; name a file") from error
        if not place.is_relative_to(self.path):
            raise BadRequest(
                f"{field}: {text} is not below {self.path}; start `holdfast mcp --folder DIR` for another directory"
            )
        return place

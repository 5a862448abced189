"""An incarnation: one attempt of a job whose launcher does not number its attempts.

    ~/.holdfast/<job>/<placement>/incarnation     a random name, created once
    ~/.holdfast/<job>/<placement>/standing.json   the number that the service assigned
    ~/.holdfast/<job>/<placement>/spool/          its reports, as attempt 0
    ~/.holdfast/<job>/<placement>/node-<rank>/    the run directory of this node

Two commands one after the other in `run:` are the same incarnation. New machines start without these files, and the same
machines have a different placement after an error. Standard library only.
"""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from holdfast_worker.config import Config
from holdfast_worker.run_dir import read_json, write_first


@dataclass(frozen=True, slots=True)
class ReportOffset:
    """The position of an incarnation's reports among those of the job."""

    attempt: int
    before: int
    """Number of reports of that attempt from earlier incarnations; ours are numbered after them."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """The files of one incarnation on one node."""

    path: Path
    name: str
    """Random, in hexadecimal digits."""

    @classmethod
    def create(cls, config: Config) -> Self:
        """Open the incarnation of this placement, or create it.

        Raises:
            OSError: the home directory is not writable.
        """
        path = config.home / ".holdfast" / config.job / config.placement
        path.mkdir(parents=True, exist_ok=True)
        write_first(path / "incarnation", secrets.token_hex(16))
        return cls(path, (path / "incarnation").read_text())

    @property
    def spool(self) -> Path:
        """Directory of its spooled reports."""
        return self.path / "spool"

    def run_dir(self, node_rank: int) -> Path:
        """The run directory of a node; one for each, as nodes may share a home directory."""
        return self.path / f"node-{node_rank}"

    def load_offset(self) -> ReportOffset | None:
        """The offset from the service's first response; None before that."""
        raw = read_json(self._offset_file)
        if raw is None:
            return None
        return ReportOffset(int(str(raw["attempt"])), int(str(raw["before"])))

    def save_offset(self, offset: ReportOffset) -> None:
        """Store the offset for a second command of this placement, which continues the reports."""
        draft = self._offset_file.with_suffix(".draft")
        # Reports continue on a full disk; without the file, only a second command would use wrong numbers.
        with suppress(OSError):
            draft.write_text(json.dumps(asdict(offset)))
            draft.replace(self._offset_file)

    @property
    def _offset_file(self) -> Path:
        return self.path / "standing.json"

"""An incarnation: one placement of a job whose launcher recovers it by itself and gives it no number.

    ~/.holdfast/<job>/<placement>/incarnation     a random name, made once
    ~/.holdfast/<job>/<placement>/standing.json   the number that the service gave it
    ~/.holdfast/<job>/<placement>/spool/          its reports, as attempt 0
    ~/.holdfast/<job>/<placement>/node-<rank>/    the run directory of this node

What runs here twice, as with two commands one after the other in `run:`, is the same incarnation. New machines have
nothing here, and the same machines after an error another placement. Standard library only.
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
    """The place of an incarnation's reports among those of the job."""

    attempt: int
    before: int
    """Reports of that attempt that others sent before our first: ours are numbered after them."""


@dataclass(frozen=True, slots=True)
class Incarnation:
    """The files of one incarnation on one node."""

    path: Path
    name: str
    """Random, in hexadecimal digits."""

    @classmethod
    def create(cls, config: Config) -> Self:
        """The one that this placement is, made if it is not there yet.

        Raises:
            OSError: the home directory cannot be used.
        """
        path = config.home / ".holdfast" / config.job / config.placement
        path.mkdir(parents=True, exist_ok=True)
        write_first(path / "incarnation", secrets.token_hex(16))
        return cls(path, (path / "incarnation").read_text())

    @property
    def spool(self) -> Path:
        """Where its reports wait."""
        return self.path / "spool"

    def run_dir(self, node_rank: int) -> Path:
        """The run directory of a node. One for each, as some clusters share their home directories."""
        return self.path / f"node-{node_rank}"

    def standing(self) -> ReportOffset | None:
        """What the service said first; None before it said anything."""
        raw = read_json(self._standing_file)
        if raw is None:
            return None
        return ReportOffset(int(str(raw["attempt"])), int(str(raw["before"])))

    def save_offset(self, standing: ReportOffset) -> None:
        """Remember it, for a second command of this placement: its reports follow those of the first."""
        draft = self._standing_file.with_suffix(".draft")
        # A full disk is no reason not to report; without the file, only a second command would number wrongly.
        with suppress(OSError):
            draft.write_text(json.dumps(asdict(standing)))
            draft.replace(self._standing_file)

    @property
    def _standing_file(self) -> Path:
        return self.path / "standing.json"

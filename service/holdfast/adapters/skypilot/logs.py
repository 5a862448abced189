"""What placements print, copied while they stand: SkyPilot keeps a program's output on the nodes it is about to lose."""

from __future__ import annotations

import asyncio
import json
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from holdfast.adapters.skypilot.door import Door
from holdfast.clock import SystemClock
from holdfast.domain.sighting import Sighting, Standing
from holdfast.errors import LauncherUnreachable
from holdfast.ports import LogSource

ASK_AGAIN: Final = timedelta(seconds=3)
"""Between two copies of one log, however many people read it."""


class LogMirror:
    """Copies of logs, below one folder."""

    def __init__(self, door: Door, root: Path) -> None:
        self._door = door
        self._root = root
        self._asked_at: dict[str, datetime] = {}

    def begin(self, key: str, first_attempt: int) -> None:
        """Remember which attempt the first placement of a launch is."""
        folder = self._root / key
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "launch.json").write_text(json.dumps({"first_attempt": first_attempt}))

    async def refresh(self, key: str, engine_id: int, seen: Sighting) -> list[LogSource]:
        """The logs of a launch, that of its newest placement copied anew if it is up or over.

        Raises:
            LauncherUnreachable: SkyPilot does not answer.
        """
        now = SystemClock().now()
        asked_at = self._asked_at.get(key)
        # Of a job without nodes SkyPilot's answer would not come before there are some.
        readable = seen.standing in {Standing.UP, Standing.ENDED} and seen.placements
        if readable and not (asked_at and now - asked_at < ASK_AGAIN):
            self._asked_at[key] = now
            text = await self._door.text(
                "/jobs/logs", {"job_id": engine_id, "follow": False, "tail": None}
            )
            await asyncio.to_thread(self._keep, key, seen.placements, text)
        return await asyncio.to_thread(self._sources, key)

    def read(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        """At most `limit` bytes of a copy from `offset`; empty at its end, and where there is none."""
        try:
            with self._file(key, source.attempt).open("rb") as stream:
                stream.seek(offset)
                return stream.read(limit)
        except FileNotFoundError:
            return b""

    def _keep(self, key: str, placement: int, text: bytes) -> None:
        file = self._file(key, self._first_attempt(key) + placement - 1)
        # What was read once never vanishes: a reader's offset must stay true.
        if not file.exists() or file.stat().st_size < len(text):
            draft = file.with_suffix(".new")
            draft.write_bytes(text)
            draft.replace(file)

    def _sources(self, key: str) -> list[LogSource]:
        files = sorted(self._file(key, 0).parent.glob("attempt-*.log"))
        return [
            LogSource(
                attempt=int(file.stem.rpartition("-")[2]),
                node=0,
                rank=None,
                size_bytes=file.stat().st_size,
            )
            for file in files
        ]

    def _first_attempt(self, key: str) -> int:
        try:
            told = json.loads((self._root / key / "launch.json").read_text())
            return int(told["first_attempt"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LauncherUnreachable(f"the log folder of {key} cannot be read: {error}") from error

    def _file(self, key: str, attempt: int) -> Path:
        return self._root / key / f"attempt-{attempt:06}.log"

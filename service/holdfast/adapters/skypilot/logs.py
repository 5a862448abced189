"""What placements print, copied while they stand: SkyPilot keeps a program's output on the nodes it is about to lose."""

from __future__ import annotations

import asyncio
import json
import logging
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final
from uuid import uuid4

from holdfast.adapters.skypilot.chronicle import Chronicle
from holdfast.adapters.skypilot.door import Door
from holdfast.adapters.skypilot.story import Price, tell
from holdfast.domain.sighting import Standing
from holdfast.errors import LauncherUnreachable
from holdfast.ports import Clock, LogSource

log = logging.getLogger(__name__)

ASK_AGAIN: Final = timedelta(seconds=3)
"""Between two copies of one log, however many people read it. Shorter keeps SkyPilot busy with copying it; longer lets
who follows it wait."""
AT_ONCE: Final = 2
"""Logs that are copied side by side. With fewer, readers of one wait for those of another; with more, logs fill the door
through which jobs are looked at."""

_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_UNPRICED: Final = Price(0, 0)


class LogMirror:
    """Copies of logs, below one folder."""

    def __init__(self, door: Door, chronicle: Chronicle, root: Path, clock: Clock) -> None:
        self._door = door
        self._chronicle = chronicle
        self._root = root
        self._clock = clock
        self._due_at: dict[str, datetime] = {}
        """When the log of a launch may be copied again; never, while it is."""
        self._turns = asyncio.Semaphore(AT_ONCE)

    def begin(self, key: str, first_attempt: int) -> None:
        """Remember which attempt the first placement of a launch is."""
        folder = self._root / key
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "launch.json").write_text(json.dumps({"first_attempt": first_attempt}))

    async def refresh(self, key: str, engine_id: int) -> None:
        """Copy what the newest placement of a launch has printed, unless that was done just now.

        Whoever reads logs has no part in the launch: nothing else becomes of it. What cannot be had stays as it was.
        """
        now = self._clock.now()
        if now < self._due_at.get(key, now):
            return
        self._due_at[key] = _NEVER
        try:
            async with self._turns:
                await self._copy(key, engine_id)
        except (LauncherUnreachable, OSError) as error:
            log.info("the log of %s stays as it was copied: %s", key, error)
        finally:
            self._due_at[key] = self._clock.now() + ASK_AGAIN

    async def sources(self, key: str) -> list[LogSource]:
        """The copies that there are of a launch, by attempt."""
        return await asyncio.to_thread(self._sources, key)

    def read(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        """At most `limit` bytes of a copy from `offset`; empty at its end, and where there is none."""
        try:
            with self._file(key, source.attempt).open("rb") as stream:
                stream.seek(offset)
                return stream.read(limit)
        except FileNotFoundError:
            return b""

    async def _copy(self, key: str, engine_id: int) -> None:
        history = await self._chronicle.peek(key, engine_id)
        seen = tell(history, None, 0, _UNPRICED, self._clock.now())
        # Of a job without nodes SkyPilot's answer would not come before there are some.
        if seen.standing is Standing.WAITING or not seen.placements:
            return
        file = self._file(key, self._first_attempt(key) + seen.placements - 1)
        draft = file.with_name(f".{file.name}.{uuid4().hex}")
        try:
            wanted = {"job_id": engine_id, "follow": False, "tail": None}
            await self._door.save("/jobs/logs", wanted, draft)
            # What was read once never vanishes: a reader's offset must stay true.
            if not file.exists() or file.stat().st_size < draft.stat().st_size:
                draft.replace(file)
        finally:
            draft.unlink(missing_ok=True)

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

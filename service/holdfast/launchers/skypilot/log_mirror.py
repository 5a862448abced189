"""What placements print, copied while they stand: SkyPilot keeps a program's output on the nodes it is about to lose."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import shutil
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final
from uuid import uuid4

from holdfast.errors import LauncherUnreachable
from holdfast.launchers.skypilot.api_client import SkyPilotClient
from holdfast.launchers.skypilot.cached_reads import EventCache
from holdfast.launchers.skypilot.observe import Price, is_running, observe
from holdfast.ports import Clock, LogSource

log = logging.getLogger(__name__)

ASK_AGAIN: Final = timedelta(seconds=3)
"""Between two copies of one log, however many people read it. Shorter keeps SkyPilot busy with copying it; longer lets
who follows it wait."""
AT_ONCE: Final = 2
"""Logs that are copied side by side. With fewer, readers of one wait for those of another; with more, logs fill the door
through which jobs are looked at."""

TAIL_LINES: Final = 2000
"""Of a log that was copied before. A lower value copies a chatty program's log from its beginning more often; a higher value
transfers more of what is there already."""
ANCHOR_BYTES: Final = 4096
"""By which the end of a copy is found in the newest lines. A lower value may take an earlier, equal passage for it."""
CONTROL: Final = re.compile(
    rb'<sky-payload>"<(rich_\w+|heartbeat|retry)>.*?</\1>"</sky-payload>\n?'
)
"""What SkyPilot's server writes into a log to steer the progress display of SkyPilot's own command line."""

_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_UNPRICED: Final = Price(0, 0)


class LogMirror:
    """Copies of logs, below one folder."""

    def __init__(
        self, door: SkyPilotClient, chronicle: EventCache, root: Path, clock: Clock
    ) -> None:
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

    def kept(self) -> list[str]:
        """Keys of the launches whose logs were copied."""
        return sorted(path.name for path in self._root.glob("*-*/"))

    def discard(self, key: str) -> None:
        """Remove the copies of a launch. Without its folder, its log is not copied again."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self._root / key)

    async def _copy(self, key: str, engine_id: int) -> None:
        history = await self._chronicle.peek(key, engine_id)
        seen = observe(history, None, 0, _UNPRICED, self._clock.now())
        # SkyPilot answers once the job runs: before that, and while it is placed again, the answer would not come.
        if not seen.placements or not (seen.ending or is_running(history)):
            return
        file = self._file(key, self._first_attempt(key) + seen.placements - 1)
        draft = file.with_name(f".{file.name}.{uuid4().hex}")
        wanted = {"job_id": engine_id, "follow": False}
        try:
            if file.exists():
                await self._save({**wanted, "tail": TAIL_LINES}, draft)
                if await asyncio.to_thread(_append, draft, file):
                    return
            await self._save({**wanted, "tail": None}, draft)
            # What was read once never vanishes: a reader's offset must stay true.
            if not file.exists() or file.stat().st_size < draft.stat().st_size:
                draft.replace(file)
        finally:
            draft.unlink(missing_ok=True)

    async def _save(self, wanted: Mapping[str, Any], draft: Path) -> None:
        await self._door.save("/jobs/logs", wanted, draft)
        await asyncio.to_thread(_drop_controls, draft)

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


def _drop_controls(draft: Path) -> None:
    """Remove what no program printed. It would also keep the end of a copy from being found in the newest lines."""
    with draft.open("rb") as lines, draft.open("rb+") as kept:
        for line in lines:
            kept.write(CONTROL.sub(b"", line))
        kept.truncate()


def _append(lines: Path, copy: Path) -> bool:
    """Append what follows the end of a copy in the newest lines of its log; False if they do not meet."""
    newest = lines.read_bytes()
    size = copy.stat().st_size
    with copy.open("r+b") as stream:
        stream.seek(max(0, size - ANCHOR_BYTES))
        anchor = stream.read()
        found = newest.rfind(anchor)
        if found < 0:
            return False
        stream.write(newest[found + len(anchor) :])
    return True

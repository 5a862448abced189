"""Copies logs while placements run, because SkyPilot keeps output only on the nodes."""

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
from holdfast.launchers.skypilot.naming import launch_key
from holdfast.launchers.skypilot.observe import PlacementPrice, is_running, observe
from holdfast.ports import Clock, LogSource

log = logging.getLogger(__name__)

COPY_INTERVAL: Final = timedelta(seconds=3)
"""Minimum time between two copies of one log, for any number of readers.
A lower value adds load on SkyPilot; a higher value delays readers who follow the log."""
MAX_CONCURRENT: Final = 2
"""Limit of concurrent copies.
A lower value makes readers wait for each other; a higher value delays observations, which share the client."""

TAIL_LINES: Final = 2000
"""Lines requested of a log copied before.
With a lower value, a verbose program's log is copied from the beginning more often; a higher value transfers more
duplicates."""
ANCHOR_BYTES: Final = 4096
"""Size of the end of a copy that is searched in new lines.
A lower value may match an earlier, equal passage."""
CONTROL: Final = re.compile(
    rb'<sky-payload>"<(rich_\w+|heartbeat|retry)>.*?</\1>"</sky-payload>\n?'
)
"""Control sequences in logs, meant for the progress display of SkyPilot's command line."""

_NEVER: Final = datetime.max.replace(tzinfo=UTC)
_UNPRICED: Final = PlacementPrice(0, 0)


class LogMirror:
    """Copies of logs below one directory."""

    def __init__(
        self, door: SkyPilotClient, chronicle: EventCache, root: Path, clock: Clock
    ) -> None:
        self._client = door
        self._events = chronicle
        self._root = root
        self._clock = clock
        self._due_at: dict[str, datetime] = {}
        """When the log of a launch may be copied again; infinite during a copy."""
        self._slots = asyncio.Semaphore(MAX_CONCURRENT)

    def register(self, key: str, first_attempt: int) -> None:
        """Record the attempt number of a launch's first placement."""
        folder = self._folder(key)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "launch.json").write_text(json.dumps({"first_attempt": first_attempt}))

    async def refresh(self, key: str, engine_id: int) -> None:
        """Copy the newest placement's output, unless it was copied recently.

        Reading logs does not change job state. If the read fails, the old copy remains.
        """
        now = self._clock.now()
        if now < self._due_at.get(key, now):
            return
        self._due_at[key] = _NEVER
        try:
            async with self._slots:
                await self._copy(key, engine_id)
        except (LauncherUnreachable, OSError) as error:
            log.info("cannot update the log copy of %s: %s", key, error)
        finally:
            self._due_at[key] = self._clock.now() + COPY_INTERVAL

    async def sources(self, key: str) -> list[LogSource]:
        """List the copies of a launch's logs, by attempt."""
        return await asyncio.to_thread(self.copies, key)

    def read(self, key: str, source: LogSource, offset: int, limit: int) -> bytes:
        """Read at most `limit` bytes of a copy from `offset`; empty at its end or without a copy."""
        try:
            with self._file(key, source.attempt).open("rb") as stream:
                stream.seek(offset)
                return stream.read(limit)
        except FileNotFoundError:
            return b""

    def keys(self) -> list[str]:
        """Return the keys of launches with copied logs."""
        return sorted(path.name for path in self._root.glob("*-*/"))

    def discard(self, key: str) -> None:
        """Delete the copies of a launch. Without its directory, its log is not copied again."""
        with suppress(FileNotFoundError):
            shutil.rmtree(self._folder(key))

    async def _copy(self, key: str, engine_id: int) -> None:
        history = await self._events.peek(key, engine_id)
        seen = observe(history, None, 0, _UNPRICED, self._clock.now())
        # SkyPilot responds only while the job runs, not before or during a recovery.
        if not seen.placements or not (seen.result or is_running(history)):
            return
        file = self._file(key, self.first_attempt(key) + seen.placements - 1)
        draft = file.with_name(f".{file.name}.{uuid4().hex}")
        query = {"job_id": engine_id, "follow": False}
        try:
            if file.exists():
                await self._save({**query, "tail": TAIL_LINES}, draft)
                if await asyncio.to_thread(_append, draft, file):
                    return
            await self._save({**query, "tail": None}, draft)
            # Content that was read once is kept, so that readers' offsets stay valid.
            if not file.exists() or file.stat().st_size < draft.stat().st_size:
                draft.replace(file)
        finally:
            draft.unlink(missing_ok=True)

    async def _save(self, query: Mapping[str, Any], draft: Path) -> None:
        await self._client.download("/jobs/logs", query, draft)
        await asyncio.to_thread(_drop_controls, draft)

    def copies(self, key: str) -> list[LogSource]:
        """List the copies of a launch's logs, by attempt. Blocking."""
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

    def first_attempt(self, key: str) -> int:
        """Return the attempt number of a launch's first placement.

        Raises:
            LauncherUnreachable: the record cannot be read.
        """
        try:
            record = json.loads((self._folder(key) / "launch.json").read_text())
            return int(record["first_attempt"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LauncherUnreachable(f"cannot read the log directory of {key}: {error}") from error

    def _file(self, key: str, attempt: int) -> Path:
        return self._folder(key) / f"attempt-{attempt:06}.log"

    def _folder(self, key: str) -> Path:
        """The directory of a launch; that of a node group is within it."""
        launch = launch_key(key)
        return self._root / launch if launch == key else self._root / launch / key


def _drop_controls(draft: Path) -> None:
    """Remove control sequences, which also would prevent finding the end of a copy in new lines."""
    with draft.open("rb") as lines, draft.open("rb+") as kept:
        for line in lines:
            kept.write(CONTROL.sub(b"", line))
        kept.truncate()


def _append(lines: Path, copy: Path) -> bool:
    """Append what follows the copy's end in the newest lines; False if they do not overlap."""
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

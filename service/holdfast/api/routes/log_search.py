"""The logs of a job, searched: line by line through all that its nodes and ranks printed, a bounded stretch at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Final, Self

from fastapi import Query

from holdfast.api.dependencies import The, TheJob
from holdfast.api.routes.logs import TheLauncher, place_of, sources
from holdfast.api.routing import Router
from holdfast.api.schemas.diagnostics import MatchOut, MatchPage
from holdfast.api.schemas.workers import MAX_COUNT
from holdfast.domain.diagnostics.log_matching import LONGEST, LogPattern, excerpt, split
from holdfast.errors import BadRequest

router = Router(prefix="/v1/jobs/{job_id}/logs", tags=["logs"])

PIECE_BYTES: Final = 1024 * 1024
"""Read at once; of a line that is longer, only so much is searched. Smaller: more calls. Bigger: more memory for each caller."""
PATTERN_PIECE_BYTES: Final = 64 * 1024
"""The same for patterns, of which the worst take a second for it. Bigger: they take longer than `MOST_S`, which is looked at
between two pieces."""
MOST_BYTES: Final = 512 * 1024 * 1024
MOST_S: Final = 5.0
"""Of one answer; the next one goes on where it ended. Smaller: more answers. Bigger: callers wait, and hold a thread for longer."""

Read = Callable[[int, int], bytes]
"""At most so many bytes of a log, from an offset."""


@dataclass(frozen=True, slots=True, order=True)
class SearchPosition:
    """Where a search stands: before a line of a log."""

    log: tuple[int, int, int]
    """Attempt, node, and rank; -1 for what the node itself printed."""
    offset: int = 0
    line: int = 1

    def __str__(self) -> str:
        return ":".join(map(str, (*self.log, self.offset, self.line)))

    @classmethod
    def parse(cls, text: str) -> Self:
        """The place that an answer named.

        Raises:
            BadRequest: none did.
        """
        words = text.split(":")
        try:
            attempt, node, rank, offset, line = map(int, words)
        except ValueError:
            attempt = node = rank = offset = line = -1
        if min(attempt, node, offset, line) < 0 or rank < -1 or max(offset, line) > MAX_COUNT:
            raise BadRequest(
                f"cursor {text!r} is not one that an answer named; begin without a cursor"
            )
        return cls((attempt, node, rank), offset, line)


@dataclass
class LogSearch:
    """One stretch of a search: what it may still cost, and what it has found."""

    needle: LogPattern
    room: int
    """Matches that are still wanted."""
    until_s: float = field(default_factory=lambda: time.monotonic() + MOST_S)
    left_bytes: int = MOST_BYTES
    """That may still be read; what is read again counts again."""
    searched_bytes: int = 0
    matches: list[MatchOut] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether the rest is for the next answer."""
        return self.room <= 0 or self.left_bytes <= 0 or time.monotonic() > self.until_s

    def search(self, read: Read, place: SearchPosition) -> SearchPosition | None:
        """Where to go on in a log; None if it was searched to its end. Blocking, so that it belongs in a thread."""
        # An answer may end within a line that is longer than a piece.
        is_inside = place.offset > 0 and read(place.offset - 1, 1) != b"\n"
        while not self.is_over:
            piece = self._read(read, place.offset)
            if not piece:
                return None
            end = (piece.find(b"\n") if is_inside else piece.rfind(b"\n")) + 1
            if end and not is_inside:
                then = self._look_through(piece[:end], place)
            else:  # A line that is longer than a piece, or the last one, which may still be written.
                if not is_inside:
                    self._look_through(piece, place)
                then = SearchPosition(
                    place.log, place.offset + (end or len(piece)), place.line + bool(end)
                )
            is_inside = not end
            self.searched_bytes += then.offset - place.offset
            place = then
        return place

    def _look_through(self, lines: bytes, place: SearchPosition) -> SearchPosition:
        """The place after some lines, or after the one with the last match that is wanted."""
        if self.needle.is_in(lines):
            for number, (start, line) in enumerate(split(lines), place.line):
                span = self.needle.find(line)
                if span is None:
                    continue
                self.matches.append(_match(place, number, start, line, span))
                self.room -= 1
                if self.room <= 0:
                    return SearchPosition(
                        place.log, place.offset + start + len(line) + 1, number + 1
                    )
        return SearchPosition(place.log, place.offset + len(lines), place.line + lines.count(b"\n"))

    def _read(self, read: Read, offset: int) -> bytes:
        piece = read(offset, PATTERN_PIECE_BYTES if self.needle.is_regex else PIECE_BYTES)
        self.left_bytes -= len(piece)
        return piece


@router.get("/search", response_model=MatchPage)
async def search_logs(
    job: TheJob,
    services: The,
    launcher: TheLauncher,
    *,
    q: Annotated[str, Query(min_length=1, max_length=LONGEST, description="What to look for.")],
    regex: Annotated[
        bool, Query(description="Whether `q` is a pattern, in the syntax of RE2.")
    ] = False,
    ignore_case: Annotated[bool, Query(description="Whether case makes no difference.")] = False,
    attempt: Annotated[int | None, Query(ge=1, description="Only this attempt.")] = None,
    node: Annotated[int | None, Query(ge=0, description="Only this node.")] = None,
    rank: Annotated[int | None, Query(ge=0, description="Only this global rank.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(description="`next` of the answer before.")] = None,
) -> MatchPage:
    """Lines of the logs of a job that have a text in them, or fit a pattern."""
    hunt = LogSearch(LogPattern.of(q, is_regex=regex, ignore_case=ignore_case), limit)
    begin = SearchPosition.parse(cursor) if cursor else SearchPosition((0, 0, -1))
    wanted = ((attempt, "attempt"), (node, "node"), (rank, "rank"))
    for key, source in await sources(services, job, launcher):
        if any(value is not None and getattr(source, name) != value for value, name in wanted):
            continue
        place = SearchPosition(place_of(source))
        if place.log < begin.log:
            continue
        place = begin if place.log == begin.log else place
        read = partial(launcher.read_log, key, source)
        rest = await asyncio.to_thread(hunt.search, read, place)
        if rest is not None:
            return _page(hunt, rest)
    return _page(hunt, None)


def _page(hunt: LogSearch, rest: SearchPosition | None) -> MatchPage:
    return MatchPage(
        matches=hunt.matches,
        searched_bytes=hunt.searched_bytes,
        next=str(rest) if rest else None,
    )


def _match(
    place: SearchPosition, number: int, start: int, line: bytes, span: tuple[int, int]
) -> MatchOut:
    shown = excerpt(line, span)
    attempt, node, rank = place.log
    return MatchOut(
        attempt=attempt,
        node=node,
        rank=None if rank < 0 else rank,
        line=number,
        offset=place.offset + start,
        text=shown.text,
        start=shown.start,
        end=shown.end,
        is_cut=shown.is_cut,
    )

"""Search of a job's logs over all nodes and ranks, with a bounded cost per request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Final, Self

from fastapi import Query

from holdfast.api.dependencies import TheJob, TheServices
from holdfast.api.routes.logs import job_logs, log_sort_key
from holdfast.api.routing import Router
from holdfast.api.schemas.diagnostics import MatchOut, MatchPage
from holdfast.api.schemas.workers import MAX_COUNT
from holdfast.domain.diagnostics.log_matching import (
    MAX_PATTERN_CHARS,
    LogPattern,
    excerpt,
    split_lines,
)
from holdfast.errors import BadRequest

router = Router(prefix="/v1/jobs/{job_id}/logs", tags=["logs"])

CHUNK_BYTES: Final = 1024 * 1024
"""Bytes read at once, and searched of a longer line.

A lower value makes more calls; a higher value uses more memory per caller.
"""
PATTERN_CHUNK_BYTES: Final = 64 * 1024
"""Bytes read at once for patterns; the slowest patterns need a second for it. A higher value may
exceed `MOST_S`, which is checked between chunks."""
MOST_BYTES: Final = 512 * 1024 * 1024
MOST_S: Final = 5.0
"""Maximum seconds of one response; the next one continues at its end.

A lower value makes more responses; a higher value holds callers and threads longer.
"""

ReadRange = Callable[[int, int], bytes]
"""Reads at most so many bytes of a log from an offset."""


@dataclass(frozen=True, slots=True, order=True)
class SearchPosition:
    """Position of a search: before a line of a log."""

    log: tuple[int, int, int]
    """Attempt, node and rank; -1 for the node's own output."""
    offset: int = 0
    line: int = 1

    def __str__(self) -> str:
        return ":".join(map(str, (*self.log, self.offset, self.line)))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the cursor of an earlier response.

        Raises:
            BadRequest: no response named it.
        """
        words = text.split(":")
        try:
            attempt, node, rank, offset, line = map(int, words)
        except ValueError:
            attempt = node = rank = offset = line = -1
        if min(attempt, node, offset, line) < 0 or rank < -1 or max(offset, line) > MAX_COUNT:
            raise BadRequest(
                f"cursor {text!r} was not returned by an earlier response; start without a cursor"
            )
        return cls((attempt, node, rank), offset, line)


@dataclass
class LogSearch:
    """One part of a search: its remaining limits and its matches."""

    pattern: LogPattern
    remaining_matches: int
    """Number of matches still requested."""
    until_s: float = field(default_factory=lambda: time.monotonic() + MOST_S)
    remaining_bytes: int = MOST_BYTES
    """Bytes that may still be read; repeated reads count again."""
    searched_bytes: int = 0
    matches: list[MatchOut] = field(default_factory=list)

    @property
    def is_over(self) -> bool:
        """Whether the rest belongs to the next response."""
        return (
            self.remaining_matches <= 0
            or self.remaining_bytes <= 0
            or time.monotonic() > self.until_s
        )

    def search(self, read: ReadRange, place: SearchPosition) -> SearchPosition | None:
        """Search a log and return where to continue, or None at its end.

        Blocking; call it in a thread.
        """
        # A response may end within a line that is longer than a chunk.
        is_inside = place.offset > 0 and read(place.offset - 1, 1) != b"\n"
        while not self.is_over:
            piece = self._read(read, place.offset)
            if not piece:
                return None
            end = (piece.find(b"\n") if is_inside else piece.rfind(b"\n")) + 1
            if end and not is_inside:
                then = self._search_lines(piece[:end], place)
            else:  # A line longer than a chunk, or the last one, which may be incomplete.
                if not is_inside:
                    self._search_lines(piece, place)
                then = SearchPosition(
                    place.log, place.offset + (end or len(piece)), place.line + bool(end)
                )
            is_inside = not end
            self.searched_bytes += then.offset - place.offset
            place = then
        return place

    def _search_lines(self, lines: bytes, place: SearchPosition) -> SearchPosition:
        """Search lines and return the position after them.

        The search ends after the line with the last requested match.
        """
        if self.pattern.matches_any(lines):
            for number, (start, line) in enumerate(split_lines(lines), place.line):
                span = self.pattern.find(line)
                if span is None:
                    continue
                self.matches.append(_match(place, number, start, line, span))
                self.remaining_matches -= 1
                if self.remaining_matches <= 0:
                    return SearchPosition(
                        place.log, place.offset + start + len(line) + 1, number + 1
                    )
        return SearchPosition(place.log, place.offset + len(lines), place.line + lines.count(b"\n"))

    def _read(self, read: ReadRange, offset: int) -> bytes:
        piece = read(offset, PATTERN_CHUNK_BYTES if self.pattern.is_regex else CHUNK_BYTES)
        self.remaining_bytes -= len(piece)
        return piece


@router.get("/search", response_model=MatchPage)
async def search_logs(
    job: TheJob,
    services: TheServices,
    *,
    q: Annotated[
        str, Query(min_length=1, max_length=MAX_PATTERN_CHARS, description="Text to search for.")
    ],
    regex: Annotated[
        bool, Query(description="Whether `q` is a regular expression in RE2 syntax.")
    ] = False,
    ignore_case: Annotated[bool, Query(description="Whether to ignore case.")] = False,
    attempt: Annotated[int | None, Query(ge=1, description="Only this attempt.")] = None,
    node: Annotated[int | None, Query(ge=0, description="Only this node.")] = None,
    rank: Annotated[int | None, Query(ge=0, description="Only this global rank.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
    cursor: Annotated[str | None, Query(description="`next` of the previous response.")] = None,
) -> MatchPage:
    """Search the logs of a job for a text or a pattern."""
    hunt = LogSearch(LogPattern.compile(q, is_regex=regex, ignore_case=ignore_case), limit)
    begin = SearchPosition.parse(cursor) if cursor else SearchPosition((0, 0, -1))
    wanted = ((attempt, "attempt"), (node, "node"), (rank, "rank"))
    for log in await job_logs(services, job):
        source = log.source
        if any(value is not None and getattr(source, name) != value for value, name in wanted):
            continue
        place = SearchPosition(log_sort_key(source))
        if place.log < begin.log:
            continue
        place = begin if place.log == begin.log else place
        rest = await asyncio.to_thread(hunt.search, log.read, place)
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

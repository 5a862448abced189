"""Search patterns for log lines, matched in time linear in the length of the log. Pure.

Python's regular expressions can take exponential time on a short line and block all other threads. RE2 has no such patterns:
it supports neither backreferences nor lookaround.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import re2

from holdfast.errors import BadRequest

MAX_PATTERN_CHARS: Final = 200
"""Maximum characters of a search pattern. A higher value admits counted repeats that take much memory."""
MEMORY_BYTES: Final = 4 * 1024 * 1024
"""Memory of one compiled pattern. A lower value refuses useful patterns; a higher value lets each caller claim more memory."""
EXCERPT_CHARS: Final = 400
"""Characters of a line that are shown. A lower value cuts relevant text; a higher value enlarges responses."""
EXCERPT_LEAD_CHARS: Final = 100
"""Maximum characters shown before the match if a line is cut."""
_TEXT_ANCHORS: Final = re.compile(r"\\[Az]|\(\?[A-Za-z]*-")
"""Syntax that can refer to the ends of the whole text: `\\A`, `\\z`, and flags that disable multi-line `^` and `$`."""


@dataclass(frozen=True, slots=True)
class LogPattern:
    """A literal or RE2 pattern for lines: bytes in UTF-8 without their newline (LF or CR LF)."""

    pattern: Any
    is_regex: bool = False
    is_single_line: bool = False
    """Whether a line may match alone but not between other lines."""

    @classmethod
    def compile(cls, text: str, *, is_regex: bool = False, ignore_case: bool = False) -> LogPattern:
        """Compile a literal or regular expression; `^`, `$`, `\\A` and `\\z` are the ends of a line.

        Raises:
            BadRequest: The text cannot occur in a line or is not a valid pattern.
        """
        if not 1 <= len(text) <= MAX_PATTERN_CHARS or re.search(r"[\r\n\0]", text):
            raise BadRequest(f"q: write 1 to {MAX_PATTERN_CHARS} characters, all of one line")
        options = re2.Options()
        options.case_sensitive = not ignore_case
        options.max_mem = MEMORY_BYTES
        options.never_nl = True
        options.log_errors = False
        options.literal = False
        pattern = text if is_regex else re2.escape(text)
        try:
            found = re2.compile(f"(?m){pattern}".encode(), options)
        except re2.error as error:
            reason = error.args[0] if error.args else error
            why = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
            raise BadRequest(
                f"q: {text!r} is not a valid RE2 pattern ({why}); omit regex to search for the literal text"
            ) from error
        re2.purge()  # Free the memory of up to 100 cached patterns.
        return cls(found, is_regex, is_regex and _TEXT_ANCHORS.search(text) is not None)

    def matches_any(self, lines: bytes) -> bool:
        """Whether any of these lines may match."""
        if self.is_single_line:
            return True
        bare = lines.replace(b"\r\n", b"\n").removesuffix(b"\r")
        return self.pattern.search(bare) is not None

    def find(self, line: bytes) -> tuple[int, int] | None:
        """Byte span of the first match in a line; None without a match."""
        found = self.pattern.search(line.removesuffix(b"\r"))
        return found.span() if found else None


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A matching line as displayed, cut around the match."""

    text: str
    start: int
    """Offset of the match in `text`, in characters."""
    end: int
    is_cut: bool


def excerpt(line: bytes, span: tuple[int, int]) -> Excerpt:
    """Cut a line around its match."""
    before, found, after = (
        part.decode(errors="replace")
        for part in (line[: span[0]], line[span[0] : span[1]], line[span[1] :].rstrip(b"\r"))
    )
    whole = before + found + after
    if len(whole) <= EXCERPT_CHARS:
        return Excerpt(whole, len(before), len(before) + len(found), is_cut=False)
    lead = before[-EXCERPT_LEAD_CHARS:] if len(before) + len(found) > EXCERPT_CHARS else before
    text = (lead + found + after)[:EXCERPT_CHARS]
    return Excerpt(text, len(lead), min(len(lead) + len(found), len(text)), is_cut=True)


def split_lines(lines: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield each line without its newline, with its byte offset."""
    start = 0
    while start < len(lines):
        end = lines.find(b"\n", start)
        end = len(lines) if end < 0 else end
        yield start, lines[start:end]
        start = end + 1

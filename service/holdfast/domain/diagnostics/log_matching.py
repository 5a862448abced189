"""Needles: what is looked for in the lines of a log, in time that grows with the length of the log alone. Pure.

Python's own regular expressions can take for ever over a short line, and hold up every other thread meanwhile. RE2 knows no
patterns that could: neither references back nor looking around.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import re2

from holdfast.errors import BadRequest

LONGEST: Final = 200
"""Characters of a needle. Longer is no question that a person asks; a pattern of many counted repeats takes memory."""
MEMORY_BYTES: Final = 4 * 1024 * 1024
"""For one pattern. Smaller refuses useful ones, bigger is memory that each caller may claim."""
WINDOW: Final = 400
"""Characters of a line that are shown. Smaller cuts what a person wants to read, bigger makes a page of long lines heavy."""
BEFORE: Final = 100
"""Of these, at most so many stand before what was found, where a line is cut."""
_ENDS_OF_TEXT: Final = re.compile(r"\\[Az]|\(\?[A-Za-z]*-")
"""What may ask for the ends of all that is looked at: `\\A`, `\\z`, and to take away that `^` and `$` are those of a line."""


@dataclass(frozen=True, slots=True)
class LogPattern:
    """A text or a pattern. Lines are bytes without their newline, in UTF-8 as far as they are text; CR LF is a newline."""

    pattern: Any
    is_regex: bool = False
    is_for_one: bool = False
    """Whether it may fit a line, and not the same line between others."""

    @classmethod
    def of(cls, text: str, *, is_regex: bool = False, ignore_case: bool = False) -> LogPattern:
        """What finds a text, or what a pattern describes; `^` and `$` are the ends of a line, `\\A` and `\\z` too.

        Raises:
            BadRequest: it can be found in no line, or is no pattern.
        """
        if not 1 <= len(text) <= LONGEST or re.search(r"[\r\n\0]", text):
            raise BadRequest(f"q: write 1 to {LONGEST} characters, all of one line")
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
            told = error.args[0] if error.args else error
            why = told.decode(errors="replace") if isinstance(told, bytes) else str(told)
            raise BadRequest(
                f"q: {text!r} is not a pattern of RE2 ({why}); leave regex out to look for the text itself"
            ) from error
        re2.purge()  # Else it keeps the memory of a hundred that nobody looks for any more.
        return cls(found, is_regex, is_regex and _ENDS_OF_TEXT.search(text) is not None)

    def is_in(self, lines: bytes) -> bool:
        """Whether any of some lines may have it."""
        if self.is_for_one:
            return True
        bare = lines.replace(b"\r\n", b"\n").removesuffix(b"\r")
        return self.pattern.search(bare) is not None

    def find(self, line: bytes) -> tuple[int, int] | None:
        """Where a line has it first, in bytes; None if it has not."""
        found = self.pattern.search(line.removesuffix(b"\r"))
        return found.span() if found else None


@dataclass(frozen=True, slots=True)
class Excerpt:
    """A line as it is shown."""

    text: str
    start: int
    """Where what was found begins in it, in characters."""
    end: int
    is_cut: bool


def excerpt(line: bytes, span: tuple[int, int]) -> Excerpt:
    """A line around what was found in it."""
    before, found, after = (
        part.decode(errors="replace")
        for part in (line[: span[0]], line[span[0] : span[1]], line[span[1] :].rstrip(b"\r"))
    )
    whole = before + found + after
    if len(whole) <= WINDOW:
        return Excerpt(whole, len(before), len(before) + len(found), is_cut=False)
    lead = before[-BEFORE:] if len(before) + len(found) > WINDOW else before
    text = (lead + found + after)[:WINDOW]
    return Excerpt(text, len(lead), min(len(lead) + len(found), len(text)), is_cut=True)


def split(lines: bytes) -> Iterator[tuple[int, bytes]]:
    """Each line with the byte where it begins, without its newline."""
    start = 0
    while start < len(lines):
        end = lines.find(b"\n", start)
        end = len(lines) if end < 0 else end
        yield start, lines[start:end]
        start = end + 1

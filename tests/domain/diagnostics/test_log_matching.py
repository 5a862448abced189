"""Log search: literal text, patterns with bounded run time, and excerpts of long lines."""

from __future__ import annotations

import gc
import time

import pytest
from holdfast.domain.diagnostics.log_matching import EXCERPT_CHARS, LogPattern, excerpt, split_lines
from holdfast.errors import BadRequest


@pytest.mark.parametrize(
    ("text", "line", "found"),
    [
        ("loss", b"step 3 loss 0.5", (7, 11)),
        ("a.b", b"axb a.b", (4, 7)),
        ("(", b"f(x", (1, 2)),
        ("größe", "die größe".encode(), (4, 11)),
        ("Loss", b"step 3 loss 0.5", None),
        ("loss", b"", None),
        ("x", b"\xff\xfe x \xff", (3, 4)),
    ],
)
def test_text_is_found_literally(text: str, line: bytes, found: tuple[int, int] | None) -> None:
    assert LogPattern.compile(text).find(line) == found


def test_search_ignoring_case_matches_unicode() -> None:
    needle = LogPattern.compile("Größe", ignore_case=True)

    assert needle.find("die GRÖßE".encode()) == (4, 11)


@pytest.mark.parametrize(
    ("pattern", "line", "found"),
    [
        (r"loss \d+\.\d", b"step 3 loss 0.5", (7, 15)),
        ("^step", b"step 3", (0, 4)),
        ("3$", b"step 3", (5, 6)),
        ("^loss", b"step 3 loss", None),
        ("(?i)LOSS", b"loss", (0, 4)),
    ],
)
def test_pattern_matches_lines(pattern: str, line: bytes, found: tuple[int, int] | None) -> None:
    needle = LogPattern.compile(pattern, is_regex=True)

    assert needle.find(line) == found
    assert needle.matches_any(b"before\n" + line + b"\nafter\n") is (found is not None)


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (r"\Aerr", (0, 3)),
        (r"7\z", (6, 7)),
        ("(?-m)^err", (0, 3)),
        ("(?i-m:7$)", (6, 7)),
        ("7$", (6, 7)),
        (r"^err\w* 7$", (0, 7)),
    ],
)
@pytest.mark.parametrize("newline", [b"\n", b"\r\n"])
def test_line_anchors_match_anywhere_in_a_chunk(
    pattern: str, found: tuple[int, int], newline: bytes
) -> None:
    """A chunk may begin and end within a line."""
    needle = LogPattern.compile(pattern, is_regex=True)
    lines = [b"before", b"error 7", b"after"]

    collected = [needle.find(line + newline[:-1]) for line in lines]

    assert collected == [None, found, None]
    assert needle.matches_any(newline.join(lines) + newline)
    assert needle.matches_any(lines[1] + newline[:-1])


def test_unused_pattern_is_not_cached() -> None:
    """Each pattern may take 4 MiB, and RE2 would keep 128 of them."""
    needle = LogPattern.compile("once and (never|ever) again", is_regex=True)
    kind = type(needle.pattern)

    del needle
    gc.collect()

    kept = [each.pattern for each in gc.get_objects() if type(each) is kind]
    assert not [pattern for pattern in kept if "again" in str(pattern)]


def test_pattern_does_not_match_across_lines() -> None:
    needle = LogPattern.compile(r"loss\s+0", is_regex=True)

    assert not needle.matches_any(b"loss\n0\n")
    assert needle.matches_any(b"loss  0\n")


@pytest.mark.parametrize("pattern", ["(a+)+$", "(a|a)*$", "(.*.*.*.*)*x", "a?" * 60 + "a" * 60])
def test_catastrophic_patterns_finish_quickly(pattern: str) -> None:
    line = b"a" * 100_000 + b"b"
    began_s = time.monotonic()

    LogPattern.compile(pattern, is_regex=True).find(line)

    assert time.monotonic() - began_s < 20


@pytest.mark.parametrize("pattern", ["(", "(?=x)", r"(a)\1", "[z-a]", "*", "((a{1000}){1000})"])
def test_invalid_pattern_is_refused_with_a_reason(pattern: str) -> None:
    with pytest.raises(BadRequest, match=r"is not a valid RE2 pattern .* omit regex"):
        LogPattern.compile(pattern, is_regex=True)


@pytest.mark.parametrize("text", ["", "x" * 201, "a\nb", "a\rb", "\0"])
def test_unmatchable_text_is_refused(text: str) -> None:
    with pytest.raises(BadRequest, match="q: write 1 to 200 characters, all of one line"):
        LogPattern.compile(text)


def test_lines_have_their_byte_offset() -> None:
    assert list(split_lines(b"ab\n\ncd")) == [(0, b"ab"), (3, b""), (4, b"cd")]
    assert list(split_lines(b"ab\n")) == [(0, b"ab")]


def test_a_short_line_is_shown_whole() -> None:
    shown = excerpt("größe 3\r".encode(), (0, 7))

    assert (shown.text, shown.start, shown.end, shown.is_cut) == ("größe 3", 0, 5, False)


@pytest.mark.parametrize("at", [0, 50, 390, 5000, 9990])
def test_long_line_is_cut_around_its_match(at: int) -> None:
    line = b"x" * at + b"needle" + b"y" * (10_000 - at)

    shown = excerpt(line, (at, at + 6))

    assert shown.is_cut
    assert len(shown.text) <= EXCERPT_CHARS
    assert shown.text[shown.start : shown.end] == "needle"


def test_match_longer_than_the_excerpt_is_cut() -> None:
    shown = excerpt(b"x" * 1000, (0, 1000))

    assert (len(shown.text), shown.start, shown.end) == (EXCERPT_CHARS, 0, EXCERPT_CHARS)

"""Output files in a store: which patterns and lists are accepted, and the keys of objects."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from holdfast_worker.protocol.output_files import (
    MAX_OUTPUT_FILES,
    OUTPUT_PART_BYTES,
    OutputCollection,
    OutputFile,
    check_output_pattern,
    is_replaced,
    is_safe_path,
)

DIGEST = "0" * 64
FILE = {"number": 0, "path": "results/a.json", "size_bytes": 3, "sha256": DIGEST}


def commit(**changes: Any) -> bytes:
    raw = {
        "nonce": "0123abcd",
        "attempt": 3,
        "exit_code": 0,
        "collected_at": "2026-03-01T00:00:00+00:00",
        "files": [FILE],
        "left_out": [],
        "left_out_count": 0,
    }
    return json.dumps({**raw, **changes}).encode()


@pytest.mark.parametrize("pattern", ["results/*.json", "plots/", "a/**/b.txt", "ümlaut ?.csv"])
def test_pattern_below_the_working_directory_is_accepted(pattern: str) -> None:
    check_output_pattern(pattern)


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("", "is empty"),
        ("/", "is empty"),
        ("x" * 201, "longer than 200 characters"),
        ("/etc/passwd", "leaves the working directory"),
        ("~/x", "leaves the working directory"),
        ("a/../../b", "leaves the working directory"),
        ("a**b", "write it as a whole part"),
        ("a\nb", "control character"),
    ],
)
def test_other_patterns_are_refused_with_a_remedy(pattern: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_output_pattern(pattern)


@pytest.mark.parametrize(
    "path", ["", "/a", "a//b", "../a", "a/..", "./a", "a\\b", "a\nb", "\udcff", "x" * 1025]
)
def test_path_that_leaves_a_directory_is_unsafe(path: str) -> None:
    assert not is_safe_path(path)


def test_commit_is_read_back() -> None:
    file = OutputFile(4, "a b/ü.json", 2 * OUTPUT_PART_BYTES + 1, DIGEST)
    made = OutputCollection(
        epoch=3,
        nonce="0123abcd",
        attempt=None,
        exit_code=1,
        collected_at=datetime(2026, 3, 1, tzinfo=UTC),
        files=(file,),
        left_out=(),
        left_out_count=2,
    )

    assert OutputCollection.parse(made.dump(), 3) == made
    assert made.commit_key == "outputs/commits/000000000003.json"
    assert [made.part_key(file, part) for part in file.parts] == [
        f"outputs/data/e3-0123abcd/000004/00000{part}" for part in range(3)
    ]
    assert not [*OutputFile(0, "empty", 0, DIGEST).parts]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        commit(nonce="../../x"),
        commit(collected_at="2026-03-01T00:00:00"),
        commit(exit_code=None),
        commit(files=[{**FILE, "path": "../a"}]),
        commit(files=[{**FILE, "size_bytes": -1}]),
        commit(files=[{**FILE, "size_bytes": 1 << 60}]),
        commit(files=[{**FILE, "number": -1}]),
        commit(files=[{**FILE, "sha256": "x"}]),
        commit(files=[FILE] * (MAX_OUTPUT_FILES + 1)),
    ],
)
def test_damaged_or_hostile_commit_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError):
        OutputCollection.parse(data, 3)


@pytest.mark.parametrize(
    ("key", "older"),
    [
        ("outputs/commits/000000000002.json", True),
        ("outputs/commits/000000000003.json", False),
        ("outputs/commits/000000000004.json", False),
        ("outputs/data/e2-aaaaaaaa/000000/000000", True),
        ("outputs/data/e3-aaaaaaaa/000000/000000", True),
        ("outputs/data/e3-0123abcd/000000/000000", False),
        ("outputs/data/e4-aaaaaaaa/000000/000000", False),
        ("outputs/data/other", False),
    ],
)
def test_objects_of_earlier_attempts_are_older(key: str, older: bool) -> None:
    assert is_replaced(key, OutputCollection.parse(commit(), 3)) is older

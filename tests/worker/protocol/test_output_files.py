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
    parse_commit_key,
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


def test_keys_of_other_nodes_are_their_own() -> None:
    """Earlier versions skip them: they read and delete only keys of the form of node 0."""
    made = OutputCollection.parse(commit(), 3, 12)

    assert made.commit_key == "outputs/commits/000000000003-n12.json"
    assert made.part_key(made.files[0], 0) == "outputs/data/n12-e3-0123abcd/000000/000000"
    assert parse_commit_key(made.commit_key) == (3, 12)
    assert parse_commit_key("outputs/commits/000000000003.json") == (3, 0)
    for other in ("03-n0", "03-n01", "03-n1234567", "03-1"):
        assert parse_commit_key(f"outputs/commits/0000000000{other}.json") is None
    assert OutputCollection.parse(made.dump(), 3, 12) == made


@pytest.mark.parametrize(
    ("key", "by_first", "by_second"),
    [
        ("outputs/commits/000000000002-n1.json", True, False),
        ("outputs/commits/000000000003-n1.json", False, False),
        ("outputs/data/n1-e2-aaaaaaaa/000000/000000", True, False),
        ("outputs/data/n1-e3-aaaaaaaa/000000/000000", False, True),
        ("outputs/data/n1-e3-0123abcd/000000/000000", False, False),
        ("outputs/data/n2-e3-aaaaaaaa/000000/000000", False, False),
        ("outputs/data/e2-aaaaaaaa/000000/000000", True, False),
        ("outputs/data/e3-aaaaaaaa/000000/000000", True, False),
        ("outputs/nodes/000000000002/000001.done", True, False),
        ("outputs/nodes/000000000003/000001.done", False, False),
    ],
)
def test_node_0_replaces_the_files_of_all_nodes(key: str, by_first: bool, by_second: bool) -> None:
    """The files of an earlier attempt are complete until then."""
    collections = [OutputCollection.parse(commit(), 3, node) for node in (0, 1)]

    assert [is_replaced(key, each) for each in collections] == [by_first, by_second]


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

"""Damage of a checkpoint in the store is detected, named, and never loaded."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from holdfast_worker.checkpoint.repository import CheckpointRepository
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.commit_summary import commit_digest
from holdfast_worker.storage.directory import DirectoryStore
from worker.support.stores import LATER_S, RankGroup, newest


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


def flip(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def swap_shards(store: DirectoryStore, name: CheckpointName) -> None:
    first, second = store.get(name.part_key(0, 0)), store.get(name.part_key(1, 0))
    store.put(name.part_key(0, 0), second)
    store.put(name.part_key(1, 0), first)


def swap_commits(store: DirectoryStore, name: CheckpointName) -> None:
    older = CheckpointRepository(store).names(LATER_S)[1]
    store.put(name.commit_key, store.get(older.commit_key))


def edit_commit(store: DirectoryStore, name: CheckpointName) -> None:
    commit = json.loads(store.get(name.commit_key))
    store.put(name.commit_key, json.dumps({**commit, "weights_sha256": "0" * 64}).encode())


def edit_pieces(
    edit: Callable[[list[list[Any]]], object],
) -> Callable[[DirectoryStore, CheckpointName], None]:
    """A damage that edits the pieces of rank 0 in a commit and recomputes its digest.

    A piece is a name, first byte, size, region and digest.
    """

    def hurt(store: DirectoryStore, name: CheckpointName) -> None:
        body = json.loads(store.get(name.commit_key))
        del body["sha256"]
        edit(body["ranks"][0]["pieces"])
        store.put(name.commit_key, json.dumps({**body, "sha256": commit_digest(body)}).encode())

    return hurt


def overlap(pieces: list[list[Any]]) -> None:
    """Cover elements 10 to 20 twice, and leave as many uncovered."""
    [(start, stop), *_] = (piece[3] for piece in pieces)
    pieces[0][3] = [start + 10, stop + 10]


ONCE = "was not written completely, each element once"
NO_STREAM = "the pieces of rank 0 are not contiguous"

DAMAGES: dict[str, tuple[Callable[[DirectoryStore, CheckpointName], object], str]] = {
    "truncated shard": (
        lambda s, n: s.put(n.part_key(1, 0), s.get(n.part_key(1, 0))[:-5]),
        "rank-1/000000 has 1035 bytes instead of 1040",
    ),
    "flipped bit in a tensor": (
        lambda s, n: s.put(n.part_key(1, 0), flip(s.get(n.part_key(1, 0)), 700)),
        "rank-1/000000 differs from the committed one",
    ),
    "flipped bit in a record": (
        lambda s, n: s.put(n.record_key(0), flip(s.get(n.record_key(0)), 40)),
        "rank-0.json differs from the committed one",
    ),
    "missing shard": (
        lambda s, n: s.delete(n.part_key(0, 0)),
        "rank-0/000000 is missing",
    ),
    "missing record": (
        lambda s, n: s.delete(n.record_key(1)),
        "rank-1.json is missing",
    ),
    "swapped shards": (swap_shards, "rank-0/000000 has "),
    "empty commit": (lambda s, n: s.put(n.commit_key, b""), "its commit cannot be parsed"),
    "half a commit": (
        lambda s, n: s.put(n.commit_key, s.get(n.commit_key)[:99]),
        "its commit cannot be parsed",
    ),
    "commit that is no object": (
        lambda s, n: s.put(n.commit_key, b"[1, 2]"),
        "its commit cannot be parsed",
    ),
    "edited commit": (edit_commit, "its commit does not match its own digest"),
    "elements written twice": (edit_pieces(overlap), ONCE),
    "elements never written": (edit_pieces(lambda p: p[0].__setitem__(3, [0, 5])), ONCE),
    "piece beyond the end": (
        edit_pieces(lambda p: p[-1].__setitem__(1, 10**9)),
        NO_STREAM,
    ),
    "piece that is too long": (edit_pieces(lambda p: p[0].__setitem__(2, 10**9)), NO_STREAM),
    "piece at half a byte": (
        edit_pieces(lambda p: p[0].__setitem__(1, 0.5)),
        "its commit cannot be parsed",
    ),
    "commit of many brackets": (
        lambda s, n: s.put(n.commit_key, b"[" * 100_000),
        "its commit cannot be parsed",
    ),
    "commit of many lists": (
        lambda s, n: s.put(n.commit_key, b'{"tracked": ' + b"[" * 900 + b"]" * 900 + b"}"),
        "its commit cannot be parsed",
    ),
    "commit of another step": (swap_commits, "its commit belongs to step-10-e1-000000010001"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_checkpoint_is_skipped_with_the_reason(
    store: DirectoryStore, tmp_path: Path, damage: str
) -> None:
    group = RankGroup(store, tmp_path)
    group.save(10)
    group.save(20)
    hurt, sentence = DAMAGES[damage]

    hurt(store, CheckpointRepository(store).names(LATER_S)[0])

    step, [flaw] = newest(store)
    assert step == 10
    assert sentence in flaw


@pytest.mark.parametrize("ranks", [1, 3, 4])
def test_checkpoint_is_equal_for_another_number_of_ranks(
    store: DirectoryStore, tmp_path: Path, ranks: int
) -> None:
    RankGroup(store, tmp_path).save(10)

    assert newest(store, ranks) == (10, [])

"""Snapshots in the memory of nodes are complete or not there, and are used by their lineage."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from holdfast_worker.checkpoint.memory_snapshots import (
    COPIED,
    COPY_SHARE,
    MIN_INTERVAL_S,
    STALL_SHARE,
    MemorySchedule,
    MemorySnapshots,
)
from holdfast_worker.node_memory.room import Room
from holdfast_worker.protocol.checkpoint_keys import CheckpointName
from holdfast_worker.protocol.policies import Cadence
from worker.support.node_memory import MemoryNodes
from worker.support.run_driver import wait_until
from worker.support.stores import MemoryStore, RankGroup


@pytest.fixture
def nodes() -> Iterator[MemoryNodes]:
    with MemoryNodes.opened(3) as nodes:
        yield nodes


@pytest.fixture
def store(tmp_path: Path) -> MemoryStore:
    """A store with a checkpoint of step 10 by epoch 1."""
    store = MemoryStore()
    RankGroup(store, tmp_path, ranks=3).save(10)
    return store


def restored(nodes: MemoryNodes, store: MemoryStore, epoch: int = 1) -> tuple[int, bool]:
    """The step from which all ranks continue, and whether it is from memory."""
    results = nodes.restore(store, epoch)
    origins = {(r.name.step if r.name else 0, r.held_at is not None) for r in results}
    assert len(origins) == 1
    # The ranks' own state is that of the same step.
    for rank, result in enumerate(results):
        if result.name:
            own = result.owns[rank]
            assert [own["rank"], *own["noise"].tolist()] == [rank, rank, result.name.step]
    return origins.pop()


def test_each_shard_is_on_its_node_and_the_next(nodes: MemoryNodes) -> None:
    nodes.save(20)

    assert [nodes.keys(node) for node in range(3)] == [
        ["20 rank-0", "20 rank-2"],
        ["20 rank-0", "20 rank-1"],
        ["20 rank-1", "20 rank-2"],
    ]


def test_newer_snapshot_replaces_the_last(nodes: MemoryNodes) -> None:
    nodes.save(20)
    nodes.save(30)

    held = {key for node in range(3) for key in nodes.keys(node)}
    leader = nodes.holders[0]._objects
    assert held == {"30 rank-0", "30 rank-1", "30 rank-2"}
    assert [key for key in leader if key.startswith("commits/")] == [
        CheckpointName(30, 1, f"{30:012x}").commit_key
    ]
    assert not [key for key in leader if key.startswith(COPIED)]


def test_single_node_has_a_complete_snapshot_at_any_time(store: MemoryStore) -> None:
    with MemoryNodes.opened(1) as nodes:
        nodes.save(20)
        [rank] = nodes.ranks
        rank._commit = lambda *_: rank._cancelled.set()  # type: ignore[method-assign]
        nodes.save(30)

        assert nodes.keys(0) == ["20 rank-0", "30 rank-0"]
        assert [key for key in nodes.holders[0]._objects if "commits/" in key] == [
            CheckpointName(20, 1, f"{20:012x}").commit_key
        ]


def test_snapshot_newer_than_the_store_is_restored(nodes: MemoryNodes, store: MemoryStore) -> None:
    nodes.save(20)
    nodes.start()

    assert restored(nodes, store) == (20, True)
    [start] = [key for key in store.objects if key.startswith("starts/")]
    assert start.endswith("-000000000020"), "the lineage begins at the restored step"


def test_result_names_the_newest_step_of_the_store(nodes: MemoryNodes, store: MemoryStore) -> None:
    nodes.save(20)

    assert {result.durable_step for result in nodes.restore(store)} == {10}


def test_newer_checkpoint_in_the_store_goes_first(
    nodes: MemoryNodes, store: MemoryStore, tmp_path: Path
) -> None:
    nodes.save(8)

    assert restored(nodes, store) == (10, False)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_loss_of_a_node_leaves_every_shard(
    nodes: MemoryNodes, store: MemoryStore, lost: int
) -> None:
    nodes.save(20)
    commits = {k: v for k, v in nodes.holders[0]._objects.items() if k.startswith("commits/")}
    nodes.lose(lost)
    # The loss of node 0 ends the attempt. Here only its shards are lost.
    nodes.holders[0]._objects |= commits
    nodes.start()

    assert restored(nodes, store) == (20, True)


def test_loss_of_two_neighbors_needs_the_store(
    nodes: MemoryNodes, store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes.save(20)
    nodes.lose(1)
    nodes.lose(2)
    nodes.start()

    assert restored(nodes, store) == (10, False)
    assert "the snapshot of step 20 in memory is not complete" in capsys.readouterr().err


def test_replaced_node_gets_its_copies_again(nodes: MemoryNodes, store: MemoryStore) -> None:
    nodes.save(20)
    nodes.lose(1)
    nodes.start()
    [name] = {result.name for result in nodes.restore(store, 1)}
    assert name

    for rank in nodes.ranks:
        rank.adopt(name)
    nodes.join()
    nodes.lose(2)
    nodes.start()

    assert restored(nodes, store) == (20, True)


@pytest.mark.parametrize("node", [1, 2])
def test_damaged_copy_is_replaced_by_the_other(
    nodes: MemoryNodes, store: MemoryStore, node: int
) -> None:
    nodes.save(20)
    damage(nodes, [node])

    assert restored(nodes, store) == (20, True)


def test_damage_of_both_copies_needs_the_store(
    nodes: MemoryNodes, store: MemoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes.save(20)
    damage(nodes, [1, 2])

    assert restored(nodes, store) == (10, False)
    assert "the snapshot of step 20 in memory is damaged" in capsys.readouterr().err
    assert not nodes.ranks[0].repository.names(float("inf")), "it is not tried again"


def damage(nodes: MemoryNodes, holders: list[int]) -> None:
    """Damage copies of the bytes of rank 1."""
    for node in holders:
        objects = nodes.holders[node]._objects
        for key, (rank, content) in [*objects.items()]:
            if "/rank-1/" in key:
                objects[key] = rank, bytes(len(content))


def test_snapshot_of_a_superseded_start_is_not_used(
    nodes: MemoryNodes, store: MemoryStore, tmp_path: Path
) -> None:
    nodes.save(20, epoch=1)
    # An attempt on other machines has continued from step 10, and is over.
    store.put("starts/000000000002-000000000010", b"{}")
    nodes.start()

    assert restored(nodes, store, epoch=3) == (10, False)


def test_snapshot_of_an_earlier_start_of_the_lineage_is_used(
    nodes: MemoryNodes, store: MemoryStore
) -> None:
    nodes.save(20, epoch=1)
    # A start from this snapshot that was lost before it had one of its own.
    store.put("starts/000000000002-000000000020", b"{}")
    nodes.start()

    assert restored(nodes, store, epoch=3) == (20, True)


@pytest.mark.parametrize("silent", [0, 1, 2])
def test_rank_lost_while_copying_leaves_the_last_snapshot(
    nodes: MemoryNodes, store: MemoryStore, silent: int
) -> None:
    nodes.save(20)

    nodes.begin(30, only=[rank for rank in range(3) if rank != silent])
    copies = {rank: f"30 rank-{rank}" for rank in range(3) if rank != silent}
    wait_until(lambda: all(key in nodes.keys((rank + 1) % 3) for rank, key in copies.items()))
    nodes.start()

    assert restored(nodes, store) == (20, True)


def test_rank_lost_after_the_commit_leaves_the_new_snapshot(
    nodes: MemoryNodes, store: MemoryStore
) -> None:
    nodes.save(20)

    # One rank never replaces the copy on its own node.
    nodes.ranks[1]._wait_for = lambda *_: nodes.ranks[1]._cancelled.set()  # type: ignore[method-assign]
    copy = nodes.ranks[1]._copy
    calls = itertools.count()
    nodes.ranks[1]._copy = lambda *given: copy(*given) if next(calls) == 0 else None  # type: ignore[method-assign]
    nodes.save(30)
    nodes.start()

    assert "30 rank-1" not in nodes.keys(1)
    assert restored(nodes, store) == (30, True)


def test_failed_copy_is_tried_again(nodes: MemoryNodes, store: MemoryStore) -> None:
    nodes.save(20)
    nodes.begin(30, only=[0, 1])
    wait_until(lambda: "30 rank-0" in nodes.keys(1))

    for rank in nodes.ranks:
        rank.cancel()
    nodes.join()
    failed = [rank.has_failed for rank in nodes.ranks]
    nodes.save(40)

    assert failed == [True, True, False]
    assert restored(nodes, store) == (40, True)


def test_shard_without_room_is_refused() -> None:
    small = Room(total_bytes=10**9, free_bytes=101 * 10**6)
    with MemoryNodes.opened(2, lambda: small) as nodes:
        nodes.begin(20, only=[0])
        nodes.join()

        assert nodes.ranks[0].has_failed
        assert "has no room for" in nodes.ranks[0].refusal
        assert [nodes.keys(node) for node in range(2)] == [[], []]


def test_discarded_shards_are_freed(nodes: MemoryNodes) -> None:
    nodes.save(20)

    for rank in nodes.ranks:
        rank.discard()

    assert not any(key.startswith("step-") for node in nodes.holders for key in node._objects)


def test_launcher_learns_of_copies_when_they_are_complete() -> None:
    with MemoryNodes.opened(2) as nodes:
        announced = [list[bool]() for _ in nodes.ranks]
        nodes.ranks = [
            MemorySnapshots(rank._ring, Cadence.parse("auto"), announce=announcements.append)
            for rank, announcements in zip(nodes.ranks, announced, strict=True)
        ]
        nodes.begin(20, only=[1])
        before = [[*announcements] for announcements in announced]
        nodes.begin(20, only=[0])
        nodes.join()

    assert before == [[], []]
    assert announced == [[True, False], [True, False]]


def test_unreachable_node_fails_the_snapshot(
    nodes: MemoryNodes, capsys: pytest.CaptureFixture[str]
) -> None:
    nodes.ranks[0]._following.abort()  # type: ignore[union-attr]

    nodes.begin(20, only=[0])
    nodes.join()

    assert nodes.ranks[0].has_failed
    assert not nodes.ranks[0].refusal
    assert "rank 0 has no copies of its newest snapshot in memory" in capsys.readouterr().err


def test_time_limit_ends_the_wait_for_others(capsys: pytest.CaptureFixture[str]) -> None:
    with MemoryNodes.opened(2) as nodes:
        hurried = MemorySnapshots(nodes.ranks[1]._ring, Cadence.parse("auto"), deadline_s=0.2)
        nodes.ranks[1] = hurried
        nodes.begin(20, only=[1])
        nodes.join()

    assert hurried.has_failed
    assert "other ranks were not done within 0 s" in capsys.readouterr().err


class TestSchedule:
    def test_interval_follows_from_the_costs(self) -> None:
        schedule = MemorySchedule(Cadence.parse("auto"))
        intervals = [schedule.interval_s]
        for stall_s, copy_s in ((0.001, 0.001), (0.5, 0.1), (0.5, 0.1), (0.2, 8.0)):
            schedule.observe(stall_s, copy_s)
            intervals.append(schedule.interval_s)

        assert intervals == pytest.approx(
            [
                MIN_INTERVAL_S,
                MIN_INTERVAL_S,
                0.2505 / STALL_SHARE,
                0.5 / STALL_SHARE,
                max(0.35 / STALL_SHARE, 0.1 / COPY_SHARE),
            ]
        )

    @pytest.mark.parametrize(
        ("cadence", "steps", "seconds", "failures", "is_due"),
        [
            ("auto", 1, MIN_INTERVAL_S, 0, True),
            ("auto", 1, MIN_INTERVAL_S - 0.1, 0, False),
            ("auto", 0, 1000.0, 0, False),
            ("5 steps", 5, 0.0, 0, True),
            ("5 steps", 4, 1000.0, 0, False),
            ("30s", 1, 30.0, 0, True),
            ("30s", 100, 29.0, 0, False),
            ("5 steps", 50, 59.0, 1, False),
            ("5 steps", 50, 60.0, 1, True),
            ("5 steps", 50, 100.0, 2, False),
        ],
    )
    def test_snapshot_is_due_by_its_cadence(
        self, cadence: str, steps: int, seconds: float, failures: int, is_due: bool
    ) -> None:
        schedule = MemorySchedule(Cadence.parse(cadence))

        assert schedule.is_due(steps, seconds, failures) is is_due

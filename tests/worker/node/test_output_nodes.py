"""How nodes agree on which of them sends a file, and for whom they wait."""

from __future__ import annotations

import itertools
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from holdfast_worker.node.output_nodes import CollectingNode, OutputNodes, run_identity
from holdfast_worker.node.output_selection import OutputLimits, OutputSelection
from holdfast_worker.protocol.output_files import MAX_OUTPUT_BYTES, MAX_OUTPUT_FILES
from holdfast_worker.storage.base import Store
from holdfast_worker.storage.directory import DirectoryStore
from worker.support.s3_servers import moto, open_bucket

EPOCH = 3


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "store")


def node_of(store: Store, node: int, nodes: int = 2, begin_s: float = 0.0) -> OutputNodes:
    """A node that waits for none that has not begun, unless a test is about that."""
    place = CollectingNode(node=node, nodes=nodes, run="one")
    until_s = time.monotonic() + 120
    return OutputNodes(store=store, place=place, until_s=until_s, begin_s=begin_s, epoch=EPOCH)


def selected(folder: Path, node: int, *patterns: str) -> OutputSelection:
    selection = OutputSelection(folder, OutputLimits(), node)
    selection.add(patterns or ["*"])
    return selection


def written(folder: Path, *names: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name in names:
        (folder / name).write_text(name)
    return folder


def test_other_nodes_share_limits_of_their_own() -> None:
    limits = [OutputLimits.of_node(node, nodes) for node, nodes in ((0, 64), (1, 10), (1, 91))]

    assert limits == [
        OutputLimits(),
        OutputLimits(MAX_OUTPUT_FILES, (90 << 30) // 9),
        OutputLimits(100, 1 << 30),
    ]
    assert limits[1].total_bytes == MAX_OUTPUT_BYTES


def test_node_0_sends_all_of_its_files(tmp_path: Path, store: DirectoryStore) -> None:
    """Also if another node of the same file system was first."""
    folder = written(tmp_path / "work", "a", "b")
    (folder / "etc").symlink_to("/etc/passwd")
    found = {node: selected(folder, node) for node in (0, 1, 2)}

    for node in (1, 0, 2):
        node_of(store, node, 3).share(found[node])

    assert {node: each.paths for node, each in found.items()} == {
        0: ["a", "b"],
        1: ["a", "b"],
        2: [],
    }
    assert (found[2].is_empty, found[2].shared_count) == (True, 3)


def test_files_that_only_look_alike_are_all_sent(tmp_path: Path, store: DirectoryStore) -> None:
    first, second = written(tmp_path / "n0", "a"), written(tmp_path / "n1", "a")
    found = selected(second, 1)

    node_of(store, 0).share(selected(first, 0))
    node_of(store, 1).share(found)

    assert found.paths == ["a"]


def test_file_that_node_0_has_missed_is_sent_once(tmp_path: Path, store: DirectoryStore) -> None:
    folder = written(tmp_path / "work", "a")
    node_of(store, 0, 3).share(selected(folder, 0))
    written(folder, "late")
    found = [selected(folder, node) for node in (1, 2)]

    for node, each in enumerate(found, 1):
        node_of(store, node, 3).share(each)

    assert [each.paths for each in found] == [["late"], []]


def test_files_beyond_the_limits_of_node_0_stay_out(tmp_path: Path, store: DirectoryStore) -> None:
    """Otherwise, the limits would be those of a node times the number of nodes."""
    folder = written(tmp_path / "work", "a", "b")
    first = OutputSelection(folder, OutputLimits(files=1))
    first.add(["*"])
    other = selected(folder, 1)

    node_of(store, 0).share(first)
    node_of(store, 1).share(other)

    assert (first.paths, first.left_out_count, other.is_empty) == (["a"], 1, True)


@pytest.mark.parametrize("kind", ["directory", "moto"])
def test_nodes_that_share_at_once_send_each_file_once(
    tmp_path: Path, store: DirectoryStore, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = written(tmp_path / "work", *(f"{number}" for number in range(20)))
    found = [selected(folder, node) for node in range(1, 6)]
    start = threading.Barrier(len(found))

    def share(selection: OutputSelection) -> None:
        start.wait(60)
        node_of(opened, selection.node, 6).share(selection)

    with moto() as (endpoint, _), ThreadPoolExecutor(len(found)) as threads:
        opened: Store = store if kind == "directory" else open_bucket(endpoint, monkeypatch)
        list(threads.map(share, found))

    paths = [path for each in found for path in each.paths]
    assert sorted(paths) == sorted(f"{number}" for number in range(20))


def test_damaged_object_of_the_nodes_is_replaced(tmp_path: Path, store: DirectoryStore) -> None:
    """The job's program can write to the store."""
    folder = written(tmp_path / "work", "a")
    found = [selected(folder, node) for node in (0, 1)]
    store.put(f"outputs/nodes/{EPOCH:012d}/senders.json", b"[1")

    for node, each in enumerate(found):
        node_of(store, node).share(each)

    assert [each.paths for each in found] == [["a"], []]


def test_node_waits_for_those_that_have_begun(store: DirectoryStore) -> None:
    """And not for node 2, which was lost."""
    first, second = node_of(store, 0, 3), node_of(store, 1, 3)
    for node in (first, second):
        node.begin()
    second.end()
    looks = itertools.count(1)

    def is_leaving() -> bool:
        if (look := next(looks)) == 3:
            first.end()
        return look > 100

    second.is_leaving = is_leaving
    second.wait_for_others()

    assert 3 <= next(looks) < 100


def test_node_does_not_wait_once_it_has_to_leave(store: DirectoryStore) -> None:
    node_of(store, 0).begin()
    node = node_of(store, 1, begin_s=600)
    node.is_leaving = lambda: True

    node.wait_for_others()

    assert store.list("outputs/nodes/") == [f"outputs/nodes/{EPOCH:012d}/000000.begun"]


def test_epoch_is_that_of_the_same_attempt(store: DirectoryStore) -> None:
    """Neither that of an earlier attempt, nor that of an earlier command on the same nodes."""
    node = node_of(store, 1)
    node.epoch = 0
    other = node_of(store, 0)
    other.place = CollectingNode(node=0, nodes=2, run="another")
    other.begin()
    of_other = node.find_epoch()
    first = node_of(store, 0)
    first.epoch = 4
    first.begin()
    store.put("outputs/nodes/000000000004/000001.done", b"")
    of_earlier = node.find_epoch()
    first.epoch = 5
    first.begin()

    assert (of_other, of_earlier, node.find_epoch(), node.epoch) == (False, False, True, 5)


def test_identity_of_a_run_is_that_of_its_nodes() -> None:
    first, second = ({"SKYPILOT_NODE_IPS": f"10.0.0.{n}\n10.0.0.9"} for n in (1, 2))

    runs = [
        run_identity("1", "", first),
        run_identity("2", "", first),
        run_identity("1", "", second),
        run_identity("1", "leader", first),
    ]

    assert len({*runs}) == 4
    # Groups have other addresses, and the same leader.
    assert run_identity("2", "leader", second) == runs[3]


def test_second_command_of_an_attempt_begins_again(store: DirectoryStore) -> None:
    node = node_of(store, 1)
    node.begin()
    node.end()

    node.begin()

    assert store.list("outputs/nodes/") == [f"outputs/nodes/{EPOCH:012d}/000001.begun"]

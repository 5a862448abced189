"""The rank layout: computed for equal and unequal nodes, and observed on real ranks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from holdfast_worker.__main__ import main
from holdfast_worker.protocol.environment import Exit
from holdfast_worker.topology.identity import RankIdentity
from holdfast_worker.topology.nodes import NodeGroup, RankLayout, Topology, parse_counts
from support.live_service import free_port
from worker.support.run_driver import RunDriver

ALIKE = """\
NODE  LOCAL_RANK  RANK
0     0,1         0,1
1     0,1         2,3
2     0,1         4,5
WORLD_SIZE = 3 x 2 = 6, RANK = NODE x 2 + LOCAL_RANK
"""
UNLIKE = """\
NODE  LOCAL_RANK  RANK
0     0,1,2,3     0,1,2,3
1     0,1         4,5
WORLD_SIZE = 4 + 2 = 6, RANK = ranks of the nodes before + LOCAL_RANK
"""
PLACE = "import os; print(*(os.environ[n] for n in ('GROUP_RANK', 'LOCAL_RANK', 'RANK')))\n"


@pytest.mark.parametrize(
    ("arguments", "table"),
    [
        (["--nodes", "3", "--nproc-per-node", "2"], ALIKE),
        (["--nproc-per-node", "2,2,2"], ALIKE),
        (["--nproc-per-node", "4,2"], UNLIKE),
    ],
)
def test_rank_layout_is_printed(
    arguments: list[str], table: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["ranks", *arguments])

    assert left.value.code == Exit.DONE
    assert capsys.readouterr().out == table


@pytest.mark.parametrize(
    ("nodes", "each", "world"), [(3, 2, 6), (10, 2, 20), (4, 4, 16), (2, 4, 8)]
)
def test_ranks_on_equal_nodes_follow_the_formula(nodes: int, each: int, world: int) -> None:
    shape = RankLayout.from_counts([each], nodes)

    assert shape.world_size == world
    for node in range(nodes):
        assert [*shape.ranks_of_node(node)] == [node * each + local for local in range(each)]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--nodes", "3", "--nproc-per-node", "4,2"], "names 2 nodes, but there are 3"),
        (["--nodes", "0"], "--nodes is 0: a run has at least one node"),
        (["--nproc-per-node", "4;2"], "'4;2' is not a valid number of ranks: write 8, or 4,2"),
        (["--nproc-per-node", "0"], "'0' is not a valid number of ranks"),
    ],
)
def test_invalid_node_shape_is_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["ranks", *arguments])

    assert left.value.code == Exit.USAGE
    assert sentence in capsys.readouterr().err


def test_ranks_per_node_are_parsed() -> None:
    assert parse_counts("8") == (8,)
    assert parse_counts("4,2,2") == (4, 2, 2)


def test_ranks_on_unequal_nodes_match_the_rank_layout(tmp_path: Path) -> None:
    script = tmp_path / "place.py"
    script.write_text(PLACE)
    nodes = {
        "SKYPILOT_NUM_NODES": "2",
        "SKYPILOT_NODE_IPS": "127.0.0.1\n127.0.0.1",
        "HOLDFAST_MASTER_PORT": str(free_port()),
    }
    both = [
        RunDriver(tmp_path / str(node), extra={**nodes, "SKYPILOT_NODE_RANK": str(node)})
        for node in range(2)
    ]

    wrappers = [node.start_wrapper("--nproc-per-node", "4,2", str(script)) for node in both]
    found = [wrapper.communicate(timeout=120) for wrapper in wrappers]

    assert [wrapper.returncode for wrapper in wrappers] == [0, 0], found
    places = [
        both[node].log(rank).split()
        for node in range(2)
        for rank in RankLayout((4, 2)).ranks_of_node(node)
    ]
    assert places == [
        [*map(str, place)]
        for place in [(0, 0, 0), (0, 1, 1), (0, 2, 2), (0, 3, 3), (1, 0, 4), (1, 1, 5)]
    ]
    seen = [line for out, _ in found for line in out.splitlines() if line.startswith("[RANK")]
    assert sorted(seen) == [f"[RANK {rank}] WORLD_SIZE=6" for rank in range(6)]


GROUP = {
    "HOLDFAST_GROUP": "workers",
    "HOLDFAST_FIRST_NODE": "1",
    "HOLDFAST_TOTAL_NODES": "3",
    "HOLDFAST_URL": "http://service",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NODE_RANK": "1",
    "SKYPILOT_NODE_IPS": "10.0.0.7\n10.0.0.8",
}


def test_nodes_of_groups_are_numbered_over_all_of_them() -> None:
    at = Topology.read(GROUP)

    assert (at.nodes, at.node_rank, at.master_address) == (3, 2, "10.0.0.8")
    assert at.group == NodeGroup("workers", 1, 2, 3)
    assert not at.group.has_leader


def test_single_group_is_a_placement_like_others() -> None:
    at = Topology.read({**GROUP, "HOLDFAST_FIRST_NODE": "0", "HOLDFAST_TOTAL_NODES": "2"})

    assert (at.group, at.nodes, at.node_rank, at.master_address) == (None, 2, 1, "10.0.0.7")


@pytest.mark.parametrize(
    ("name", "value", "sentence"),
    [
        ("HOLDFAST_FIRST_NODE", "", "HOLDFAST_GROUP is set, but HOLDFAST_FIRST_NODE is not"),
        ("HOLDFAST_TOTAL_NODES", "", "HOLDFAST_GROUP is set, but HOLDFAST_TOTAL_NODES is not"),
        ("HOLDFAST_URL", "", "HOLDFAST_GROUP is set, but HOLDFAST_URL is not"),
        ("HOLDFAST_TOTAL_NODES", "2", "HOLDFAST_TOTAL_NODES is 2, but group workers has 2 nodes"),
        ("HOLDFAST_FIRST_NODE", "one", "HOLDFAST_FIRST_NODE is 'one', which is not a number"),
        ("SKYPILOT_NODE_IPS", "10.0.0.7", "SKYPILOT_NODE_RANK is 1, but SKYPILOT_NODE_IPS names 1"),
        ("SKYPILOT_NODE_RANK", "2", "SKYPILOT_NODE_RANK is 2 of 2 nodes"),
    ],
)
def test_inconsistent_group_is_reported(name: str, value: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        Topology.read({**GROUP, name: value})


def test_script_on_groups_needs_the_wrapper() -> None:
    with pytest.raises(ValueError, match="start the script with holdfast-worker run"):
        RankIdentity.read(GROUP)

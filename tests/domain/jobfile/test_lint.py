"""A request for many nodes with few accelerators gets a note that suggests larger nodes."""

from __future__ import annotations

from typing import Any

import pytest
from holdfast.domain.jobfile.lint import spread_notes


def test_four_single_gpu_nodes_suggest_one_node_of_four() -> None:
    [note] = spread_notes({"accelerators": "A100"}, nodes=4)

    assert note.startswith("num_nodes: 4 nodes of A100:1 pass all gradients over the network")
    assert "one node of A100:4 is usually faster" in note


@pytest.mark.parametrize(
    ("resources", "nodes", "notes"),
    [
        ({"accelerators": "A100:8"}, 2, 0),  # No machine has sixteen.
        ({"accelerators": "A100:4"}, 1, 0),
        ({}, 4, 0),
        ({"accelerators": {"L4": 2}}, 2, 1),
        ({"accelerators": ["L4:2", "T4:8"]}, 2, 1),
        ({"any_of": [{"accelerators": "L4:1"}, {"accelerators": "T4:1"}]}, 3, 2),
        ({"any_of": [{"infra": "aws"}, {"infra": "gcp"}], "accelerators": "L4:1"}, 3, 1),
    ],
)
def test_each_node_kind_is_noted_once(resources: dict[str, Any], nodes: int, notes: int) -> None:
    assert len(list(spread_notes(resources, nodes))) == notes

"""Node groups are rendered as one managed job each, in one document each."""

from __future__ import annotations

from typing import Any

import yaml
from holdfast.domain.jobfile.parser import parse_job_file
from holdfast.rendering import RenderedTask, load, load_all, render

GROUPS = [
    {
        "name": "head",
        "num_nodes": 1,
        "resources": {"infra": "aws/us-east-1", "use_spot": False, "job_recovery": "FAILOVER"},
    },
    {"name": "workers", "num_nodes": 2, "resources": {"infra": "aws/us-east-2"}},
]
SHARED = {
    "name": "llama",
    "run": "holdfast-worker run train.py",
    "num_nodes": {"min": 2, "max": 3},
    "resources": {"accelerators": "A100:8"},
    "holdfast": {
        "groups": GROUPS,
        "checkpoint": {"store": "s3://b/p"},
        "limits": {"max_hourly_cost_usd": 100},
    },
}


def rendered(**fields: Any) -> RenderedTask:
    return render(parse_job_file(yaml.safe_dump({**SHARED, **fields})).spec)


def test_each_group_is_a_task_with_its_nodes_and_variables() -> None:
    head, workers = load_all(rendered().text)

    assert (head["name"], workers["name"]) == ("llama-head", "llama-workers")
    assert (head["num_nodes"], workers["num_nodes"]) == (1, 2)
    shared = {"HOLDFAST_TOTAL_NODES": "3", "HOLDFAST_MIN_NODES": "2"}
    assert head["envs"].items() >= {**shared, "HOLDFAST_GROUP": "head", "HOLDFAST_FIRST_NODE": "0"}.items()  # fmt: skip
    assert workers["envs"].items() >= {**shared, "HOLDFAST_GROUP": "workers", "HOLDFAST_FIRST_NODE": "1"}.items()  # fmt: skip
    assert head["run"] == workers["run"]


def test_each_group_has_its_own_resources_and_recovery() -> None:
    head, workers = (task["resources"] for task in load_all(rendered().text))

    assert (head["infra"], head["use_spot"]) == ("aws/us-east-1", False)
    assert (workers["infra"], workers["use_spot"]) == ("aws/us-east-2", True)
    assert head["job_recovery"]["strategy"] == "FAILOVER"
    assert workers["job_recovery"]["strategy"] == "EAGER_NEXT_REGION"


def test_limit_of_the_price_leaves_room_within_a_group_only() -> None:
    """What other groups cost is unknown, and checked while they run."""
    head, workers = (task["resources"] for task in load_all(rendered().text))

    assert (head["max_hourly_cost"], workers["max_hourly_cost"]) == (100, 50)


def test_task_of_all_nodes_has_no_group() -> None:
    task = rendered().task

    assert (task["name"], task["num_nodes"]) == ("llama", 3)
    assert "HOLDFAST_GROUP" not in task["envs"]


def test_stored_task_of_a_job_without_groups_is_one_document() -> None:
    text = rendered(holdfast={}, num_nodes=3).text

    assert load_all(text) == [load(text)]


def test_notes_name_their_group() -> None:
    groups = [GROUPS[0], {**GROUPS[1], "resources": {"infra": "lambda", "use_spot": True}}]
    notes = rendered(holdfast={**SHARED["holdfast"], "groups": groups}).notes  # type: ignore[dict-item]

    assert [note for note in notes if note.startswith("group workers: ")]

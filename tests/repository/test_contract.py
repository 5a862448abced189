"""Clients, workers and replicas of the last release work with this version."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.contract import broken, promises

RECORDED = Path(__file__).parent / "contract"
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def last() -> dict[str, Any]:
    """The contract of the newest recorded release."""
    newest = max(RECORDED.glob("*.json"), key=lambda f: tuple(map(int, f.stem.split("."))))
    recorded: dict[str, Any] = json.loads(newest.read_text())
    return recorded


def _schema(contract: dict[str, Any], name: str) -> Any:
    return contract["api"]["components"]["schemas"][name]


def test_contracts_of_the_last_release_are_kept(last: dict[str, Any]) -> None:
    found = broken(last, promises())

    # Remove parts two releases after their deprecation. `make contract` records a new release.
    assert found == []


ADDITIONS: dict[str, Change] = {
    "route": lambda c: c["api"]["paths"].update({"/v1/later": {"get": {"responses": {}}}}),
    "answer": lambda c: _schema(c, "JobOut")["properties"].update(later={"type": "string"}),
    "request": lambda c: _schema(c, "TaskIn")["properties"].update(later={"type": "string"}),
    "event": lambda c: c["events"].update(NodeMeasured={"type": "object"}),
    "event field": lambda c: c["events"]["Finished"]["properties"].update(later={"type": "number"}),
    "report": lambda c: c["words"]["reports"].append("node_measured"),
    "table": lambda c: c["tables"].update(later={"id": {"type": "TEXT", "is_optional": False}}),
    "column": lambda c: c["tables"]["jobs"].update(later={"type": "TEXT", "is_optional": True}),
    "command": lambda c: c["commands"].update({"holdfast later": {"--now": False}}),
    "format": lambda c: c.update(checkpoint_format=c["checkpoint_format"] + 1),
}
BREAKS: dict[str, tuple[Change, str]] = {
    "route removed": (lambda c: c["api"]["paths"].pop("/v1/costs"), "GET /v1/costs was removed"),
    "answer field removed": (
        lambda c: _schema(c, "JobOut")["properties"].pop("detail"),
        "detail was removed",
    ),
    "answer field new and required": (
        lambda c: _schema(c, "JobOut")["required"].append("later"),
        "later is new and required",
    ),
    "answer field null": (
        lambda c: _schema(c, "JobOut")["properties"]["step"].update(
            anyOf=[{"type": "integer"}, {"type": "null"}]
        ),
        "step: the type was integer and is integer|null",
    ),
    "request field required": (
        lambda c: _schema(c, "TaskIn")["required"].append("later"),
        "later is new and required",
    ),
    "request field of another type": (
        lambda c: _schema(c, "CancelIn")["properties"]["reason"].update(type="integer"),
        "reason: the type was string and is integer",
    ),
    "enum narrowed": (
        lambda c: _schema(c, "MemberIn")["properties"]["role"]["enum"].remove("viewer"),
        "the values ['viewer'] were removed",
    ),
    "event removed": (lambda c: c["events"].pop("Paused"), "the event Paused was removed"),
    "event field removed": (
        lambda c: c["events"]["Finished"]["properties"].pop("detail"),
        "event Finished.detail was removed",
    ),
    "event field required": (
        lambda c: c["events"]["Finished"]["required"].append("detail"),
        "event Finished.detail is required now",
    ),
    "report removed": (
        lambda c: c["words"]["reports"].remove("progress"),
        "reports: 'progress' was removed",
    ),
    "column removed": (lambda c: c["tables"]["jobs"].pop("status"), "jobs.status was removed"),
    "column that must be filled": (
        lambda c: c["tables"]["jobs"].update(later={"type": "TEXT", "is_optional": False}),
        "jobs.later is new, and a replica of the version before cannot fill it",
    ),
    "option removed": (
        lambda c: c["commands"]["holdfast ps"].pop("--json"),
        "holdfast ps --json was removed",
    ),
}


@pytest.mark.parametrize("change", ADDITIONS.values(), ids=ADDITIONS)
def test_addition_is_no_break(last: dict[str, Any], change: Change) -> None:
    later = copy.deepcopy(last)
    change(later)

    assert broken(last, later) == []


@pytest.mark.parametrize(("change", "words"), BREAKS.values(), ids=BREAKS)
def test_break_is_named(last: dict[str, Any], change: Change, words: str) -> None:
    later = copy.deepcopy(last)
    change(later)

    assert any(words in line for line in broken(last, later))

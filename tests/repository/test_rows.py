"""Every row of the reference is where it says, can be typed, and is proven by a test that exists."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path
from typing import Any

import typer
from holdfast.cli.app import app
from holdfast_worker.__main__ import parser
from support.tables import for_each

ROOT = Path(__file__).parents[2]
GROUPS = {"T": 13, "I": 4, "P": 13, "N": 6, "C": 13, "M": 12, "$": 4, "R": 6, "G": 11}
"""How many rows each group has."""
ROW = re.compile(r"^\| (\S+) \| ([^|]+) \| `([^`]+)` \| `([^`]+)` \| `([^`:]+)::(\w+)` \|$", re.MULTILINE)  # fmt: skip
ROWS = ROW.findall((ROOT / "docs/reference/rows.md").read_text())


def names() -> set[str]:
    return {f"{group}{n}" for group, count in GROUPS.items() for n in range(1, count + 1)}


def test_every_row_is_there_once() -> None:
    told = [row[0] for row in ROWS]
    lines = [line for line in (ROOT / "docs/reference/rows.md").read_text().splitlines() if line.startswith("| ")]  # fmt: skip

    assert len(told) == len(set(told)) == len(lines) - 1, "a line that does not read as a row"
    assert set(told) == names()


@for_each(ROWS)
def test_reference_row_names_existing_file_command_and_test(told: tuple[str, ...]) -> None:
    _, _, where, command, file, test = told
    tree = ast.parse((ROOT / file).read_text())
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == test]

    assert (ROOT / where).is_file(), where
    assert test.startswith("test_"), test
    assert len(tests) == 1, f"{file} has {len(tests)} tests of the name {test}"
    assert command.split(maxsplit=1)[0] in {"holdfast", "holdfast-worker", "make", "curl"}, command


@for_each([row[3] for row in ROWS if row[3].startswith("holdfast ")])
def test_a_command_of_a_row_can_be_typed(typed: str) -> None:
    command: Any = typer.main.get_command(app)
    words = shlex.split(typed)[1:]
    while words and words[0] in getattr(command, "commands", {}):
        command = command.commands[words.pop(0)]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}

    assert not hasattr(command, "commands"), f"{typed}: no such command"
    assert {word for word in words if word.startswith("-")} <= known, typed


@for_each([row[3] for row in ROWS if row[3].startswith("holdfast-worker ")])
def test_a_command_of_the_worker_can_be_typed(typed: str) -> None:
    words = shlex.split(typed)[1:]

    assert parser(words[:1]).parse_args(words), typed

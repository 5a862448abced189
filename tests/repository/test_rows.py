"""Every row of the reference names an existing file, a valid command, and an existing test."""

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
"""Number of rows of each group."""
ROW = re.compile(r"^\| (\S+) \| ([^|]+) \| `([^`]+)` \| `([^`]+)` \| `([^`:]+)::(\w+)` \|$", re.MULTILINE)  # fmt: skip
ROWS = ROW.findall((ROOT / "docs/reference/rows.md").read_text())


def names() -> set[str]:
    return {f"{group}{n}" for group, count in GROUPS.items() for n in range(1, count + 1)}


def test_every_row_is_listed_once() -> None:
    row_ids = [row[0] for row in ROWS]
    lines = [line for line in (ROOT / "docs/reference/rows.md").read_text().splitlines() if line.startswith("| ")]  # fmt: skip

    assert len(row_ids) == len(set(row_ids)) == len(lines) - 1, "a line is no valid row"
    assert set(row_ids) == names()


@for_each(ROWS)
def test_reference_row_names_existing_file_command_and_test(row_ids: tuple[str, ...]) -> None:
    _, _, where, command, file, test = row_ids
    tree = ast.parse((ROOT / file).read_text())
    tests = [node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == test]

    assert (ROOT / where).is_file(), where
    assert test.startswith("test_"), test
    assert len(tests) == 1, f"{file} has {len(tests)} tests of the name {test}"
    assert command.split(maxsplit=1)[0] in {"holdfast", "holdfast-worker", "make", "curl"}, command


@for_each([row[3] for row in ROWS if row[3].startswith("holdfast ")])
def test_command_of_a_row_is_valid(command_line: str) -> None:
    command: Any = typer.main.get_command(app)
    arguments = shlex.split(command_line)[1:]
    while arguments and arguments[0] in getattr(command, "commands", {}):
        command = command.commands[arguments.pop(0)]
    known = {name for each in command.params for name in (*each.opts, *each.secondary_opts)}

    assert not hasattr(command, "commands"), f"{command_line}: no such command"
    assert {word for word in arguments if word.startswith("-")} <= known, command_line


@for_each([row[3] for row in ROWS if row[3].startswith("holdfast-worker ")])
def test_worker_command_of_a_row_is_valid(command_line: str) -> None:
    arguments = shlex.split(command_line)[1:]

    assert parser(arguments[:1]).parse_args(arguments), command_line
